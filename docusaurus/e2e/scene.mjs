// A built site behind the gateway, and a reader with a real browser. The environment names the parts:
// E2E_SITE (what make-site.mjs made), E2E_ENGINE, E2E_KEY, E2E_SCREENSHOTS (a folder), E2E_BROWSER
// (chromium or firefox), and CHROMIUM and FIREFOX if they are not Debian's. The engine has the site's export ingested as the books named here.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { connect, createServer as createTcpServer } from "node:net";
import path from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { chromium, firefox } from "playwright-core";

export const BOOK = "robot-course";
export const GERMAN_BOOK = "robot-course-de";
export const KEY = given("E2E_KEY");
export const ENGINE = given("E2E_ENGINE");
export const SITE = given("E2E_SITE");
export const BUILD = path.join(SITE, "build");
export const IS_FIREFOX = process.env.E2E_BROWSER === "firefox";
const SCREENSHOTS = given("E2E_SCREENSHOTS");
const GATEWAY = path.resolve(import.meta.dirname, "../lib/gateway/main.js");
const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const WAIT_MS = 10_000; // twice what the engine promises
const PHONE = { width: 360, height: 740 };
const DESK = { width: 1280, height: 860 };

export const PAGE = "/book/docs/what-is-physical-ai";
export const WATERING = "When does the greenhouse robot water the tomatoes?";
export const OFF_TOPIC = "Who won the football world cup in 1998?";

function given(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; tests/product/test_docusaurus_plugin.py sets all that these tests need.`);
  return value;
}

/** The address of a gateway that ends with the test. */
export async function startGateway(test, { engine = ENGINE, book = BOOK, build = BUILD, flags = [] } = {}) {
  const where = ["--site", build, "--port=0", `--engine=${engine}`, ...(book ? [`--book=${book}`] : [])];
  const child = spawn(process.execPath, [GATEWAY, ...where, "--trusted-proxy=127.0.0.1", ...flags], {
    env: { PATH: process.env.PATH, AFFIDAVIT_KEY: KEY },
    stdio: ["ignore", "pipe", "inherit"],
  });
  test.after(() => child.kill());
  for await (const line of createInterface(child.stdout)) {
    const { event, url } = JSON.parse(line);
    if (event === "ready") return new URL(url).origin;
  }
  throw new Error("The gateway ended before it was ready.");
}

/** An engine whose every event comes when the test says so. */
export async function engineDouble(test) {
  const asked = Promise.withResolvers?.() ?? deferred();
  const server = createServer((request, response) => {
    void text(request).then((body) => {
      response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform" });
      const send = (event, data) => response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
      asked.resolve({ body: JSON.parse(body), headers: request.headers, send, end: () => response.end(), left: once(response, "close") });
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => (server.closeAllConnections(), server.close()));
  return { url: `http://127.0.0.1:${server.address().port}`, asked: asked.promise };
}

function deferred() {
  let resolve;
  const promise = new Promise((fulfil) => (resolve = fulfil));
  return { promise, resolve };
}

export async function startBrowser() {
  if (IS_FIREFOX) {
    return firefox.launch({ channel: "moz-firefox", executablePath: path.join(import.meta.dirname, "firefox.mjs"), firefoxUserPrefs: { "ui.prefersReducedMotion": 1 } });
  }
  return chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"],
  });
}

/** A reader on a page of the site, who sees and remembers nothing of another's. Nothing leaves this machine. */
export async function reader(test, browser, origin, { at = PAGE, dark = false, phone = false } = {}) {
  const context = await browser.newContext({
    baseURL: origin,
    viewport: phone ? PHONE : DESK,
    hasTouch: phone,
    reducedMotion: "reduce",
    extraHTTPHeaders: { "X-Forwarded-For": `2001:db8:${hex()}:${hex()}::1` }, // else all were one reader, with one limit
  });
  test.after(() => context.close());
  await context.route((url) => url.origin !== origin, (route) => route.abort());
  await context.addInitScript(remember, dark ? "dark" : "light");
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS);
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => message.type() === "error" && complaints.push(`${message.text()} (${message.location().url})`));
  await page.goto(at);
  await page.getByRole("button", { name: "Ask the book" }).or(page.getByRole("button", { name: /Das Buch fragen|اسأل الكتاب/ })).waitFor();
  return { page, context, complaints };
}

/** In the page, before its own scripts. The empty page of a new window has no storage. */
function remember(theme) {
  if (location.protocol === "http:") localStorage.setItem("theme", theme);
  Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => (globalThis.copied = text) } });
  const fetched = globalThis.fetch;
  globalThis.fetch = (url, options) => ((globalThis.asked = options?.body && JSON.parse(options.body)), fetched(url, options)); // BiDi tells no bodies
}

function hex() {
  return Math.floor(Math.random() * 0x10000).toString(16);
}

export async function openPanel(page) {
  await page.getByRole("button", { name: "Ask the book" }).click();
  await page.getByRole("dialog").waitFor();
}

/** Asks, and waits until the status line says that it is over. */
export async function ask(page, question, over = /^Answered|^The book does not|^No answer/) {
  await write(page, question);
  await page.keyboard.press("Enter");
  await page.getByRole("status").filter({ hasText: over }).waitFor();
}

/** By the keyboard: Firefox' BiDi fills fields in a way that React does not see. */
export async function write(page, question) {
  await page.locator("#affidavit-question").click();
  await page.keyboard.type(question);
}

export async function shoot(page, name) {
  await page.screenshot({ path: pictureOf(name) });
}

export function pictureOf(name) {
  mkdirSync(SCREENSHOTS, { recursive: true });
  return path.join(SCREENSHOTS, `${name}.png`);
}

/** What axe finds on the whole page, without what it finds in the site itself: themes have their own faults. */
export async function assertAccessible(page, where) {
  await page.evaluate(readFileSync(AXE, "utf8"));
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run();
    const isSites = ({ target }) => document.querySelector(target[0])?.closest("#__docusaurus") != null;
    return violations.flatMap(({ id, help, nodes }) => nodes.filter((node) => !isSites(node)).map(({ html }) => `${id}: ${help}: ${html}`));
  });
  assert.deepEqual(found, [], where);
}

/** Passes everything on, and keeps both directions as they go over the wire. */
export async function startRecorder(test, origin) {
  const heard = [];
  const server = createTcpServer((reader) => {
    const gateway = connect(Number(new URL(origin).port), "127.0.0.1");
    for (const [from, to] of [[reader, gateway], [gateway, reader]]) {
      from.on("data", (bytes) => heard.push(bytes)).on("error", () => to.destroy()).pipe(to);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => server.close());
  return { origin: `http://127.0.0.1:${server.address().port}`, heard: () => Buffer.concat(heard).toString("latin1") };
}
