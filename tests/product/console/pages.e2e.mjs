// Every page of the console in a real browser, light and dark, on a desk and on a phone: axe finds nothing, nothing is refused, nothing
// scrolls sideways. CONSOLE_URL and CONSOLE_KEY sign in, CONSOLE_PATHS names the pages, E2E_BROWSER is chromium or firefox, and
// E2E_SCREENSHOTS may be a folder for pictures.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { test } from "node:test";

const { CONSOLE_URL, CONSOLE_KEY, CONSOLE_PATHS, CONSOLE_PLUGIN, E2E_BROWSER, E2E_SCREENSHOTS, CHROMIUM = "/usr/bin/chromium" } = process.env;
const installed = createRequire(path.join(CONSOLE_PLUGIN, "package.json"));
const { chromium, firefox } = installed("playwright-core");
const AXE = readFileSync(installed.resolve("axe-core/axe.min.js"), "utf8");
const PATHS = JSON.parse(CONSOLE_PATHS);
const SIZES = { desk: { width: 1200, height: 900 }, phone: { width: 390, height: 844 } };
const DARK = 0, LIGHT = 1; // of Firefox's preference: Debian's cannot be told through Playwright

for (const scheme of ["light", "dark"]) test(`the pages in ${scheme}`, async (t) => {
  const browser = await started(scheme);
  try {
    for (const size of Object.keys(SIZES)) await t.test(size, (sized) => look(sized, browser, scheme, size));
  } finally {
    await browser.close();
  }
});

function started(scheme) {
  if (E2E_BROWSER !== "firefox") return chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] });
  const preferences = { "layout.css.prefers-color-scheme.content-override": scheme === "dark" ? DARK : LIGHT };
  return firefox.launch({ channel: "moz-firefox", executablePath: path.join(CONSOLE_PLUGIN, "e2e/firefox.mjs"), firefoxUserPrefs: preferences });
}

async function look(t, browser, scheme, size) {
  const context = await browser.newContext({ viewport: SIZES[size], ...(E2E_BROWSER === "firefox" ? {} : { colorScheme: scheme }) });
  const page = await context.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  await page.goto(`${CONSOLE_URL}/console`);
  await judge(page, "sign-in", scheme, size);
  await page.locator("#key").fill(CONSOLE_KEY);
  await page.locator("#key").press("Enter");
  await page.locator("nav").waitFor();
  for (const [name, address] of Object.entries(PATHS)) await t.test(name, async () => {
    complaints.length = 0; // a picture and axe put a style into the page, which the policy refuses
    await page.goto(CONSOLE_URL + address);
    assert.deepEqual(complaints, []);
    await judge(page, name, scheme, size);
  });
  await context.close();
}

async function judge(page, name, scheme, size) {
  await page.waitForFunction(() => !/loads again by itself/.test(document.body.innerText), { timeout: 120_000 });
  if (E2E_SCREENSHOTS) await page.screenshot({ path: path.join(E2E_SCREENSHOTS, `${name}-${scheme}-${size}-${E2E_BROWSER}.png`), fullPage: true });
  await page.evaluate(() => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "it scrolls sideways");
  await page.evaluate(AXE);
  const found = await page.evaluate(() => axe.run().then(({ violations }) => violations.map((each) => [each.id, each.nodes.map(({ html }) => html)])));
  assert.deepEqual(found, []);
}
