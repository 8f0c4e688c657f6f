import assert from "node:assert/strict";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { ask, events, type Hearing, type Problem, type Sentence } from "../../src/client/stream.js";

const EVENTS = "text/event-stream; charset=utf-8";
const QUESTION = { query: "What is gait?", selected_text: null };
const DONE = { outcome: "answered", reason: null, answer: "Gait is …", citations: [], nearest: [], confidence_level: "high" };
const SENTENCE = { text: "Gait is a pattern — Gängigkeit 🚶.", citations: [] };

const browser = { onLine: true };
Object.defineProperty(globalThis, "navigator", { value: browser, configurable: true });

function said(name: string, data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

async function asked(context: TestContext, reply: RequestListener, left = new AbortController().signal) {
  const server = createServer(reply).listen(0, "127.0.0.1");
  await new Promise((ready) => server.once("listening", ready));
  context.after(() => { server.closeAllConnections(); server.close(); });
  const heard: Sentence[] = [];
  const hearing: Hearing = { sources: () => undefined, sentence: (sentence) => heard.push(sentence) };
  const { port } = server.address() as AddressInfo;
  const outcome = await ask(`http://127.0.0.1:${port}/ask`, QUESTION, hearing, left);
  return { outcome, heard };
}

function streaming(...parts: string[]): RequestListener {
  return (_, response) => {
    response.writeHead(200, { "Content-Type": EVENTS });
    for (const part of parts) response.write(part);
    response.end();
  };
}

function refusing(status: number, type: string, body: string, headers = {}): RequestListener {
  return (_, response) => { response.writeHead(status, { "Content-Type": type, ...headers }).end(body); };
}

function problem(error_type: string, more = {}): string {
  return JSON.stringify({
    title: "T", status: 503, detail: "Safe words.", user_safe_message: "Safe words.", error_type, retryable: true,
    request_id: "r-1", ...more,
  });
}

// Seen red with a decoder made anew for each piece.
test("events are the same wherever the network cuts them", async () => {
  for (const lineEnd of ["\n", "\r\n"]) {
    const text = `: keep alive\n\n${said("sentence", SENTENCE)}${said("done", DONE)}`.replaceAll("\n", lineEnd);
    const bytes = new TextEncoder().encode(text);
    for (const size of [1, 2, 3, 7, bytes.length]) {
      const found = [];
      for await (const event of events(inPieces(bytes, size))) found.push(event);
      assert.deepEqual(found, [
        { name: "sentence", data: JSON.stringify(SENTENCE) }, { name: "done", data: JSON.stringify(DONE) },
      ]);
    }
  }
});

function inPieces(bytes: Uint8Array, size: number): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
      controller.close();
    },
  });
}

test("sentences are heard as they come and the last word is the answer", async (context) => {
  const { outcome, heard } = await asked(context, streaming(said("sources", { sources: [] }), said("sentence", SENTENCE), said("done", DONE)));
  assert.equal(outcome.outcome, "answered");
  assert.deepEqual(heard, [SENTENCE]);
});

test("the question goes out as it is and asks for events", async (context) => {
  let got: unknown;
  await asked(context, async (request, response) => {
    const chunks = await request.toArray();
    got = [request.method, request.headers.accept?.split(",")[0], JSON.parse(Buffer.concat(chunks).toString()), request.headers.authorization];
    response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(DONE));
  });
  assert.deepEqual(got, ["POST", "text/event-stream", QUESTION, undefined]);
});

// Seen red with `done` of the reader taken for the end of the answer.
test("a stream that ends before its last word is a lost connection, never an answer", async (context) => {
  const { outcome, heard } = await asked(context, streaming(said("sentence", SENTENCE)));
  assert.deepEqual(outcome, { outcome: "failed", kind: "cut", retryable: true });
  assert.equal(heard.length, 1);
});

test("a last word that was cut in its middle is a lost connection", async (context) => {
  const { outcome } = await asked(context, streaming(said("sentence", SENTENCE), said("done", DONE).slice(0, -20)));
  assert.equal((outcome as Problem).kind, "cut");
});

test("a connection that is torn is a lost connection", async (context) => {
  const { outcome } = await asked(context, (_, response) => {
    response.writeHead(200, { "Content-Type": EVENTS });
    response.write(said("sentence", SENTENCE), () => response.destroy());
  });
  assert.equal((outcome as Problem).kind, "cut");
});

test("what follows the last word is not heard", async (context) => {
  const { heard } = await asked(context, streaming(said("done", DONE), said("sentence", SENTENCE)));
  assert.deepEqual(heard, []);
});

for (const body of [{}, { outcome: "certainly", answer: "x" }, { outcome: "answered" }, null, [], "answered"]) {
  test(`a last word that is no answer is none: ${JSON.stringify(body)}`, async (context) => {
    const { outcome } = await asked(context, streaming(said("done", body)));
    assert.equal((outcome as Problem).kind, "unreadable");
  });
}

for (const kind of ["validation", "auth", "rate_limit", "network", "database", "llm", "timeout", "audit", "unknown"]) {
  test(`a problem of the type ${kind} keeps its type, its safe words and its request id`, async (context) => {
    const expected = { outcome: "failed", kind, detail: "Safe words.", retryable: true, requestId: "r-1" };
    const whole = await asked(context, refusing(503, "application/problem+json", problem(kind)));
    assert.deepEqual(whole.outcome, expected);
    const streamed = await asked(context, streaming(said("sentence", SENTENCE), said("error", JSON.parse(problem(kind)))));
    assert.deepEqual(streamed.outcome, expected);
  });
}

test("a type of problem that is not known yet is unknown", async (context) => {
  const { outcome } = await asked(context, refusing(503, "application/problem+json", problem("plague", { retryable: false })));
  assert.deepEqual([(outcome as Problem).kind, (outcome as Problem).retryable], ["unknown", false]);
});

test("Retry-After is read as seconds and as a date", async (context) => {
  const inSeconds = await asked(context, refusing(429, "application/problem+json", problem("rate_limit"), { "Retry-After": "42" }));
  assert.equal((inSeconds.outcome as Problem).waitS, 42);
  const date = new Date(Date.now() + 90_000).toUTCString();
  const asDate = await asked(context, refusing(429, "application/problem+json", problem("rate_limit"), { "Retry-After": date }));
  assert.ok(Math.abs((asDate.outcome as Problem).waitS! - 90) <= 2);
  const nonsense = await asked(context, refusing(429, "application/problem+json", problem("rate_limit"), { "Retry-After": "soon" }));
  assert.equal((nonsense.outcome as Problem).waitS, undefined);
});

for (const [status, kind] of [[404, "unreadable"], [405, "unreadable"], [413, "validation"], [429, "rate_limit"], [502, "unreachable"], [504, "unreachable"]] as const) {
  test(`a page of HTML with status ${status} is ${kind}`, async (context) => {
    const { outcome } = await asked(context, refusing(status, "text/html", "<h1>Sorry</h1>"));
    assert.equal((outcome as Problem).kind, kind);
  });
}

test("a site without a gateway that answers every address with its page gives no answer", async (context) => {
  const { outcome } = await asked(context, refusing(200, "text/html", "<!doctype html>"));
  assert.equal((outcome as Problem).kind, "unreadable");
});

for (const [onLine, kind] of [[true, "unreachable"], [false, "offline"]] as const) {
  test(`nobody there while the browser is ${onLine ? "online" : "offline"} is ${kind}`, async (context) => {
    context.mock.method(globalThis, "fetch", async () => { throw new TypeError("Failed to fetch"); });
    browser.onLine = onLine;
    const outcome = await ask("/ask", QUESTION, { sources() {}, sentence() {} }, new AbortController().signal);
    assert.deepEqual(outcome, { outcome: "failed", kind, retryable: true });
  });
}

// Seen red with the signal not given to fetch.
test("who leaves takes the request along", { timeout: 5_000 }, async (context) => {
  const leaving = new AbortController();
  let gone: () => void;
  const wasAborted = new Promise<void>((resolve) => { gone = resolve; });
  await asked(context, (_, response) => {
    response.on("close", () => gone());
    response.writeHead(200, { "Content-Type": EVENTS });
    response.write(said("sentence", SENTENCE), () => leaving.abort());
  }, leaving.signal);
  await wasAborted;
});

test("an answer that does not come in time is late", async (context) => {
  context.mock.method(AbortSignal, "timeout", () => AbortSignal.abort("timeout"));
  const { outcome } = await asked(context, () => undefined);
  assert.deepEqual(outcome, { outcome: "failed", kind: "late", retryable: true });
});
