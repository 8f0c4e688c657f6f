/** How long anybody is waited for. All at once, for they are slow. */
import assert from "node:assert/strict";
import type { ServerResponse } from "node:http";
import { describe, test } from "node:test";
import { ask, assertHas, engineDouble, problemOf, raw, startGateway, type EngineDouble, type Test } from "./scene.js";

async function scene(test: Test): Promise<{ engine: EngineDouble; url: string }> {
  const engine = await engineDouble(test);
  const { url } = await startGateway(test, ["--no-site", "--engine", engine.url]);
  return { engine, url };
}

function streaming(response: ServerResponse): ServerResponse {
  response.writeHead(200, { "Content-Type": "text/event-stream; charset=utf-8" });
  return response;
}

describe("waiting", { concurrency: true, timeout: 40_000 }, () => {
  // Seen red with headersTimeout: 0.
  test("who sends headers slowly is cut off after 10 s", async (t) => {
    const { url } = await scene(t);
    const startedMs = Date.now();
    assert.match(await raw(url, "POST /ask HTTP/1.1\r\nHost: x\r\nX-Slow: "), /^HTTP\/1\.1 408 /);
    assert.ok(Date.now() - startedMs < 14_000, "sooner than a body");
  });

  // Seen red with requestTimeout: 0.
  test("who sends a body slowly is cut off after 15 s", async (t) => {
    const { engine, url } = await scene(t);
    const head = `POST /ask HTTP/1.1\r\nHost: ${new URL(url).host}\r\nOrigin: ${url}\r\nContent-Type: application/json\r\n`;
    assert.match(await raw(url, `${head}Content-Length: 100\r\n\r\n{`), /^HTTP\/1\.1 408 /);
    assert.equal(engine.heard.length, 0);
  });

  // Seen red without the clock.
  test("an engine that hangs is given 7 s", async (t) => {
    const { engine, url } = await scene(t);
    const gone = new Promise((resolve) => (engine.answer = (response) => response.once("close", resolve)));
    const told = await ask(url);
    assert.equal(told.status, 504);
    assertHas(problemOf(told), { error_type: "timeout", retryable: true });
    await gone;
  });

  // Seen red with the clock stopped at the first byte.
  test("an engine that stalls in a stream is given 15 s, and the reader a problem that can be shown", async (t) => {
    const { engine, url } = await scene(t);
    engine.answer = (response) => streaming(response).write("event: sources\ndata: {}\n\nevent: sent");
    const told = await ask(url);
    assert.match(told.text, /^event: sources\ndata: \{\}\n\nevent: error\ndata: \{.*"error_type":"timeout".*\}\n\n$/);
  });
});
