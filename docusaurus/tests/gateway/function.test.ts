/** The gateway as a function: a Request goes in, a Response comes out. */
import assert from "node:assert/strict";
import type { ServerResponse } from "node:http";
import { test } from "node:test";
import { gateway, type Ended, type GatewayOptions } from "../../src/gateway/gateway.js";
import { answered, engineDouble, goneSoon, KEY, QUESTION } from "./scene.js";

const SITE = "https://book.example.org";

function question(headers: Record<string, string> = {}): Request {
  return new Request(`${SITE}/ask`, {
    method: "POST",
    headers: { "Origin": SITE, "Content-Type": "application/json", "X-Real-IP": "192.0.2.1", ...headers },
    body: QUESTION,
  });
}

function options(engine: string, more: Partial<GatewayOptions> = {}): GatewayOptions {
  return { engine, key: KEY, book: "robots", addressHeader: "x-real-ip", ...more };
}

test("a question goes in, an answer comes out, and its end is told once", async (t) => {
  const engine = await engineDouble(t);
  const ended: Ended[] = [];
  const ask = gateway(options(engine.url, { report: (one) => ended.push(one) }));
  const response = await ask(question());
  assert.equal(response.status, 200);
  assert.deepEqual(await response.json(), { outcome: "answered" });
  assert.equal(engine.heard[0]?.headers["x-end-user"], "anon:192.0.2.1");
  assert.deepEqual(ended.map(({ status, reader }) => [status, reader]), [[200, "192.0.2.1"]]);
});

test("where the platform names no address, or several, nobody is let through uncounted", async (t) => {
  const engine = await engineDouble(t);
  const ask = gateway(options(engine.url));
  for (const address of ["", "unknown", "192.0.2.1, 192.0.2.2"]) {
    assert.equal((await ask(question({ "X-Real-IP": address }))).status, 502);
  }
  assert.equal(engine.heard.length, 0);
});

test("a page of another site may not ask, though the function's own address is another than the site's", async (t) => {
  const engine = await engineDouble(t);
  const ask = gateway(options(engine.url));
  assert.equal((await ask(question({ Origin: "https://evil.example" }))).status, 403);
  const named = gateway(options(engine.url, { allowedOrigins: ["https://other.example"] }));
  assert.equal((await named(question())).status, 403);
  assert.equal((await named(question({ Origin: "https://other.example" }))).status, 200);
});

// Seen red with nothing given up when the answer is cancelled.
test("an answer that is cancelled, as platforms do when the reader leaves, is given up upstream too", async (t) => {
  const engine = await engineDouble(t);
  const arrived = new Promise<ServerResponse>((resolve) => {
    engine.answer = (response) => {
      resolve(response);
      response.writeHead(200, { "Content-Type": "text/event-stream" }).write("event: sources\ndata: {}\n\n");
    };
  });
  const response = await gateway(options(engine.url))(question());
  const reader = response.body!.getReader();
  await reader.read();
  const gone = goneSoon(await arrived);
  await reader.cancel();
  await gone;
});

test("a fault is a problem like any other, and its words stay here", async (t) => {
  const engine = await engineDouble(t);
  engine.answer = (response) => answered(response);
  const budget = { waitS: () => { throw new Error(`words with ${KEY}`); } };
  const ended: Ended[] = [];
  const response = await gateway(options(engine.url, { budget, report: (one) => ended.push(one) }))(question());
  assert.equal(response.status, 500);
  assert.ok(!(await response.text()).includes(KEY));
  assert.ok(!JSON.stringify(ended).includes(KEY));
});

test("settings that cannot work are told at once, without the key", () => {
  assert.throws(() => gateway(options("ftp://engine")), /http/);
  assert.throws(() => gateway(options("http://engine", { key: "" })), /key is empty/);
  assert.throws(() => gateway(options("http://engine", { book: "A B" })), /not a valid book id/);
  assert.throws(() => gateway(options("http://engine", { perAddress: "often" })), /30\/minute/);
});
