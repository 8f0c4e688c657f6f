/** Who may ask: pages of the gateway's own site, and of the sites that are named. A page of any other site could
 * otherwise spend the questions of a reader who happens to visit it. */
import { Failure } from "./problems.js";

const TOLD_HEADERS =
  "Retry-After, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, X-Request-ID, X-Query-ID, X-Receipt";
const PREFLIGHT_S = 600; // a browser asks again after that

/** Browsers send the origin with every POST and let no page change it. What sends none is no page. */
export function admitted(request: Request, allowed: ReadonlySet<string>): void {
  if (request.method !== "POST" && request.method !== "OPTIONS") throw new Failure("WrongMethod");
  const origin = request.headers.get("Origin");
  if (origin === null) throw new Failure("ForeignOrigin", { cause: "no origin" });
  if (allowed.has(origin)) return;
  if (allowed.size > 0 || !isOwn(origin, request)) throw new Failure("ForeignOrigin", { cause: "another origin" });
  const site = request.headers.get("Sec-Fetch-Site");
  if (site !== null && site !== "same-origin") throw new Failure("ForeignOrigin", { cause: "another site" });
}

/** A proxy may have taken TLS off, so the scheme says nothing here. */
function isOwn(origin: string, request: Request): boolean {
  if (!/^https?:\/\//.test(origin) || !URL.canParse(origin)) return false;
  const host = request.headers.get("Host") ?? new URL(request.url).host;
  return new URL(origin).host === host.toLowerCase();
}

/** The question that a browser asks before it sends JSON to another site. */
export function preflight(): Response {
  return new Response(null, {
    status: 204,
    headers: {
      "Access-Control-Allow-Methods": "POST",
      "Access-Control-Allow-Headers": "Content-Type, X-Request-ID",
      "Access-Control-Max-Age": String(PREFLIGHT_S),
    },
  });
}

/** Pages of the sites that are named may also read the answer. */
export function allowingOrigin(response: Response, request: Request, allowed: ReadonlySet<string>): Response {
  if (allowed.size === 0) return response;
  response.headers.set("Vary", "Origin");
  const origin = request.headers.get("Origin");
  if (origin !== null && allowed.has(origin)) {
    response.headers.set("Access-Control-Allow-Origin", origin);
    response.headers.set("Access-Control-Expose-Headers", TOLD_HEADERS);
  }
  return response;
}
