/** Static file server for the built site, like `docusaurus serve`: clean URLs, with or without a trailing slash. */
import { open, realpath, type FileHandle } from "node:fs/promises";
import { constants, type Stats } from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { extname, join, sep } from "node:path";
import { pipeline } from "node:stream/promises";

export interface Site {
  /** Where it was built to, without symbolic links. */
  folder: string;
  /** With a slash at both ends. */
  baseUrl: string;
}

interface Found {
  file: FileHandle;
  stats: Stats;
  path: string;
}

const TYPES: Record<string, string> = {
  ".avif": "image/avif", ".css": "text/css; charset=utf-8", ".csv": "text/csv; charset=utf-8", ".gif": "image/gif",
  ".htm": "text/html; charset=utf-8", ".html": "text/html; charset=utf-8", ".ico": "image/x-icon",
  ".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".js": "text/javascript; charset=utf-8",
  ".json": "application/json", ".map": "application/json", ".md": "text/markdown; charset=utf-8",
  ".mjs": "text/javascript; charset=utf-8", ".mp3": "audio/mpeg", ".mp4": "video/mp4", ".otf": "font/otf",
  ".pdf": "application/pdf", ".png": "image/png", ".svg": "image/svg+xml", ".ttf": "font/ttf",
  ".txt": "text/plain; charset=utf-8", ".vtt": "text/vtt; charset=utf-8", ".wasm": "application/wasm",
  ".wav": "audio/wav", ".webm": "video/webm", ".webmanifest": "application/manifest+json", ".webp": "image/webp",
  ".woff": "font/woff", ".woff2": "font/woff2", ".xml": "application/xml", ".zip": "application/zip",
};

// Scripts and styles are left alone: Docusaurus writes inline ones, and sites load theirs from where they like.
const SECURITY = {
  "X-Content-Type-Options": "nosniff",
  "Referrer-Policy": "strict-origin-when-cross-origin",
  "X-Frame-Options": "SAMEORIGIN",
  "Content-Security-Policy": "frame-ancestors 'self'; base-uri 'self'",
};

// Names that change with their content. Of other files a site may have put one of its own in the same folder.
const HASHED = /^assets\/(?:(?:js|css)\/.*\.[0-9a-f]{8}\.(?:js|css)|.*-[0-9a-f]{32}\.\w+)$/;

const CONTROL = /[\0-\x1f\x7f\\]/;

export async function serveFile(site: Site, request: IncomingMessage, response: ServerResponse): Promise<void> {
  for (const [name, value] of Object.entries(SECURITY)) response.setHeader(name, value);
  if (request.method !== "GET" && request.method !== "HEAD") {
    response.setHeader("Allow", "GET, HEAD");
    return say(response, 405, "This address is only for reading.");
  }
  const [address = "", query] = (request.url ?? "").split(/\?(.*)/s);
  const clean = cleaned(site, address);
  if (clean !== null) return redirect(response, clean, query);
  const path = pathOf(site, address);
  const found = path === null ? null : await find(site, path);
  if (found) return send(found, 200, request, response);
  const missing = await opened(site, "404.html");
  if (missing) return send(missing, 404, request, response);
  return say(response, 404, "There is no such page.");
}

/** Redirects as Docusaurus' own server has them: to the base, and from files of pages to the pages. */
function cleaned(site: Site, address: string): string | null {
  if (address !== site.baseUrl && (address === "/" || `${address}/` === site.baseUrl)) return site.baseUrl;
  const page = address.replace(/(?<=\/)index\.html$|(?<=[^/])\.html$/, "");
  return page === address || pathOf(site, page) === null ? null : page;
}

/** The path in the folder, with its trailing slash if it has one; null for an unsafe path. It is decoded once, and each
 * part must be a plain name. */
function pathOf(site: Site, address: string): string | null {
  const path = decoded(address);
  if (path === null || CONTROL.test(path) || !path.startsWith(site.baseUrl)) return null;
  const parts = path.slice(site.baseUrl.length).split("/");
  const isFolder = parts.at(-1) === "";
  return (isFolder ? parts.slice(0, -1) : parts).every(isPlain) ? parts.join("/") : null;
}

/** Dot files are not served, except for `.well-known`. */
function isPlain(part: string): boolean {
  return part === ".well-known" || /^[^.]/.test(part);
}

function decoded(address: string): string | null {
  try {
    return decodeURIComponent(address);
  } catch {
    return null;
  }
}

async function find(site: Site, path: string): Promise<Found | null> {
  const page = path.replace(/\/$/, "");
  const candidates = [...(page === path ? [path] : []), `${page}.html`, `${page}/index.html`];
  for (const candidate of path === "" ? ["index.html"] : candidates) {
    const found = await opened(site, candidate);
    if (found) return found;
  }
  return null;
}

/** Only a file that is in the folder once all links are resolved. */
async function opened(site: Site, path: string): Promise<Found | null> {
  try {
    const real = await realpath(join(site.folder, path));
    if (!real.startsWith(site.folder + sep)) return null;
    const file = await open(real, constants.O_RDONLY | constants.O_NONBLOCK); // a pipe would wait for its writer
    const stats = await file.stat();
    if (stats.isFile()) return { file, stats, path };
    await file.close();
  } catch {
    /* Not there, or not for us: the same to a reader. */
  }
  return null;
}

async function send(
  { file, stats, path }: Found, status: number, request: IncomingMessage, response: ServerResponse,
): Promise<void> {
  const tag = tagOf(stats);
  response.setHeader("ETag", tag);
  response.setHeader("Cache-Control", HASHED.test(path) ? "public, max-age=31536000, immutable" : "no-cache");
  const isKnown = status === 200 && isAmong(tag, request.headers["if-none-match"]);
  const part = status === 200 ? partOf(stats.size, tag, request) : null;
  const { start, end } = part ?? { start: 0, end: stats.size - 1 };
  if (!isKnown) {
    response.setHeader("Content-Type", TYPES[extname(path).toLowerCase()] ?? "application/octet-stream");
    response.setHeader("Content-Length", end - start + 1);
    response.setHeader("Accept-Ranges", "bytes");
    if (part) response.setHeader("Content-Range", `bytes ${start}-${end}/${stats.size}`);
  }
  response.writeHead(isKnown ? 304 : part ? 206 : status);
  if (isKnown || request.method === "HEAD" || stats.size === 0) {
    response.end();
    return file.close();
  }
  await pipeline(file.createReadStream({ start, end }), response);
}

/** Range requests, which Safari needs for media. Null means the whole file: for several ranges, for an invalid range, and
 * if the file has changed since the last range. */
function partOf(size: number, tag: string, { headers }: IncomingMessage): { start: number; end: number } | null {
  const [, from = "", to = ""] = /^bytes=(\d*)-(\d*)$/.exec(headers.range ?? "") ?? [];
  if (from + to === "" || (headers["if-range"] ?? tag) !== tag) return null;
  const start = from === "" ? Math.max(0, size - Number(to)) : Number(from);
  const end = from === "" || to === "" ? size - 1 : Math.min(Number(to), size - 1);
  return start <= end ? { start, end } : null;
}

/** With the time of the last change of any kind: a build in a container may give all files of all editions one time. */
function tagOf({ size, mtimeMs, ctimeMs }: Stats): string {
  return `"${[size, mtimeMs, ctimeMs].map((figure) => Math.round(figure).toString(36)).join("-")}"`;
}

/** Weak ETags match too: proxies weaken them when they compress. */
function isAmong(tag: string, given: string | undefined): boolean {
  return (given ?? "").split(",").some((one) => one.trim() === "*" || one.trim().replace(/^W\//, "") === tag);
}

function redirect(response: ServerResponse, address: string, query: string | undefined): void {
  response.setHeader("Location", query ? `${address}?${query}` : address);
  say(response, 302, "This page has another address.");
}

function say(response: ServerResponse, status: number, text: string): void {
  response.writeHead(status, { "Content-Type": "text/plain; charset=utf-8" });
  response.end(`${text}\n`);
}
