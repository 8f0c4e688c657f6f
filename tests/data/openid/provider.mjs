// An independent provider, certified by the OpenID Foundation, with its own pages to sign in and to consent.
// node provider.mjs PORT REDIRECT_URI ALGORITHM
import { generateKeyPairSync } from "node:crypto";

import Provider from "oidc-provider";

const [port, redirectUri, algorithm] = process.argv.slice(2);
const kinds = { RS256: ["rsa", { modulusLength: 2048 }], ES256: ["ec", { namedCurve: "P-256" }], EdDSA: ["ed25519", {}] };
const keys = Object.entries(kinds).map(([alg, kind]) => ({ ...generateKeyPairSync(...kind).privateKey.export({ format: "jwk" }), alg, use: "sig" }));

const provider = new Provider(`http://localhost:${port}`, {
  clients: [{ client_id: "console", client_secret: "a secret of the console", redirect_uris: [redirectUri], id_token_signed_response_alg: algorithm }],
  jwks: { keys },
  enabledJWA: { idTokenSigningAlgValues: Object.keys(kinds) },
  pkce: { required: () => true, methods: ["S256"] },
  claims: { openid: ["sub"], groups: ["groups"] },
  conformIdTokenClaims: false, // the groups in the id_token, and not only at another address
  cookies: { keys: ["of a test"] },
  findAccount: (_, accountId) => ({ accountId, claims: () => ({ sub: accountId, groups: [`${accountId}-group`] }) }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
