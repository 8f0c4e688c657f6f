/** The gateway as a server of its own: what is listed (paths.ts) goes to the engine, all else comes from the folder of the built
 * site. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { ReadableStream as WebStream } from "node:stream/web";
import type { TrustedProxies } from "./admission/proxies.js";
import { serveFile, type Site } from "./files.js";
import { gateway, type GatewayOptions } from "./gateway.js";
import { destinationsOf, HEALTH } from "./paths.js";

export interface ServerOptions extends Omit<GatewayOptions, "addressHeader"> {
  /** Where questions arrive, such as `/ask`. */
  path: string;
  /** None if another server shows the pages. */
  site: Site | null;
  proxies: TrustedProxies;
  warn: (text: string) => void;
}

export interface Running {
  server: Server;
  /** Takes nothing new, lets what is under way end, then closes what is left. */
  stop: () => Promise<void>;
}

const HEADERS_MS = 10_000; // a browser sends its headers at once
const REQUEST_MS = 15_000; // 64 KiB, also over a bad line
const IDLE_MS = 30_000; // nothing read and nothing written: the other side has gone
const CHECKED_EVERY_MS = 1_000;
const HEADER_BYTES_MAX = 16_384;
const CONNECTIONS_MAX = 1_000; // below the 1,024 files that many systems let a process open
const STOP_MS = 22_000; // as long as a question may take

const ADDRESS_HEADER = "x-gateway-reader"; // set here, below; what arrives by this name is dropped with all else
const PASSED_IN = [
  "accept", "content-length", "content-type", "host", "origin", "referer", "sec-fetch-site", "x-request-id", "x-session-token",
] as const;

export function gatewayServer(options: ServerOptions): Running {
  const ask = asking(options);
  const server = createServer(
    {
      headersTimeout: HEADERS_MS,
      requestTimeout: REQUEST_MS,
      connectionsCheckingInterval: CHECKED_EVERY_MS,
      maxHeaderSize: HEADER_BYTES_MAX,
    },
    (request, response) => {
      response.once("close", () => server.listening || server.closeIdleConnections());
      route(request, response, ask, options).catch(() => response.destroy()); // the reader left in the middle of a file
    },
  );
  server.maxConnections = CONNECTIONS_MAX;
  server.timeout = IDLE_MS;
  return { server, stop: () => stop(server) };
}

type Ask = (request: IncomingMessage, response: ServerResponse) => Promise<void>;

function asking(options: ServerOptions): Ask {
  const ask = gateway({ ...options, addressHeader: ADDRESS_HEADER });
  const warnOnce = warningOnce(options);
  return async (request, response) => {
    const peer = request.socket.remoteAddress ?? "";
    const forwardedFor = String(request.headers["x-forwarded-for"] ?? "");
    warnOnce(peer, forwardedFor);
    const leaving = new AbortController();
    response.once("close", () => leaving.abort());
    const asked = webRequest(request, options.proxies.readerBehind(peer, forwardedFor), leaving.signal);
    await write(await ask(asked), response);
    request.resume(); // what was too much is thrown away, so that the client hears why before it is cut off
  };
}

async function route(
  request: IncomingMessage, response: ServerResponse, ask: Ask, options: ServerOptions,
): Promise<void> {
  const [path] = (request.url ?? "").split("?", 1);
  if (path === "/healthz") return health(response);
  if (isForEngine(path ?? "", request, options)) return request.method === "TRACE" ? noTrace(response) : ask(request, response);
  if (options.site) return serveFile(options.site, request, response);
  response.writeHead(404, { "Content-Type": "text/plain; charset=utf-8" });
  response.end("There is nothing here.\n");
}

/** The address as it is written: what has to be decoded or resolved first is none of those. A site may have a page of that
 * name, which browsers ask for as a document. */
function isForEngine(path: string, { method, headers }: IncomingMessage, { path: ownPath, site }: ServerOptions): boolean {
  if (path === ownPath) return true;
  const isReading = method === "GET" || method === "HEAD";
  if (site && isReading && (headers.accept ?? "").includes("text/html")) return false;
  if (HEALTH.includes(path)) return isReading;
  const methods: (string | undefined)[] = destinationsOf(path).map((listed) => listed.method);
  return methods.includes(method) || (methods.length > 0 && (!site || method === "OPTIONS"));
}

/** Liveness of the gateway alone: an outage of the engine must not restart it, because it also serves the pages. */
function health(response: ServerResponse): void {
  response.writeHead(200, { "Content-Type": "application/json", "Cache-Control": "no-store" });
  response.end('{"status":"ok"}\n');
}

/** The one method that Node reads and no Request can have. */
function noTrace(response: ServerResponse): void {
  response.writeHead(405, { "Content-Type": "text/plain; charset=utf-8", "Allow": "GET, HEAD, POST, DELETE, OPTIONS" });
  response.end("This address does not support that method.\n");
}

function webRequest(request: IncomingMessage, reader: string, signal: AbortSignal): Request {
  const headers = new Headers({ [ADDRESS_HEADER]: reader });
  for (const name of PASSED_IN) {
    const value = request.headers[name];
    if (value !== undefined) headers.set(name, String(value));
  }
  const method = request.method ?? "";
  const body = method === "POST" ? bodyOf(request) : null;
  return new Request(`http://gateway.invalid${request.url}`, { method, headers, body, signal, duplex: "half" } as RequestInit);
}

/** Unlike Node's own conversion it leaves the connection open when no more is read: the answer still has to go out. */
function bodyOf(request: IncomingMessage): ReadableStream<Uint8Array> {
  const chunks = request.iterator({ destroyOnReturn: false });
  return new ReadableStream({
    async pull(body) {
      const { done, value } = await chunks.next();
      if (done) body.close();
      else body.enqueue(value as Uint8Array);
    },
    async cancel() {
      await chunks.return?.();
    },
  }, { highWaterMark: 0 });
}

/** Streams the answer. It fails when the reader disconnects, which cancels the request to the engine. */
async function write(answer: Response, response: ServerResponse): Promise<void> {
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  response.flushHeaders();
  if (answer.body) await pipeline(Readable.fromWeb(answer.body as WebStream), response);
  else response.end();
}

/** Warns about an unlisted proxy, because all readers behind it share one limit. */
function warningOnce({ proxies, warn }: ServerOptions): (peer: string, forwardedFor: string) => void {
  let isSaid = false;
  return (peer, forwardedFor) => {
    if (isSaid || !forwardedFor || proxies.includes(peer)) return;
    isSaid = true;
    warn(
      "X-Forwarded-For is ignored, because it comes from no proxy that was named. If a proxy stands before the gateway, " +
        "name it with --trusted-proxy.",
    );
  };
}

async function stop(server: Server): Promise<void> {
  const closed = once(server, "close");
  const clock = setTimeout(() => server.closeAllConnections(), STOP_MS);
  server.close();
  await closed;
  clearTimeout(clock);
}
