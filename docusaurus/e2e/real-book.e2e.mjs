// Somebody's real book, built and ingested as it is. E2E_REAL_SITE names what make-site.mjs made of it.
import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { ask, openPanel, reader, shoot, startBrowser, startGateway } from "./scene.mjs";

const SITE = process.env.E2E_REAL_SITE;
const BOOK = "real-book";
const QUESTIONS = ["What is a URDF file?", "What is the difference between a topic and a service in ROS 2?", "Why does sim-to-real transfer fail?"];

let browser;
before(async () => (browser = await startBrowser()));
after(() => browser.close());

test("each source of an answer opens the page at the heading, with the quote marked", { skip: !SITE && "the real book is not here" }, async (t) => {
  const origin = await startGateway(t, { book: BOOK, build: path.join(SITE, "build") });
  const { page, complaints } = await reader(t, browser, origin, { at: "/docs/intro" });
  await openPanel(page);
  let followed = 0;
  for (const question of QUESTIONS) {
    await ask(page, question);
    const sources = page.locator(".affidavit-exchange").last().locator(".affidavit-sources").getByRole("link");
    for (const link of await sources.all()) {
      const href = await link.getAttribute("href");
      await link.click();
      await page.getByRole("status").filter({ hasText: /^Opened on the page/ }).waitFor();
      assert.equal(decodeURI(await page.evaluate(() => location.pathname + location.hash)), decodeURI(href));
      // The status of the link before may still stand there, so the heading is waited for.
      await page.waitForFunction(() => !location.hash || document.getElementById(decodeURIComponent(location.hash.slice(1))));
      assert.doesNotMatch(await page.getByRole("status").innerText(), /not found there/, href);
      followed += 1;
    }
  }
  await shoot(page, "real-book");
  assert.ok(followed >= QUESTIONS.length, `${followed} sources followed`);
  assert.deepEqual(complaints, []);
});
