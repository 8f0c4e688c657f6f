/** Chat widgets of the family at the gateway: their own addresses and shapes, as their pages call them, and nothing else. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdirSync, writeFileSync } from "node:fs";
import { request, type IncomingMessage } from "node:http";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { gateway } from "../../src/gateway/gateway.js";
import {
  assertHas, engineDouble, folder, get, KEY, problemOf, raw, startGateway, type EngineDouble, type Told, type Test,
} from "./scene.js";

const SESSION = "4a6f4b0e-0f2b-4d8c-9f0e-2f1d7f3c5b60";
const EVENTS = "text/event-stream";
const GENEROUS = "--per-address=1000/minute";

interface Scene {
  engine: EngineDouble;
  url: string;
}

async function scene(t: Test, flags: readonly string[] = ["--book=robots"]): Promise<Scene> {
  const engine = await engineDouble(t);
  const { url } = await startGateway(t, ["--no-site", "--engine", engine.url, GENEROUS, ...flags]);
  return { engine, url };
}

/** As a page of the site calls it, unless other headers are given; null takes one away. */
async function call(
  url: string, method: string, path: string, body?: unknown, headers: Record<string, string | null> = {},
): Promise<Told> {
  const { hostname, port } = new URL(url);
  const sent = { "Origin": url, "Sec-Fetch-Site": "same-origin", ...(body !== undefined && { "Content-Type": "application/json" }), ...headers };
  const given = Object.fromEntries(Object.entries(sent).filter(([, value]) => value !== null)) as Record<string, string>;
  const calling = request({ hostname, port, path, method, headers: given, agent: false });
  calling.end(body === undefined ? undefined : JSON.stringify(body));
  const [response] = (await once(calling, "response")) as [IncomingMessage];
  return { status: response.statusCode ?? 0, headers: response.headers, text: await text(response) };
}

/** What each widget sends, with all that it has no business to send; and what of it the engine gets. */
const EXTRAS = { user_id: SESSION, book_id: "another", conversation_history: [{ role: "user", content: "x" }], agent: "tutor" };
const POSTED: [path: string, sent: Record<string, unknown>][] = [
  ["/query", { question: "q", selected_text: "s" }],
  ["/api/query", { query: "q", selected_text: "s" }],
  ["/v1/query", { query: "q", selected_text: "s", top_k: 3, filters: { tags: ["a"] } }],
  ["/api/v1/query", { query: "q", sessionId: SESSION, topK: 3, selectedText: "s", filters: { chapter: "c" } }],
  ["/api/ask", { question: "q", top_k: 3, selected_text: "s" }],
  ["/api/ask/stream", { question: "q", top_k: 3 }],
  ["/chat/query", { query: "q", selected_text: "s", session_id: SESSION }],
  ["/chat/book/robots/query", { query: "q" }],
  ["/api/chat", { message: "q", selected_text: "s" }],
  ["/api/chat/", { message: "q" }],
  ["/ask", { question: "q", top_k: 3 }],
];

test("each contract's question reaches its own address at the engine, with the key and the book", async (t) => {
  const { engine, url } = await scene(t);
  for (const [path, sent] of POSTED) {
    engine.heard.length = 0;
    const told = await call(url, "POST", path, { ...EXTRAS, ...sent }, { Accept: "*/*" });
    assert.equal(told.status, 200, path);
    assert.equal(told.text, '{"outcome":"answered"}');
    const [heard] = engine.heard;
    assert.equal(heard?.url, path === "/v1/query" ? "/v1/books/robots/query" : path);
    assert.deepEqual(JSON.parse(heard.body), sent, path);
    assertHas(heard.headers, {
      "authorization": `Bearer ${KEY}`, "x-end-user": "anon:127.0.0.1", "accept": "*/*",
      "x-book-id": path.startsWith("/chat/book/") ? undefined : "robots",
    });
  }
});

test("what has no body is passed on without one", async (t) => {
  const { engine, url } = await scene(t);
  for (const [method, path] of [["GET", "/chapters"], ["GET", `/api/v1/chat/sessions/${SESSION}`], ["DELETE", `/api/v1/chat/sessions/${SESSION}`]]) {
    const told = await call(url, method!, path!, undefined, { "X-Session-Token": "a-token_of-64", "Content-Type": null });
    assert.equal(told.status, 200, path);
    const heard = engine.heard.at(-1);
    assert.deepEqual([heard?.method, heard?.url, heard?.body], [method, path, ""]);
    assertHas(heard!.headers, { "authorization": `Bearer ${KEY}`, "x-session-token": "a-token_of-64", "x-book-id": "robots" });
  }
});

// A browser sends no Origin with a GET to its own site. Seen red with an Origin demanded of every method.
test("a page reads the chapters of its own site, and no page of another", async (t) => {
  const { engine, url } = await scene(t);
  const own = { "Origin": null, "Referer": `${url}/docs/intro` };
  assert.equal((await call(url, "GET", "/chapters", undefined, own)).status, 200);
  assert.equal((await call(url, "GET", "/chapters", undefined, { ...own, "Sec-Fetch-Site": null })).status, 200);
  assert.equal((await call(url, "GET", "/chapters", undefined, { "Origin": null })).status, 200, "a page that sends no Referer");
  const foreign = [
    { "Origin": null, "Sec-Fetch-Site": null }, { "Origin": null, "Referer": "https://evil.example/" }, { "Origin": null, "Sec-Fetch-Site": "none" },
    { ...own, "Sec-Fetch-Site": "cross-site" }, { ...own, "Origin": "https://evil.example" }, { ...own, "Origin": "null" },
  ];
  for (const headers of foreign) assert.equal((await call(url, "GET", "/chapters", undefined, headers)).status, 403, JSON.stringify(headers));
  assert.equal((await call(url, "DELETE", `/api/v1/chat/sessions/${SESSION}`, undefined, own)).status, 403, "only a GET may come without Origin");
  assert.equal(engine.heard.length, 3);
});

// Seen red with the client's path passed on where it began with a listed one.
test("no other address leads to the engine, however it is written", async (t) => {
  const { engine, url } = await scene(t);
  const others = [
    "/v1/erasures", "/v1/../v1/erasures", "/v1/query/../erasures", "/v1/%2e%2e/v1/erasures", "/v1%2ferasures", "//v1/query", "/v1//query",
    "/v1/query/", "/V1/query", "/v1/query;x", "/v1/query%00", "/v1/query%3F", "/v1/./query", "/%761/query", "/v1\\query", "/metrics", "/readyz",
    "/openapi.json", "/v1/signing-keys", "/v1/public-tokens", `/v1/receipts/${SESSION}`, "/v1/chunks/0", `/v1/sessions/${SESSION}`,
    "/api/v1/chat/sessions/", "/api/v1/chat/sessions/..%2f..%2ferasures", `/api/v1/chat/sessions/${SESSION}/../x`,
    `/api/v1/chat/sessions/${SESSION}%2f`, "/chat/book/../query", "/chat/book/robots%2f..%2fx/query", "/", "/api",
  ];
  for (const path of others) {
    for (const method of ["POST", "GET", "DELETE", "PUT"]) {
      const told = await call(url, method, path, method === "POST" ? { query: "q" } : undefined);
      assert.equal(told.status, 404, `${method} ${path}`);
    }
  }
  assert.equal((await call(url, "POST", "/chat/book/another/query", { query: "q" })).status, 404, "another book");
  for (const line of [`POST ${engine.url}/v1/erasures HTTP/1.1`, "OPTIONS * HTTP/1.1", "CONNECT engine:80 HTTP/1.1", "POST v1/query HTTP/1.1"]) {
    const told = await raw(url, `${line}\r\nHost: ${new URL(url).host}\r\nOrigin: ${url}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}`);
    assert.match(told, /^(HTTP\/1\.1 (404|400) |$)/, line);
  }
  assert.equal(engine.heard.length, 0);
});

test("a listed address has its own methods and no others", async (t) => {
  const { engine, url } = await scene(t);
  for (const [method, path, allow] of [["GET", "/api/ask", "POST"], ["PUT", "/query", "POST"], ["POST", "/chapters", "GET"], ["PATCH", `/api/v1/chat/sessions/${SESSION}`, "GET, DELETE"]]) {
    const told = await call(url, method!, path!);
    assert.deepEqual([told.status, told.headers.allow], [405, allow], path);
  }
  assert.equal(engine.heard.length, 0);
});

// Seen red: the connection was closed without a word.
test("TRACE is refused like any other method", async (t) => {
  const { url } = await scene(t);
  for (const path of ["/ask", "/query"]) {
    const told = await raw(url, `TRACE ${path} HTTP/1.1\r\nHost: ${new URL(url).host}\r\nConnection: close\r\n\r\n`);
    assert.match(told, /^HTTP\/1\.1 405 /, path);
  }
});

// Seen red with the reader's headers passed on.
test("a widget cannot speak in the gateway's name at any address", async (t) => {
  const { engine, url } = await scene(t);
  const theirs = {
    "Authorization": "Bearer aff_theirs", "Cookie": "a=b", "X-Forwarded-For": "9.9.9.9", "Forwarded": "for=9.9.9.9", "X-Real-IP": "9.9.9.9",
    "X-End-User": `user:${SESSION}`, "X-Book-ID": "another", "X-Gateway-Reader": "9.9.9.9", "Proxy-Authorization": "Basic eA==",
    "X-Session-Token": "a b", "X-HTTP-Method-Override": "DELETE", "Referer": `${url}/docs?private=1`,
  };
  for (const [path, sent] of POSTED) await call(url, "POST", path, sent, theirs);
  await call(url, "GET", "/chapters", undefined, theirs);
  assert.equal(engine.heard.length, POSTED.length + 1);
  for (const { headers, url: path } of engine.heard) {
    assertHas(headers, { "authorization": `Bearer ${KEY}`, "x-end-user": "anon:127.0.0.1" });
    assert.ok([undefined, "robots"].includes(headers["x-book-id"] as string | undefined), path);
    for (const name of ["cookie", "x-forwarded-for", "forwarded", "x-real-ip", "x-gateway-reader", "proxy-authorization", "x-session-token", "x-http-method-override", "referer", "origin"]) {
      assert.equal(headers[name], undefined, name);
    }
  }
});

// Seen red: the gateway asked again without the session, which left two rows for one question.
test("a question in a session is asked once, and the engine begins a new one where it cannot be continued", async (t) => {
  const { engine, url } = await scene(t);
  engine.answer = (response) => response.writeHead(404, { "Content-Type": "application/problem+json" }).end('{"type":"urn:affidavit:problem:UnknownSession"}');
  for (const [path, name] of [["/ask", "session_id"], ["/v1/query", "session_id"], ["/chat/query", "session_id"], ["/api/v1/query", "sessionId"]]) {
    engine.heard.length = 0;
    assert.equal((await call(url, "POST", path!, { query: "q", [name!]: SESSION })).status, 404, path);
    assert.deepEqual(engine.heard.map(({ body, headers }) => [body, headers.prefer]), [[`{"query":"q","${name}":"${SESSION}"}`, "new-session"]]);
  }
});

const CUT_OFF = { "/query": "typed", "/api/chat": "typed", "/chat/query": "typed", "/api/v1/query": "chunk", "/api/ask": "content", "/api/ask/stream": "content", "/v1/query": "named" };

// Seen red with the named event of /v1 for all: the widgets never learn that the stream is over. And with other fields than the
// engine's own last event: a widget that appends each `chunk` showed "undefined".
test("a stream that breaks off ends in the form of its own contract", async (t) => {
  const { engine, url } = await scene(t);
  engine.answer = (response) => {
    response.writeHead(200, { "Content-Type": EVENTS });
    response.write('data: {"a":1}\n\ndata: {"te', () => response.destroy());
  };
  for (const [path, form] of Object.entries(CUT_OFF)) {
    const told = await call(url, "POST", path, { query: "q", question: "q" }, { Accept: EVENTS });
    const [first, last, ...more] = told.text.split("\n\n");
    assert.equal(first, 'data: {"a":1}');
    assert.deepEqual(more, [""]);
    assert.equal(last?.startsWith("event: "), form === "named", path);
    const said = JSON.parse(last!.replace(/^(event: error\n)?data: /, "")) as Record<string, unknown>;
    const expected = { typed: { type: "error" }, chunk: { chunk: "", done: true }, content: { content: "", done: true }, named: { status: 502, retry_after: null } }[form];
    assertHas(said, expected!);
    const shown = form === "named" ? said.detail : said.error;
    assert.match(String(shown), /connection to the assistant broke/);
  }
});

test("an engine that does not answer any more is told at once, also where the address always streams", async (t) => {
  const { engine, url } = await scene(t);
  engine.answer = (response) => response.destroy();
  const told = await call(url, "POST", "/api/ask/stream", { question: "q" }, { Accept: "*/*" });
  assert.deepEqual([told.status, problemOf(told).type], [502, "urn:affidavit:problem:Unreachable"]);
});

test("/health says whether the engine is there, without the key, and the engine is asked once for all", async (t) => {
  const { engine, url } = await scene(t);
  engine.answer = (response) => response.writeHead(200, { "Content-Type": "application/json" }).end('{"database":"ready"}');
  for (const path of ["/health", "/api/health"]) {
    const told = await get(url, path); // a monitor: no page, no Origin
    assert.equal(told.status, 200);
    assertHas(problemOf(told), { status: "healthy", services: { engine: "healthy" } });
  }
  assert.deepEqual([(await get(url, "/health", {}, "HEAD")).status, engine.heard.length], [200, 1]);
  assert.equal(engine.heard[0]?.headers.authorization, undefined);
  const down = await scene(t);
  down.engine.answer = (response) => response.destroy();
  const told = await get(down.url, "/health");
  assert.deepEqual([told.status, problemOf(told).status], [503, "unhealthy"]);
  const degraded = await scene(t);
  degraded.engine.answer = (response) => response.writeHead(200).end('{"database":"records wait","book":"ready"}');
  assert.equal(problemOf(await get(degraded.url, "/health")).status, "degraded");
});

test("the panel and a widget of spec 004 may share an address", async (t) => {
  const { engine, url } = await scene(t);
  await call(url, "POST", "/ask", { query: "q" });
  await call(url, "POST", "/ask", { question: "q" });
  await call(url, "POST", "/ask", {});
  assert.deepEqual(engine.heard.map((heard) => heard.url), ["/v1/books/robots/query", "/ask", "/v1/books/robots/query"]);
  const elsewhere = await scene(t, ["--path=/api/ask"]);
  await call(elsewhere.url, "POST", "/api/ask", { query: "q" });
  await call(elsewhere.url, "POST", "/api/ask", { question: "q" });
  assert.deepEqual(elsewhere.engine.heard.map((heard) => heard.url), ["/v1/query", "/api/ask"]);
});

// Seen red with feedback of the panel taken for a question.
test("thumbs reach the engine from the panel's own address and from their own, and are checked as questions are", async (t) => {
  const { engine, url } = await scene(t);
  const said = { query_id: SESSION, helpful: false, reason: "outdated" };
  for (const path of ["/ask?book=robots&feedback=1", "/v1/feedback"]) {
    assert.equal((await call(url, "POST", path, { ...EXTRAS, ...said, comment: "Jane" })).status, 200, path);
    const heard = engine.heard.at(-1)!;
    assert.deepEqual([heard.url, JSON.parse(heard.body)], ["/v1/feedback", said]);
    assertHas(heard.headers, { "authorization": `Bearer ${KEY}`, "x-end-user": "anon:127.0.0.1" });
    assert.equal((await call(url, "POST", path, said, { Origin: "https://evil.example" })).status, 403);
    assert.equal((await call(url, "POST", path, { ...said, comment: "x".repeat(65_536) })).status, 413);
  }
  assert.equal(engine.heard.length, 2);
});

test("thumbs count as a reader's, and cost nothing of the day", async (t) => {
  const engine = await engineDouble(t);
  const { url } = await startGateway(t, ["--no-site", "--engine", engine.url, "--per-day=1", "--per-address=4/minute"]);
  const statuses = [];
  for (const path of ["/v1/feedback", "/ask?feedback=1", "/ask", "/v1/feedback", "/ask?feedback=1"]) {
    statuses.push((await call(url, "POST", path, { query_id: SESSION, helpful: true })).status);
  }
  assert.deepEqual(statuses, [200, 200, 200, 200, 429]);
});

// --- Books and bases of a built site

function built(t: Test, files: Record<string, string>): string {
  const root = folder(t);
  for (const [name, content] of Object.entries({ "index.html": "home", ...files })) {
    mkdirSync(join(root, name, ".."), { recursive: true });
    writeFileSync(join(root, name), content);
  }
  return root;
}

function exported(baseUrl: string, id?: string): string {
  const site = JSON.stringify({ title: "A book", url: "https://me.github.io", baseUrl, trailingSlash: null });
  const book = id === undefined ? "" : ` "book": ${JSON.stringify({ id, locale: "en", version: "current" })},`;
  return `{"version": 1, "site": ${site},${book} "pages": [\n{"title": "${"x".repeat(100_000)}"}\n]}\n`;
}

// Seen red with the base "/" unless it is named: the pages were not found.
test("the base of the site is the one that its build says", async (t) => {
  const engine = await engineDouble(t);
  const site = built(t, { "docs/intro/index.html": "a page", "affidavit-content.json": exported("/book/", "robots") });
  const { url } = await startGateway(t, ["--site", site, "--engine", engine.url]);
  assert.match(url, /\/book$/);
  const { origin } = new URL(url);
  assert.deepEqual([(await get(origin, "/book/docs/intro")).text, (await get(origin, "/")).status], ["a page", 302]);
  await call(origin, "POST", "/ask", { query: "q" });
  assert.equal(engine.heard[0]?.url, "/v1/books/robots/query");
  const named = await startGateway(t, ["--site", site, "--engine", engine.url, "--base-url=/other/"]);
  assert.match(named.url, /\/other$/);
});

test("a page chooses among the books of its site's builds, and no others", async (t) => {
  const engine = await engineDouble(t);
  const site = built(t, {
    "affidavit-content-1.0.json": exported("/", "robots-1-0"), "affidavit-content.json": exported("/", "robots"),
    "de/affidavit-content.json": exported("/de/", "robots-de"), "docs/other.json": "[]",
  });
  const { url } = await startGateway(t, ["--site", site, "--engine", engine.url]);
  for (const [asked, book] of [["", "robots"], ["?book=robots-de", "robots-de"], ["?book=robots-1-0", "robots-1-0"], ["?book=another", "robots"], ["?book=../x", "robots"], ["?book=robots-de&book=x", "robots-de"]]) {
    await call(url, "POST", `/ask${asked}`, { query: "q" });
    assert.equal(engine.heard.at(-1)?.url, `/v1/books/${book}/query`, asked);
    await call(url, "POST", `/api/ask${asked}`, { question: "q" });
    assert.deepEqual([engine.heard.at(-1)?.url, engine.heard.at(-1)?.headers["x-book-id"]], ["/api/ask", book], asked);
  }
  const named = await startGateway(t, ["--site", site, "--engine", engine.url, "--book=one", "--book=two"]);
  for (const [asked, book] of [["?book=robots-de", "one"], ["?book=two", "two"]]) {
    await call(named.url, "POST", `/ask${asked}`, { query: "q" });
    assert.equal(engine.heard.at(-1)?.url, `/v1/books/${book}/query`, asked);
  }
});

test("an export of before names no book, and one that is broken stops the start", async (t) => {
  const engine = await engineDouble(t);
  const { url } = await startGateway(t, ["--site", built(t, { "affidavit-content.json": exported("/") }), "--engine", engine.url]);
  await call(url, "POST", "/ask", { query: "q" });
  assert.deepEqual([engine.heard[0]?.url, engine.heard[0]?.headers["x-book-id"]], ["/v1/query", undefined]);
  await assert.rejects(startGateway(t, ["--site", built(t, { "affidavit-content.json": "{" })]), /Build the site again/);
});

test("a site's own page of a listed name is shown to who opens it", async (t) => {
  const engine = await engineDouble(t);
  const site = built(t, { "chapters.html": "a page of chapters", "health.html": "on health", "query.html": "on queries" });
  const { url } = await startGateway(t, ["--site", site, "--engine", engine.url]);
  const page = { Accept: "text/html,application/xhtml+xml" };
  assert.equal((await get(url, "/chapters", page)).text, "a page of chapters");
  assert.equal((await get(url, "/health", page)).text, "on health");
  assert.equal((await get(url, "/query", page)).text, "on queries");
  assert.equal((await call(url, "GET", "/chapters", undefined, { Accept: "*/*" })).text, '{"outcome":"answered"}');
});

// --- Limits

test("all addresses together count as one reader's, and only questions cost of the day", async (t) => {
  const engine = await engineDouble(t);
  const { url } = await startGateway(t, ["--no-site", "--engine", engine.url, "--per-address=3/minute"]);
  const statuses = [];
  for (const path of ["/api/ask", "/chapters", "/query", "/api/chat"]) {
    statuses.push((await call(url, path === "/chapters" ? "GET" : "POST", path, path === "/chapters" ? undefined : { question: "q" })).status);
  }
  assert.deepEqual(statuses, [200, 200, 200, 429]);
  const told = await call(url, "POST", "/query", { question: "q" });
  assert.equal(problemOf(told).retry_after, Number(told.headers["retry-after"]));
  assert.equal(problemOf(told).error_type, "agent", "the type that spec 003's list has for it");
  assert.equal(problemOf(await call(url, "POST", "/api/ask", { question: "q" })).error_type, "rate_limit");
  const daily = await startGateway(t, ["--no-site", "--engine", engine.url, GENEROUS, "--per-day=1"]);
  assert.equal((await call(daily.url, "GET", "/chapters")).status, 200);
  assert.equal((await call(daily.url, "POST", "/query", { question: "q" })).status, 200);
  assert.equal((await call(daily.url, "POST", "/query", { question: "q" })).status, 429);
});

test("as a function, the gateway knows the same addresses", async (t) => {
  const engine = await engineDouble(t);
  const handle = gateway({ engine: engine.url, key: KEY, book: ["robots", "robots-de"], path: "/api/panel", addressHeader: "x-real-ip" });
  const site = "https://book.example.org";
  const headers = { "Origin": site, "Content-Type": "application/json", "X-Real-IP": "192.0.2.1" };
  const statuses = [];
  for (const path of ["/api/panel", "/api/ask?book=robots-de", "/v1/../v1/erasures", "//v1/query", "/ask/", "/v1/erasures"]) {
    statuses.push((await handle(new Request(site + path, { method: "POST", headers, body: '{"question":"q"}' }))).status);
  }
  assert.deepEqual(statuses, [200, 200, 404, 404, 404, 404]);
  assert.deepEqual(engine.heard.map((heard) => [heard.url, heard.headers["x-book-id"]]), [["/ask", "robots"], ["/api/ask", "robots-de"]]);
});
