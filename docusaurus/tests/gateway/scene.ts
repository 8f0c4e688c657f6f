/** A gateway in a process of its own, an engine that does what a test tells it to, and readers who send what no browser would. */
import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, request, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from "node:http";
import { connect, type AddressInfo, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

export const KEY = "aff_test_0000_of-this-test-alone";
export const QUESTION = JSON.stringify({ query: "What does an IMU measure?" });
const GONE_MS = 3_000; // well before the gateway's own clocks end a question: what is gone by then was noticed
const PROGRAM = fileURLToPath(new URL("../../src/gateway/main.js", import.meta.url));

/** What was begun in a test ends with it. */
export interface Test {
  after: (undo: () => unknown) => void;
}

export interface Heard {
  method: string | undefined;
  url: string | undefined;
  headers: IncomingHttpHeaders;
  body: string;
}

export interface EngineDouble {
  url: string;
  heard: Heard[];
  /** Called with each question once it has been read. */
  answer: (response: ServerResponse, request: IncomingMessage) => void;
}

export interface Gateway {
  url: string;
  process: ChildProcess;
  /** Everything it has printed, errors too. */
  printed: () => string;
  /** The next line of its log for which this holds, also one that is there already. */
  line: (holds: (line: Record<string, unknown>) => boolean) => Promise<Record<string, unknown>>;
}

export interface Told {
  status: number;
  headers: IncomingHttpHeaders;
  text: string;
}

export function answered(response: ServerResponse, headers: Record<string, string> = {}): void {
  response.writeHead(200, { "Content-Type": "application/json", ...headers });
  response.end('{"outcome":"answered"}');
}

export async function engineDouble(test: Test): Promise<EngineDouble> {
  const double: EngineDouble = { url: "", heard: [], answer: (response) => answered(response) };
  const server = createServer((request, response) => {
    text(request).then((body) => {
      const { method, url, headers } = request;
      double.heard.push({ method, url, headers, body });
      double.answer(response, request);
    }, () => undefined);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => (server.closeAllConnections(), server.close()));
  double.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return double;
}

export async function startGateway(
  test: Test, flags: readonly string[], environment: Record<string, string> = {},
): Promise<Gateway> {
  const child = spawn(process.execPath, [PROGRAM, "--port=0", ...flags], {
    env: { PATH: process.env.PATH, AFFIDAVIT_KEY: KEY, ...environment },
    stdio: ["ignore", "pipe", "pipe"],
  });
  test.after(() => child.kill("SIGKILL"));
  const lines: string[] = [];
  const reading = createInterface(child.stdout);
  reading.on("line", (line) => lines.push(line));
  createInterface(child.stderr).on("line", (line) => lines.push(line));
  const gateway: Gateway = {
    url: "",
    process: child,
    printed: () => lines.join("\n"),
    async line(holds) {
      for (let at = 0; ; at++) {
        while (at >= lines.length) await once(reading, "line", { signal: AbortSignal.timeout(20_000) });
        const line = JSON.parse(lines[at] ?? "{}") as Record<string, unknown>;
        if (holds(line)) return line;
      }
    },
  };
  const failed = once(child, "exit").then(() => { throw new Error(`The gateway ended: ${gateway.printed()}`); });
  const ready = await Promise.race([gateway.line((line) => line.event === "ready"), failed]);
  failed.catch(() => undefined);
  gateway.url = String(ready.url).replace(/\/$/, "");
  return gateway;
}

/** Of a gateway that is expected not to start. */
export async function runGateway(
  flags: readonly string[], environment: Record<string, string> = {},
): Promise<{ code: number | null; out: string; errors: string }> {
  const child = spawn(process.execPath, [PROGRAM, ...flags], { env: { PATH: process.env.PATH, ...environment } });
  const [out, errors, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "exit")]);
  return { code: code as number | null, out, errors };
}

/** As a page of the site asks, unless other headers are given; null takes one away. */
export async function ask(
  url: string, body: string | Buffer = QUESTION, headers: Record<string, string | null> = {},
): Promise<Told> {
  const asking = beginAsking(url, headers);
  asking.end(body);
  const [response] = (await once(asking, "response")) as [IncomingMessage];
  return { status: response.statusCode ?? 0, headers: response.headers, text: await text(response) };
}

export function beginAsking(url: string, headers: Record<string, string | null> = {}) {
  const named = { "Origin": url, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json", ...headers };
  const given = Object.fromEntries(Object.entries(named).filter(([, value]) => value !== null)) as Record<string, string>;
  const asking = request(`${url}/ask`, { method: "POST", headers: given, agent: false });
  asking.on("error", () => undefined); // what has to arrive is awaited
  return asking;
}

export async function get(url: string, path: string, headers: Record<string, string> = {}, method = "GET"): Promise<Told> {
  const { hostname, port } = new URL(url);
  const getting = request({ hostname, port, path, method, headers, agent: false }).end(); // the path as it is written
  const [response] = (await once(getting, "response")) as [IncomingMessage];
  return { status: response.statusCode ?? 0, headers: response.headers, text: await text(response) };
}

/** Bytes as they are, and all that comes back until the other side closes. */
export async function raw(url: string, bytes: string): Promise<string> {
  const socket = line(url);
  socket.write(bytes);
  return text(socket);
}

export function line(url: string): Socket {
  const { hostname, port } = new URL(url);
  return connect(Number(port), hostname);
}

/** That nobody waits for its answer any more. */
export async function goneSoon(answer: ServerResponse): Promise<void> {
  await once(answer, "close", { signal: AbortSignal.timeout(GONE_MS) });
  assert.equal(answer.writableFinished, false);
}

export function folder(test: Test): string {
  const path = mkdtempSync(join(tmpdir(), "affidavit-gateway-"));
  test.after(() => rmSync(path, { recursive: true }));
  return path;
}

export function problemOf(told: Told): Record<string, unknown> {
  return JSON.parse(told.text) as Record<string, unknown>;
}

/** At least that. */
export function assertHas(actual: Record<string, unknown>, expected: Record<string, unknown>): void {
  const part = Object.fromEntries(Object.keys(expected).map((name) => [name, actual[name]]));
  assert.deepEqual(part, expected);
}
