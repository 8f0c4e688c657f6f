/** The recipes as they stand in their files, run by the programs they are for. */
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmodSync, cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import {
  answered, ask, beginAsking, engineDouble, folder, get, goneSoon, KEY, problemOf, QUESTION, startGateway, type EngineDouble, type Test,
} from "./scene.js";

const PACKAGE = fileURLToPath(new URL("../../..", import.meta.url));
const COMPILED = fileURLToPath(new URL("../../src", import.meta.url));
const ORIGIN = "https://book.example.org";

interface Front {
  url: string;
  engine: EngineDouble;
}

function without(program: string): string | false {
  const found = spawnSync(program, [program === "nginx" ? "-v" : "version"]);
  return found.error ? `${program} is not installed here` : false;
}

test("nginx before the gateway", { skip: without("nginx") }, async (t) => {
  const front = await beforeGateway(t, startNginx, "nginx.conf");
  await forwards(front);
  await widgets(front);
  await pagesOf(front.url);
});

// Seen red with flush_interval -1: a reader who left was not noticed.
test("Caddy before the gateway", { skip: without("caddy") }, async (t) => {
  const front = await beforeGateway(t, startCaddy, "Caddyfile");
  await forwards(front);
  await widgets(front);
  await pagesOf(front.url);
});

// Seen red without the check of the origin, and with the reader's headers passed on.
test("nginx with the key, before the engine", { skip: without("nginx") }, async (t) => {
  const front = await beforeEngine(t);
  await forwards(front);
  await widgets(front, ["/chapters", "/health", "/api/health", "/api/v1/chat/sessions/4a6f4b0e-0f2b-4d8c-9f0e-2f1d7f3c5b60"]);
  await pagesOf(front.url);
});

test("nginx with the key turns away what the gateway would", { skip: without("nginx") }, async (t) => {
  const { url, engine } = await beforeEngine(t);
  const refused: [number, string | Buffer, Record<string, string | null>][] = [
    [403, QUESTION, { "Origin": null }],
    [403, QUESTION, { "Origin": "https://book.example.org.evil.example" }],
    [403, QUESTION, { "Sec-Fetch-Site": "cross-site" }],
    [415, QUESTION, { "Content-Type": "text/plain" }],
    [413, Buffer.alloc(65_537, " "), {}],
  ];
  for (const [status, body, headers] of refused) {
    const told = await ask(url, body, { Origin: ORIGIN, ...headers });
    assert.equal(told.status, status);
    if (status !== 415) assert.equal(problemOf(told).status, status);
  }
  assert.equal((await get(url, "/ask")).status, 405);
  assert.equal(engine.heard.length, 0);
});

test("nginx with the key lets a reader ask thirty times, and passes the engine's own limit on", { skip: without("nginx") }, async (t) => {
  const { url, engine } = await beforeEngine(t);
  engine.answer = (response) => response.writeHead(429, { "Content-Type": "application/problem+json", "Retry-After": "17" }).end("{}");
  const first = await ask(url, QUESTION, { Origin: ORIGIN });
  assert.deepEqual([first.status, first.headers["retry-after"], first.text], [429, "17", "{}"]);
  engine.answer = (response) => answered(response);
  const told = [];
  for (let count = 0; count < 40; count++) told.push(await ask(url, QUESTION, { Origin: ORIGIN }));
  const refused = told.find(({ status }) => status === 429);
  assert.ok(refused && engine.heard.length >= 30 && engine.heard.length <= 33, String(engine.heard.length));
  assert.equal(refused.headers["retry-after"], "2");
  assert.deepEqual([problemOf(refused).error_type, problemOf(refused).retry_after], ["rate_limit", 2]);
});

test("nginx with the key tells of an engine that is down in the engine's own form", { skip: without("nginx") }, async (t) => {
  const { url, engine } = await beforeEngine(t);
  engine.answer = (response) => response.destroy();
  const told = await ask(url, QUESTION, { Origin: ORIGIN });
  assert.equal(told.status, 502);
  assert.equal(problemOf(told).error_type, "network");
  assert.equal(engine.heard.length, 1, "asked once");
});

test("a serverless function in five lines", async (t) => {
  const engine = await engineDouble(t);
  const url = await startFunction(t, engine.url);
  await forwards({ url, engine });
});

/** What every way to the engine has to do. */
async function forwards({ url, engine }: Front): Promise<void> {
  engine.answer = (response, request) => answered(response, { "X-Receipt": "{}", "X-Echo": request.headers.authorization ?? "" });
  const told = await ask(url, QUESTION, { "Origin": ORIGIN, "X-Forwarded-For": "9.9.9.9", "X-End-User": "anon:9.9.9.9", "Authorization": "Bearer x", "Cookie": "a=b" });
  assert.equal(told.status, 200);
  assert.equal(told.headers["x-receipt"], "{}");
  const [heard] = engine.heard;
  assert.equal(heard?.url, "/v1/books/my-book/query");
  assert.equal(heard.body, QUESTION);
  assert.equal(heard.headers.authorization, `Bearer ${KEY}`);
  assert.equal(heard.headers["x-end-user"], "anon:127.0.0.1");
  assert.equal(heard.headers.prefer, "new-session"); // seen red in nginx-engine.conf
  assert.deepEqual([heard.headers["x-forwarded-for"], heard.headers.cookie], [undefined, undefined]);
  assert.equal((await ask(url, QUESTION, { Origin: "https://evil.example" })).status, 403);
  assert.equal(engine.heard.length, 1);
  await streams(url, engine);
}

/** Other chat widgets ask at their own addresses; what does not ask is not on the list of every recipe. */
async function widgets({ url, engine }: Front, unlisted: readonly string[] = []): Promise<void> {
  engine.answer = (response) => answered(response);
  for (const path of ["/query", "/api/query", "/api/ask", "/api/ask/stream", "/api/chat", "/api/v1/query", "/chat/query"]) {
    const told = await fetch(url + path, { method: "POST", headers: { Origin: ORIGIN, "Content-Type": "application/json" }, body: '{"question":"q"}' });
    assert.equal(told.status, 200, path);
    const heard = engine.heard.at(-1);
    assert.deepEqual([heard?.url, heard?.headers["x-book-id"], heard?.headers.authorization], [path, "my-book", `Bearer ${KEY}`]);
  }
  for (const path of ["/v1/feedback", "/ask?book=my-book&feedback=1"]) {
    await fetch(url + path, { method: "POST", headers: { Origin: ORIGIN, "Content-Type": "application/json" }, body: '{"helpful":true}' });
    assert.deepEqual([engine.heard.at(-1)?.url, engine.heard.at(-1)?.body], ["/v1/feedback", '{"helpful":true}'], path);
  }
  const count = engine.heard.length;
  for (const path of ["/v1/erasures", "/v1/query/../erasures", "/api/ask/../../v1/erasures", "/api//ask%2f..%2f..%2fv1/erasures", "//v1/erasures", ...unlisted]) {
    assert.equal((await get(url, path)).status, 404, path);
  }
  assert.equal(engine.heard.length, count);
}

/** Each event arrives before the next is sent; and who leaves in between takes the question along. */
async function streams(url: string, engine: EngineDouble): Promise<void> {
  const arrived = new Promise<ServerResponse>((resolve) => (engine.answer = resolve));
  const asking = beginAsking(url, { "Origin": ORIGIN, "Accept": "text/event-stream", "Accept-Encoding": "gzip, br" });
  asking.end(QUESTION);
  const upstream = await arrived;
  upstream.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform" });
  upstream.write("event: sources\ndata: {}\n\n");
  const [response] = (await once(asking, "response")) as [IncomingMessage];
  response.setEncoding("utf8");
  assert.equal((await once(response, "data"))[0], "event: sources\ndata: {}\n\n");
  upstream.write("event: sentence\ndata: {}\n\n");
  assert.equal((await once(response, "data"))[0], "event: sentence\ndata: {}\n\n");
  const gone = goneSoon(upstream);
  response.on("error", () => undefined);
  asking.destroy();
  await gone;
}

async function pagesOf(url: string): Promise<void> {
  const shown: Record<string, [number, string]> = {
    "/": [200, "home"], "/docs/intro": [200, "a page"], "/docs/intro/": [200, "a page"], "/docs/plain": [200, "plain"],
    "/nothing": [404, "not here"], "/.env": [404, "not here"], "/docs/.env": [404, "not here"], "/.well-known/x": [200, "x"],
  };
  for (const [path, expected] of Object.entries(shown)) {
    const told = await get(url, path);
    const followed = told.status === 301 || told.status === 308 ? await get(url, String(told.headers.location).replace(url, "")) : told;
    assert.deepEqual([followed.status, followed.text], expected, path);
  }
}

type Start = (test: Test, recipe: string, root: string) => Promise<string>;

async function beforeGateway(t: Test, start: Start, name: string): Promise<Front> {
  const engine = await engineDouble(t);
  const flags = ["--no-site", "--engine", engine.url, "--book=my-book", "--trusted-proxy=127.0.0.1", `--allowed-origin=${ORIGIN}`];
  const gateway = await startGateway(t, flags);
  const recipe = changed(read(name), { "127.0.0.1:3300": new URL(gateway.url).host });
  return { engine, url: await start(t, recipe, built(t)) };
}

async function beforeEngine(t: Test): Promise<Front> {
  const engine = await engineDouble(t);
  const key = join(folder(t), "affidavit-key.conf");
  writeFileSync(key, `proxy_set_header Authorization "Bearer ${KEY}";\n`);
  chmodSync(key, 0o600);
  const recipe = changed(read("nginx-engine.conf"), { "127.0.0.1:8000": new URL(engine.url).host, "/etc/nginx/affidavit-key.conf": key });
  return { engine, url: await startNginx(t, recipe, built(t)) };
}

async function startNginx(t: Test, recipe: string, root: string): Promise<string> {
  const place = folder(t);
  const port = await freePort();
  writeFileSync(join(place, "site.conf"), changed(recipe, { "listen 80": `listen 127.0.0.1:${port}`, "/var/www/book": root }));
  const folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((name) => `${name}_temp_path ${place}/${name};`);
  writeFileSync(join(place, "nginx.conf"), `
    daemon off; ${process.getuid?.() === 0 ? "user root;" : ""} worker_processes 1; pid ${place}/nginx.pid; error_log stderr notice;
    events {}
    http { access_log off; ${folders.join(" ")} include ${place}/site.conf; }`);
  await startProgram(t, "nginx", ["-p", place, "-c", join(place, "nginx.conf")], /start worker process /);
  return `http://127.0.0.1:${port}`;
}

async function startCaddy(t: Test, recipe: string, root: string): Promise<string> {
  const place = folder(t);
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const ours = changed(recipe, { "book.example.org {": `${url} {`, "/var/www/book": root });
  writeFileSync(join(place, "Caddyfile"), `{\n\tadmin off\n\tauto_https off\n}\n${ours}`);
  await startProgram(t, "caddy", ["run", "--config", join(place, "Caddyfile")], /serving initial configuration/, { HOME: place });
  return url;
}

async function startProgram(t: Test, name: string, args: string[], ready: RegExp, environment: Record<string, string> = {}): Promise<void> {
  const child = spawn(name, args, { env: { PATH: process.env.PATH, ...environment }, stdio: ["ignore", "ignore", "pipe"] });
  t.after(() => child.kill());
  const said: string[] = [];
  for await (const line of createInterface(child.stderr)) {
    said.push(line);
    if (ready.test(line)) return void child.stderr.resume();
  }
  throw new Error(`${name} did not start: ${said.join("\n")}`);
}

/** A platform in miniature: it writes the reader's address, calls the function, and cancels what nobody waits for. */
async function startFunction(t: Test, engine: string): Promise<string> {
  const place = folder(t);
  const installed = join(place, "node_modules", "docusaurus-plugin-affidavit");
  mkdirSync(installed, { recursive: true });
  cpSync(join(PACKAGE, "package.json"), join(installed, "package.json"));
  symlinkSync(COMPILED, join(installed, "lib"));
  cpSync(join(PACKAGE, "recipes", "function.js"), join(place, "ask.mjs"));
  Object.assign(process.env, { AFFIDAVIT_ENGINE: engine, AFFIDAVIT_KEY: KEY });
  const { POST } = (await import(pathToFileURL(join(place, "ask.mjs")).href)) as { POST: (request: Request) => Promise<Response> };
  const server = createServer((request, response) => void call(POST, request, response)).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => (server.closeAllConnections(), server.close()));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function call(handler: (request: Request) => Promise<Response>, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const headers = new Headers(request.headers as Record<string, string>);
  headers.set("Host", new URL(ORIGIN).host);
  headers.set("X-Real-IP", String(request.socket.remoteAddress));
  const answer = await handler(new Request(`${ORIGIN}/api/ask`, { method: "POST", headers, body: Readable.toWeb(request), duplex: "half" } as RequestInit));
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  const reader = answer.body?.getReader();
  response.once("close", () => void reader?.cancel());
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) response.write(part.value);
  response.end();
}

function built(t: Test): string {
  const root = folder(t);
  const files = {
    "index.html": "home", "404.html": "not here", "docs/intro/index.html": "a page", "docs/plain.html": "plain",
    ".env": "secret", "docs/.env": "secret", ".well-known/x": "x",
  };
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(join(root, name, ".."), { recursive: true });
    writeFileSync(join(root, name), content);
  }
  return root;
}

function read(name: string): string {
  return readFileSync(join(PACKAGE, "recipes", name), "utf8");
}

/** A recipe changes only where it says that it is to be changed. */
function changed(recipe: string, values: Record<string, string>): string {
  return Object.entries(values).reduce((text, [from, to]) => {
    assert.ok(text.includes(from), `The recipe has no ${from}`);
    return text.replaceAll(from, to);
  }, recipe);
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  await once(server.close(), "close");
  return port;
}
