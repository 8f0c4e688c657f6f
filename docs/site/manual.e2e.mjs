// Readers of the manual in a real browser. MANUAL is the address that `make docs-run` prints; tests/campaigns/test_manual_site.py
// sets it. E2E_SCREENSHOTS is a folder for pictures of what they see.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const { MANUAL, E2E_SCREENSHOTS, CHROMIUM = "/usr/bin/chromium" } = process.env;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PAGES = { index: "/", tutorial: "/tutorials/prove-an-answer", settings: "/reference/settings" };
const DESK = { width: 1280, height: 860 };
const PHONE = { width: 360, height: 740 };
const WAIT_MS = 60_000; // no promise of the engine is tested here, and the machine may be busy

let browser;
const elsewhere = [];
before(async () => {
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] });
});
after(() => browser.close());

for (const colorScheme of ["light", "dark"]) {
  for (const [name, at] of Object.entries(PAGES)) {
    test(`everybody can read ${at}, ${colorScheme}`, async (t) => {
      const { page, complaints } = await reader(t, { at, colorScheme });
      await shoot(page, `${name}-${colorScheme}`);
      await assertAccessible(page);
      assert.deepEqual(complaints, []);
    });
  }

  test(`the manual answers a question about the product, and its source leads to the page, ${colorScheme}`, async (t) => {
    const { page, complaints } = await reader(t, { at: "/", colorScheme });
    await askOfKeys(page);
    await shoot(page, `answer-${colorScheme}`);
    await assertAccessible(page);
    await page.locator('.affidavit-sources a[href^="/how-to/rotate-keys#"]').first().click();
    await page.waitForURL("**/how-to/rotate-keys#*");
    await page.getByRole("heading", { name: "Rotate keys", exact: true }).waitFor();
    await page.waitForFunction(() => CSS.highlights.get("affidavit"));
    await shoot(page, `source-${colorScheme}`);
    assert.deepEqual(complaints, []);
  });
}

test("on a phone a wide table scrolls in its box, and the page does not", async (t) => {
  // Seen red without the box around each table.
  const { page } = await reader(t, { at: PAGES.settings, viewport: PHONE });
  const [box, all] = await page.evaluate(() => [".table-box", "html"].map((selector) => {
    const { scrollWidth, clientWidth } = document.querySelector(selector);
    return scrollWidth - clientWidth;
  }));
  assert.ok(box > 0, "the table is not wide");
  assert.equal(all, 0);
  await shoot(page, "settings-phone");
  await askOfKeys(page);
  await shoot(page, "answer-phone");
});

test("no request of all these readers was to any other address", () => {
  // Seen red with a font of somebody else's server.
  assert.deepEqual(elsewhere, []);
});

async function reader(t, { at, colorScheme = "light", viewport = DESK }) {
  const context = await browser.newContext({ baseURL: MANUAL, colorScheme, viewport, reducedMotion: "reduce" });
  t.after(() => context.close());
  context.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (protocol !== "data:" && origin !== new URL(MANUAL).origin) elsewhere.push(request.url());
  });
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS);
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => message.type() === "error" && complaints.push(`${message.text()} (${message.location().url})`));
  await page.goto(at);
  await page.locator(".affidavit-button").first().waitFor({ state: "attached" }); // the panel's own, once the page can open it
  return { page, complaints };
}

/** By the button that is to be seen: in the navbar, or on a phone below. */
async function askOfKeys(page) {
  await page.getByRole("button", { name: "Ask the manual" }).locator("visible=true").click();
  await page.getByRole("dialog").waitFor();
  await page.locator("#affidavit-question").fill("How do I rotate keys?");
  await page.keyboard.press("Enter");
  await page.getByRole("status").filter({ hasText: /^Answered/ }).waitFor();
  assert.match(await page.locator(".affidavit-answer").innerText(), /affidavit (keys rotate|audit key --new)/);
}

async function assertAccessible(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(violations.flatMap(({ id, help, nodes }) => nodes.map(({ html }) => `${id}: ${help}: ${html}`)), []);
}

async function shoot(page, name) {
  if (E2E_SCREENSHOTS) await page.screenshot({ path: path.join(E2E_SCREENSHOTS, `${name}.png`) });
}
