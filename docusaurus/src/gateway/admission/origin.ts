/** CORS and CSRF protection: only pages of the gateway's own site and of allowed sites may ask. A page of any other site
 * could otherwise use up the limit of a reader who visits it. */
import { Failure } from "../problems.js";

const TOLD_HEADERS =
  "Retry-After, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, X-Request-ID, X-Query-ID, X-Receipt";
const PREFLIGHT_S = 600; // a browser asks again after that

/** Browsers send Origin with every POST and DELETE, and no page can change it. A request without it does not come from a
 * page; but with a GET they send it to other sites only. */
export function admitted(request: Request, allowed: ReadonlySet<string>, methods: readonly string[]): void {
  if (!methods.includes(request.method) && request.method !== "OPTIONS") {
    throw new Failure("WrongMethod", { allow: [...new Set(methods)].join(", ") });
  }
  const origin = originOf(request);
  if (origin === null) throw new Failure("ForeignOrigin", { cause: "no origin" });
  if (allowed.has(origin)) return;
  if (allowed.size > 0 || !isOwn(origin, request)) throw new Failure("ForeignOrigin", { cause: "another origin" });
  const site = request.headers.get("Sec-Fetch-Site");
  if (site !== null && site !== "same-origin") throw new Failure("ForeignOrigin", { cause: "another site" });
}

/** Of a GET to its own site a page is known by its Referer, or by what its browser says of the two. */
function originOf(request: Request): string | null {
  const { headers, method } = request;
  const origin = headers.get("Origin");
  if (origin !== null || method !== "GET") return origin;
  const referer = headers.get("Referer") ?? "";
  if (URL.canParse(referer)) return new URL(referer).origin;
  return headers.get("Sec-Fetch-Site") === "same-origin" ? `https://${headers.get("Host")}` : null;
}

/** Ignores the scheme, because a proxy may have terminated TLS. */
function isOwn(origin: string, request: Request): boolean {
  if (!/^https?:\/\//.test(origin) || !URL.canParse(origin)) return false;
  const host = request.headers.get("Host") ?? new URL(request.url).host;
  return new URL(origin).host === host.toLowerCase();
}

/** The preflight request that a browser sends before it sends JSON to another site. */
export function preflight(): Response {
  return new Response(null, {
    status: 204,
    headers: {
      "Access-Control-Allow-Methods": "GET, POST, DELETE",
      "Access-Control-Allow-Headers": "Content-Type, X-Request-ID, X-Session-Token",
      "Access-Control-Max-Age": String(PREFLIGHT_S),
    },
  });
}

/** CORS headers: pages of allowed sites may also read the answer. */
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
