// A serverless function, for a site on static hosting. On Vercel it is `api/ask.js`, and the
// plugin's option `path` is `/api/ask`. AFFIDAVIT_ENGINE and AFFIDAVIT_KEY are set in the platform's own settings.
import { gateway } from "docusaurus-plugin-affidavit/gateway";

const handle = gateway({
  engine: process.env.AFFIDAVIT_ENGINE,
  key: process.env.AFFIDAVIT_KEY,
  book: "my-book",
  path: "/api/ask", // where the platform calls this function
  // Where the platform writes the reader's address. Of Netlify it is x-nf-client-connection-ip, of Cloudflare cf-connecting-ip.
  addressHeader: "x-real-ip",
});

export { handle as POST };
// Other chat widgets ask at addresses of their own (README, "Any widget"): a function at all of them, such as Vercel's
// `api/[...path].js`, also exports { handle as GET, handle as DELETE, handle as OPTIONS }.

// Each instance of a function counts by itself, so give the key a limit in the engine, which counts them all:
// affidavit keys create --client my-site --limit 2000/day
