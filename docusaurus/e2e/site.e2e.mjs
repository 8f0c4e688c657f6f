// What the plugin does to a site: it serves whole, keeps its own parts, and gives no secret away.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { ask, BUILD, KEY, openPanel, reader, shoot, startBrowser, startGateway, startRecorder, WATERING } from "./scene.mjs";

const SECRETS = [KEY, "aff_"];

let browser;
before(async () => (browser = await startBrowser()));
after(() => browser.close());

for (const locale of ["", "de/"]) {
  test(`every page of the export is served, with all its anchors: /book/${locale}`, async (t) => {
    const origin = await startGateway(t);
    const { pages } = JSON.parse(readFileSync(path.join(BUILD, locale, "affidavit-content.json"), "utf8"));
    for (const { permalink, sections } of pages) {
      const response = await fetch(origin + encodeURI(permalink));
      assert.equal(response.status, 200, permalink);
      const html = await response.text();
      for (const { anchor } of sections) {
        if (anchor) assert.ok(html.includes(`id=${anchor}>`) || html.includes(`id="${anchor}"`) || html.includes(`id=${anchor} `), `${permalink}#${anchor}`);
      }
    }
    assert.ok(pages.length > 10);
  });
}

test("the key is in no file of the build, and in nothing that goes to or comes from a browser", async (t) => {
  // Seen red with a gateway that says its key in a header, and with the key in a script of the build.
  const files = readdirSync(BUILD, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  for (const file of files) assertFree(readFileSync(path.join(file.parentPath, file.name), "utf8"), file.name);
  const { origin, heard } = await startRecorder(t, await startGateway(t));
  const { page } = await reader(t, browser, origin);
  await openPanel(page);
  await ask(page, WATERING);
  assert.match(heard(), /POST \/ask[^]*event: done/);
  assertFree(heard(), "what goes between browser and gateway");
});

function assertFree(text, where) {
  for (const secret of SECRETS) assert.ok(!text.includes(secret), `${secret.slice(0, 4)}… is in ${where}`);
  assert.ok(!/bearer\s+[a-z]+_/i.test(text), where);
}

test("a site's own Root stays, and so does the panel", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t));
  assert.equal(await page.locator("[data-own-root]").count(), 1);
  await openPanel(page);
});

test("Docusaurus' own search opens by its shortcut and its button, with the panel closed and open", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t));
  await page.keyboard.press("Control+k");
  await page.locator(".DocSearch-Modal").waitFor();
  await shoot(page, "search");
  await page.keyboard.press("Escape");
  await page.locator(".DocSearch-Modal").waitFor({ state: "detached" });
  await openPanel(page);
  await page.locator(".DocSearch-Button").click();
  await page.locator(".DocSearch-Modal").waitFor();
  await shoot(page, "search-over-panel");
  await page.keyboard.press("Escape");
  await page.locator(".DocSearch-Modal").waitFor({ state: "detached" });
  assert.equal(await page.getByRole("dialog", { name: "Ask the book" }).count(), 1);
  await ask(page, WATERING);
});
