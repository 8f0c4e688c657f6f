// Quotes in tabs, on sites of several Docusaurus: E2E_SMALL_SITES names their folders, separated by colons. The engine is a
// double that quotes whatever it is asked, since what it finds is tested elsewhere.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";
import { text } from "node:stream/consumers";
import { after, before, test } from "node:test";
import { ask, openPanel, reader, shoot, startBrowser, startGateway } from "./scene.mjs";

const SITES = (process.env.E2E_SMALL_SITES ?? "").split(":").filter(Boolean);
const QUOTES = [
  ["Loam keeps the water of one sunrise for three days.", "by-soil", "an open lazy tab"],
  ["In winter the tank is emptied, because ice would break it.", "by-season", "a closed tab"],
  ["Sand keeps the water of one sunrise for half a day", "by-soil", "a closed lazy tab"],
  ["Bare dunes are never watered by the robot.", "dunes", "a closed lazy tab in a closed lazy tab"],
];

let browser;
before(async () => (browser = await startBrowser()));
after(() => browser.close());

for (const site of SITES) {
  const build = path.join(site, "build");
  const { book, pages } = JSON.parse(readFileSync(path.join(build, "affidavit-content.json"), "utf8"));
  const { permalink } = pages.find(({ title }) => title === "Irrigation");

  test(`${path.basename(site)}: a question goes to the site's book, and its quote in a closed tab is shown`, async (t) => {
    // Seen red without tabs.ts.
    const engine = await quotingEngine(t, permalink);
    const origin = await startGateway(t, { engine: engine.url, book: null, build });
    const { page, complaints } = await reader(t, browser, origin, { at: permalink });
    for (const [quote, anchor, where] of QUOTES) {
      await page.goto(permalink);
      await page.reload();
      await openPanel(page);
      await ask(page, `${anchor}: ${quote}`);
      await page.locator(".affidavit-sources").getByRole("link").first().click();
      await page.locator("#__docusaurus article").getByText(quote).and(page.locator(":visible")).waitFor();
      await page.waitForFunction((start) => [...CSS.highlights.get("affidavit") ?? []].join("").startsWith(start), quote.slice(0, -1));
      assert.doesNotMatch(await page.getByRole("status").innerText(), /not found/, where);
      await shoot(page, `tabs-${path.basename(site)}-${anchor}`);
    }
    assert.deepEqual(complaints, []);
    assert.deepEqual([...engine.paths], [`/v1/books/${book.id}/query`]);
  });

  test(`${path.basename(site)}: a link opens its page, asks the question again, and leaves the site's own address`, async (t) => {
    // Seen red with the question in place of the hash router's route: the page was not found.
    const engine = await quotingEngine(t, permalink);
    const origin = await startGateway(t, { engine: engine.url, book: null, build });
    const { page, context, complaints } = await reader(t, browser, origin, { at: permalink });
    const [quote, anchor] = QUOTES[0];
    await openPanel(page);
    await ask(page, `${anchor}: ${quote}`);
    await page.getByRole("button", { name: "Copy link" }).click();
    const link = await page.evaluate(() => globalThis.copied);
    const opened = await context.newPage();
    opened.on("pageerror", (error) => complaints.push(error.message));
    await opened.goto(link);
    await opened.locator(".affidavit-answer").filter({ hasText: quote }).waitFor();
    assert.equal(opened.url(), origin + permalink);
    await opened.locator("#__docusaurus article").getByText("opens its valve at sunrise").waitFor();
    await opened.locator(".affidavit-sources").getByRole("link").first().click();
    await opened.waitForFunction((end) => location.href.endsWith(end), `${permalink}#${anchor}`);
    await opened.reload();
    await opened.locator("#__docusaurus article").getByText(quote).first().waitFor();
    assert.equal(engine.count(), 2, "a reload asks nothing");
    assert.deepEqual(complaints, []);
  });
}

async function quotingEngine(test, page) {
  const paths = new Set();
  let count = 0;
  const server = createServer((request, response) => {
    paths.add(request.url);
    count += 1;
    void text(request).then((body) => {
      const [, anchor, excerpt] = /^(.*?): (.*)$/.exec(JSON.parse(body).query);
      const place = { section: "Irrigation", chapter: "Irrigation", page: "irrigation", url: `${page}#${anchor}` };
      const citation = { ...place, n: 1, excerpt, start: 0, end: excerpt.length };
      response.writeHead(200, { "Content-Type": "application/json" });
      response.end(JSON.stringify({
        outcome: "answered", reason: null, answer: `${excerpt} [Source: Irrigation (Page irrigation) - "${excerpt}"]`,
        citations: [citation], confidence_score: 0.9, confidence_level: "high", model_used: null, nearest: [],
      }));
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => (server.closeAllConnections(), server.close()));
  return { url: `http://127.0.0.1:${server.address().port}`, paths, count: () => count };
}
