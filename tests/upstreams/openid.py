"""A provider of OpenID Connect, as much of it as the authorization code flow with PKCE needs, over real HTTP. It is honest, until a test has it lie.

It signs with `cryptography` alone, not with the library that verifies. It is at `localhost`, which for a browser is another site than the
console at 127.0.0.1.
"""

import base64
import contextlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from pydantic import SecretStr

from engine.settings import OidcTable

CLIENT_ID, SECRET = "the console", "canary-secret/+ä of the console"
DISCOVERY, KEYS, AUTHORIZE, TOKEN = "/.well-known/openid-configuration", "/keys", "/authorize", "/token"

GROUPS = {"auditors": ("log-readers",), "reviewers": ("log-reviewers",), "leads": ("log-leads",)}

Claims = dict[str, Any]
Answer = tuple[int, str, bytes]


@dataclass
class Signer:
    """A key pair with its id."""

    kid: str
    algorithm: str = "RS256"
    private: Any = None

    def __post_init__(self) -> None:
        made: dict[str, Callable[[], Any]] = {
            "RS256": lambda: rsa.generate_private_key(65537, 2048),
            "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate,
        }
        self.private = self.private or made[self.algorithm]()

    def sign(self, message: bytes) -> bytes:
        if self.algorithm == "RS256":
            return bytes(self.private.sign(message, padding.PKCS1v15(), hashes.SHA256()))
        if self.algorithm == "EdDSA":
            return bytes(self.private.sign(message))
        r, s = decode_dss_signature(self.private.sign(message, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32) + s.to_bytes(32)

    def jwk(self) -> dict[str, Any]:
        public, about = self.private.public_key(), {"kid": self.kid, "use": "sig", "alg": self.algorithm}
        if self.algorithm == "RS256":
            numbers = public.public_numbers()
            return about | {"kty": "RSA", "n": _number(numbers.n, 256), "e": _number(numbers.e, 3)}
        if self.algorithm == "ES256":
            numbers = public.public_numbers()
            return about | {
                "kty": "EC",
                "crv": "P-256",
                "x": _number(numbers.x, 32),
                "y": _number(numbers.y, 32),
            }
        return about | {"kty": "OKP", "crv": "Ed25519", "x": coded(public.public_bytes_raw())}

    def pem(self) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return bytes(self.private.public_key().public_bytes(serialization.Encoding.PEM, form))


@dataclass
class Code:
    """What was asked for when it was given."""

    asked: dict[str, str]
    claims: Claims
    is_used: bool = False


@dataclass
class Provider:
    issuer: str = ""
    client_id: str = CLIENT_ID
    secret: str = SECRET
    signer: Signer = field(default_factory=lambda: Signer("first", "ES256"))  # quicker to make than RSA
    person: Claims = field(default_factory=lambda: {"sub": "alice", "groups": ["log-readers"]})
    asks: bool = False  # with a page, before it sends the browser back
    codes: dict[str, Code] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    # Lies.
    metadata: Claims = field(default_factory=dict)  # in place of what is true
    claims: Claims = field(default_factory=dict)
    header: Claims = field(default_factory=dict)
    forge: Callable[[bytes], bytes] | None = None  # a signature
    keys: list[dict[str, Any]] | None = None
    answers: dict[str, Answer] = field(default_factory=dict)  # by path
    hangs: set[str] = field(default_factory=set)
    takes_used_codes: bool = False
    checks_verifier: bool = True
    is_ended: threading.Event = field(default_factory=threading.Event)

    def count(self, path: str) -> int:
        return sum(1 for asked, _ in self.asked if asked == path)

    def answer(self, path: str, given: dict[str, str], authorization: str) -> Answer | str:
        """A status with its content, or an address to go to."""
        self.asked.append((path, given))
        if path in self.hangs:
            self.is_ended.wait()
        if path in self.answers:
            return self.answers[path]
        if path == DISCOVERY:
            return _json(200, self._metadata())
        if path == KEYS:
            return _json(200, {"keys": [self.signer.jwk()] if self.keys is None else self.keys})
        if path == AUTHORIZE:
            return self._page(given) if self.asks and "yes" not in given else self.come_back(given)
        return self._token(given, authorization) if path == TOKEN else _json(404, {})

    def come_back(self, asked: dict[str, str]) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = Code(asked, dict(self.person))
        answer = {"code": code, "state": asked["state"], "iss": self.issuer}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def token(self, claims: Claims) -> str:
        header = {"alg": self.signer.algorithm, "kid": self.signer.kid, "typ": "JWT"} | self.header
        signed = f"{coded(json.dumps(header).encode())}.{coded(json.dumps(claims).encode())}"
        signature = (self.forge or self.signer.sign)(signed.encode())
        self.tokens.append(f"{signed}.{coded(signature)}")
        return self.tokens[-1]

    def _metadata(self) -> Claims:
        return {
            "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}{AUTHORIZE}", "token_endpoint": f"{self.issuer}{TOKEN}",
            "jwks_uri": f"{self.issuer}{KEYS}", "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        } | self.metadata  # fmt: skip

    def _page(self, given: dict[str, str]) -> Answer:
        fields = "".join(
            f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
            for name, value in given.items()
        )
        button = '<button id="yes" name="yes" value="1">Sign in as alice</button>'
        page = f'<!doctype html><title>Provider</title><form action="{AUTHORIZE}">{fields}{button}</form>'
        return 200, "text/html", page.encode()

    def _token(self, given: dict[str, str], authorization: str) -> Answer:
        if not self._knows(given, authorization):
            return _json(401, {"error": "invalid_client"})
        code = self.codes.get(given.get("code", ""))
        if code is None or (code.is_used and not self.takes_used_codes):
            return _json(400, {"error": "invalid_grant"})
        challenge = coded(sha256(given.get("code_verifier", "").encode()).digest())
        if self.checks_verifier and not hmac.compare_digest(challenge, code.asked["code_challenge"]):
            return _json(400, {"error": "invalid_grant"})
        code.is_used = True
        now = int(time.time())
        true = {
            "iss": self.issuer, "aud": self.client_id, "exp": now + 300, "iat": now, "nonce": code.asked["nonce"],
        } | code.claims  # fmt: skip
        claims = {name: value for name, value in (true | self.claims).items() if value is not None}
        more = {
            "access_token": "canary-access-token",
            "refresh_token": "canary-refresh-token",
            "token_type": "Bearer",
        }
        return _json(200, more | {"id_token": self.token(claims)})

    def _knows(self, given: dict[str, str], authorization: str) -> bool:
        if not self.secret:
            return given.get("client_id") == self.client_id
        if not authorization:
            return (given.get("client_id"), given.get("client_secret")) == (self.client_id, self.secret)
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        return (unquote_plus(name), unquote_plus(secret)) == (self.client_id, self.secret)


@contextlib.contextmanager
def provider(**about: Any) -> Iterator[Provider]:
    """One that listens until the end of the block."""
    made = Provider(**about)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            told = made.answer(
                url.path, dict(parse_qsl(url.query) + parse_qsl(body)), self.headers.get("Authorization", "")
            )
            status, kind, content = (303, "text/plain", b"") if isinstance(told, str) else told
            with contextlib.suppress(OSError):  # the client may have given up
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                if isinstance(told, str):
                    self.send_header("Location", told)
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = _reply  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.issuer = f"http://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.is_ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def table(upstream: Provider, **other: Any) -> OidcTable:
    """The settings of a console that signs in there."""
    given: dict[str, Any] = {
        "issuer": upstream.issuer, "client_id": upstream.client_id, "client_secret": SecretStr(upstream.secret),
        "client_secret_file": "", "address": "http://127.0.0.1", "scopes": (), "role_claim": "groups", "timeout_s": 3.0,
    }  # fmt: skip
    return OidcTable(**given | GROUPS | other)


def coded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _number(value: int, length: int) -> str:
    return coded(value.to_bytes(length))


def _json(status: int, content: Claims) -> Answer:
    return status, "application/json", json.dumps(content).encode()
