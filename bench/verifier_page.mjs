// Drops a package on the verifier page, and prints after how many seconds it is VALID. bench/verifier_page.py sets the environment.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const { VERIFIER_PAGE, VERIFIER_PACKAGE, VERIFIER_KEYS, VERIFIER_RECORDS, VERIFIER_PLUGIN, E2E_BROWSER, CHROMIUM } = process.env;
const { chromium, firefox } = createRequire(path.join(VERIFIER_PLUGIN, "package.json"))("playwright-core");
const browser = E2E_BROWSER === "firefox"
  ? await firefox.launch({ channel: "moz-firefox", executablePath: path.join(VERIFIER_PLUGIN, "e2e/firefox.mjs") })
  : await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage();
await page.goto(pathToFileURL(VERIFIER_PAGE).href);
await page.locator("#keys").fill(VERIFIER_KEYS);
const began = performance.now();
await page.locator("#evidence").setInputFiles(VERIFIER_PACKAGE);
const panel = page.locator(".panel");
await panel.waitFor({ timeout: 3_600_000 });
const seconds = (performance.now() - began) / 1000;
assert.equal(await panel.getAttribute("data-verdict"), "VALID", await panel.innerText());
assert.match(await panel.innerText(), new RegExp(`${VERIFIER_RECORDS} checked`));
await browser.close();
console.log(seconds.toFixed(1));
