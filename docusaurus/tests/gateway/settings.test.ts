/** How the gateway is started and stopped, and what outlives it. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { plainAddress, readerOf } from "../../src/gateway/admission/address.js";
import { DailyBudget } from "../../src/gateway/admission/budget.js";
import { Limit } from "../../src/gateway/admission/limit.js";
import { Failure } from "../../src/gateway/problems.js";
import { TrustedProxies } from "../../src/gateway/admission/proxies.js";
import { ask, beginAsking, engineDouble, folder, KEY, line, problemOf, QUESTION, runGateway, startGateway } from "./scene.js";

const DAY_MS = 86_400_000;

test("--help shows an example and needs no key", async () => {
  const { code, out } = await runGateway(["--help"]);
  assert.equal(code, 0);
  assert.match(out, /AFFIDAVIT_KEY=aff_… npx affidavit-gateway --site build/);
});

test("wrong usage ends with 2 and says what to do, and never repeats a key", async (t) => {
  const keyFile = join(folder(t), "key");
  writeFileSync(keyFile, `${KEY}\nsecond line`);
  const wrong: [string[], Record<string, string>, RegExp][] = [
    [["--bogus"], {}, /Unknown option '--bogus'/],
    [["--no-site"], {}, /There is no key/],
    [["--key", KEY], {}, /key on the command line is refused/],
    [[`--api-key=${KEY}`], {}, /key on the command line is refused/],
    [[KEY], {}, /key on the command line is refused/],
    [["--no-site"], { AFFIDAVIT_KEY: `${KEY}\nX-Bad: 1` }, /characters that no API key has/],
    [["--no-site"], { AFFIDAVIT_KEY_FILE: keyFile }, /characters that no API key has/],
    [["--no-site"], { AFFIDAVIT_KEY_FILE: "/nowhere/key" }, /ENOENT/],
    [["--site=/nowhere"], { AFFIDAVIT_KEY: KEY }, /Build the site first/],
    [["--no-site", "--port=70000"], { AFFIDAVIT_KEY: KEY }, /--port 70000/],
    [["--no-site", "--per-day=many"], { AFFIDAVIT_KEY: KEY }, /--per-day many/],
    [["--no-site", "--per-day-file=x"], { AFFIDAVIT_KEY: KEY }, /--per-day-file needs --per-day/],
    [["--no-site", "--per-address=30 per minute"], { AFFIDAVIT_KEY: KEY }, /30\/minute/],
    [["--no-site"], { AFFIDAVIT_KEY: KEY, AFFIDAVIT_GATEWAY_PERDAY: "9" }, /no setting AFFIDAVIT_GATEWAY_PERDAY/],
    [["--no-site", "--engine=engine:8000"], { AFFIDAVIT_KEY: KEY }, /http:\/\/ or https:\/\//],
    [["--no-site", "--engine=http://u:p@engine"], { AFFIDAVIT_KEY: KEY }, /not contain a user, password/],
    [["--no-site", "--book=../x"], { AFFIDAVIT_KEY: KEY }, /not a valid book id/],
    [["--no-site", "--path=ask"], { AFFIDAVIT_KEY: KEY }, /like \/ask/],
    [["--base-url=books"], { AFFIDAVIT_KEY: KEY }, /slash/],
    [["--no-site", "--trusted-proxy=10.0.0.0/99"], { AFFIDAVIT_KEY: KEY }, /is not a network/],
    [["--no-site", "--trusted-proxy=proxy"], { AFFIDAVIT_KEY: KEY }, /not an IP address/],
    [["--no-site", "--allowed-origin=https://book.example/docs"], { AFFIDAVIT_KEY: KEY }, /without a path/],
    [["--no-site", "--allowed-origin=*"], { AFFIDAVIT_KEY: KEY }, /--allowed-origin/],
  ];
  for (const [flags, environment, said] of wrong) {
    const { code, out, errors } = await runGateway(flags, environment);
    assert.equal(code, 2, flags.join(" "));
    assert.match(errors, said);
    assert.ok(!(out + errors).includes(KEY), flags.join(" "));
  }
});

test("the key may come from a file, and settings from the environment, where a flag wins", async (t) => {
  const engine = await engineDouble(t);
  const file = join(folder(t), "key");
  writeFileSync(file, `${KEY}-of-a-file\n`);
  const { url } = await startGateway(t, ["--book=robots"], {
    AFFIDAVIT_KEY: "", AFFIDAVIT_KEY_FILE: file, AFFIDAVIT_GATEWAY_NO_SITE: "yes", AFFIDAVIT_GATEWAY_ENGINE: `${engine.url}/below/`,
    AFFIDAVIT_GATEWAY_BOOK: "other", AFFIDAVIT_GATEWAY_ALLOWED_ORIGIN: "https://a.example, https://b.example",
  });
  assert.equal((await ask(url, QUESTION, { Origin: "https://b.example" })).status, 200);
  assert.equal(engine.heard[0]?.headers.authorization, `Bearer ${KEY}-of-a-file`);
  assert.equal(engine.heard[0]?.url, "/below/v1/books/robots/query");
});

test("without a book, the engine's own default is asked", async (t) => {
  const engine = await engineDouble(t);
  const { url } = await startGateway(t, ["--no-site", "--engine", engine.url]);
  await ask(url);
  assert.equal(engine.heard[0]?.url, "/v1/query");
});

// Seen red with the count kept in the process alone.
test("the day's questions are counted through a restart, and also those that failed", async (t) => {
  const engine = await engineDouble(t);
  const file = join(folder(t), "asked-today.json");
  const flags = ["--no-site", "--engine", engine.url, "--per-day=2", "--per-day-file", file];
  const first = await startGateway(t, flags);
  engine.answer = (response) => response.destroy();
  assert.equal((await ask(first.url)).status, 502);
  first.process.kill("SIGKILL");
  await once(first.process, "exit");
  const second = await startGateway(t, flags);
  assert.equal((await ask(second.url)).status, 502);
  const told = await ask(second.url);
  assert.equal(told.status, 429);
  assert.match(String(problemOf(told).detail), /come back tomorrow/);
  assert.ok(Number(told.headers["retry-after"]) > 0);
  assert.equal(engine.heard.length, 2);
});

test("the day's budget opens again at midnight, and what cannot be counted is not asked", (t) => {
  const noonMs = Date.UTC(2026, 10, 18, 12);
  const file = join(folder(t), "asked-today.json");
  const budget = new DailyBudget(1, file, noonMs);
  assert.equal(budget.waitS(noonMs), 0);
  assert.equal(budget.waitS(noonMs), 43_200);
  assert.equal(new DailyBudget(1, file, noonMs).waitS(noonMs), 43_200);
  assert.equal(budget.waitS(noonMs + DAY_MS), 0);
  assert.equal(new DailyBudget(0).waitS(noonMs), 43_200);
  writeFileSync(file, '{"day": 7}');
  assert.throws(() => new DailyBudget(1, file), /does not contain the count of a day/);
  assert.throws(() => new DailyBudget(1, "/nowhere/asked.json"), /ENOENT/);
  const away = join(folder(t), "away");
  mkdirSync(away);
  const uncounted = new DailyBudget(1, join(away, "asked-today.json"), noonMs);
  rmSync(away, { recursive: true });
  assert.throws(() => uncounted.waitS(noonMs), Failure);
});

// Seen red with a window that begins with each full minute.
test("in no minute a reader asks more often than said, and being turned away costs nothing", () => {
  const limit = new Limit("3/minute");
  const waits = [0, 30_000, 59_000, 59_500, 60_001, 61_000, 89_000, 90_001].map((nowMs) => {
    try {
      return limit.take("reader", nowMs) ?? 0;
    } catch (failure) {
      return (failure as Failure).retryAfterS;
    }
  });
  assert.deepEqual(waits, [0, 0, 0, 1, 0, 29, 1, 0]);
  limit.take("another", 61_000);
});

test("an address has one spelling, and of IPv6 the network counts", () => {
  const readers = {
    "1.2.3.4": "1.2.3.4", "::ffff:1.2.3.4": "1.2.3.4", "::FFFF:102:304": "1.2.3.4", "2001:DB8:0:0:1::1": "2001:db8::",
    "2001:db8:a:b:c:d:e:f": "2001:db8:a:b::", "::1": "::", "fe80::1%eth0": "fe80::", " 1.2.3.4 ": "1.2.3.4", "[2001:db8::1]:80": "2001:db8::",
    "1.2.3.4:80": "1.2.3.4", "1:2:3:4:5:6:7:8": "1:2:3:4::",
  };
  for (const [address, reader] of Object.entries(readers)) assert.equal(readerOf(address), reader, address);
  for (const address of ["", "unknown", "1.2.3", "1.2.3.256", "01.2.3.4.5", "1.2.3.4.", "0x7f.1", "1", ":::", "1::2::3", "g::1", "1.2.3.4, 5.6.7.8", "_hidden"]) {
    assert.equal(readerOf(address), null, address);
  }
  assert.equal(plainAddress("2001:DB8::1"), "2001:db8::1");
});

test("a proxy is trusted in every spelling of its address", () => {
  const proxies = new TrustedProxies(["10.0.0.0/8", "fd00::/8", "192.0.2.1"]);
  for (const address of ["10.1.2.3", "::ffff:10.1.2.3", "fd12::1", "192.0.2.1"]) assert.ok(proxies.includes(address), address);
  for (const address of ["11.0.0.1", "fe80::1", "192.0.2.2", "", "nonsense"]) assert.ok(!proxies.includes(address), address);
});

test("what is under way ends before the gateway does, and nothing new begins", async (t) => {
  const engine = await engineDouble(t);
  const arrived = new Promise<ServerResponse>((resolve) => (engine.answer = resolve));
  const { url, process, line: logged } = await startGateway(t, ["--no-site", "--engine", engine.url]);
  const idle = line(url);
  idle.write("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
  await once(idle, "data");
  const asking = beginAsking(url);
  asking.end(QUESTION);
  const upstream = await arrived;
  upstream.writeHead(200, { "Content-Type": "text/event-stream" }).write("event: sources\ndata: {}\n\n");
  const [response] = (await once(asking, "response")) as [IncomingMessage];
  const exited = once(process, "exit");
  process.kill("SIGTERM");
  await logged((one) => one.event === "stopping");
  const late = line(url);
  assert.match(String(((await once(late, "error"))[0] as NodeJS.ErrnoException).code), /ECONNREFUSED|ECONNRESET/);
  upstream.end("event: done\ndata: {}\n\n");
  const chunks = await response.toArray();
  assert.match(Buffer.concat(chunks).toString(), /event: done/);
  assert.deepEqual(await exited, [0, null]);
});
