// Each page asks the book of its own locale and version, by itself: the gateway is told no book and no base URL.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ask, openPanel, PAGE, reader, startBrowser, startGateway } from "./scene.mjs";

const OLD_PAGE = "/book/docs/1.0/first-edition";
const OLD_QUESTION = "When does the greenhouse robot of the first edition water every plant?";

let browser;
before(async () => (browser = await startBrowser()));
after(() => browser.close());

async function asking(t, at, question = OLD_QUESTION) {
  const { page } = await reader(t, browser, await startGateway(t, { book: null }), { at });
  await page.getByRole("button", { name: /^(Ask the book|Das Buch fragen)$/ }).click();
  await page.getByRole("textbox").fill(question);
  const asked = page.waitForRequest((request) => request.method() === "POST");
  await page.getByRole("textbox").press("Enter");
  return { page, book: new URL((await asked).url()).searchParams.get("book") };
}

const BOOKS = [[PAGE, "robot-course"], [OLD_PAGE, "robot-course-1-0"], ["/book/course", "robot-course"], ["/book/de/course", "robot-course-de"]];
for (const [at, book] of BOOKS) {
  test(`a question on ${at} goes to ${book}`, async (t) => assert.equal((await asking(t, at)).book, book));
}

test("a page that is opened while the panel is open asks its own book", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t, { book: null }), { at: PAGE });
  await openPanel(page);
  await page.evaluate((to) => {
    history.pushState({ key: "x" }, "", to);
    dispatchEvent(new PopStateEvent("popstate", { state: { key: "x" } }));
  }, OLD_PAGE);
  await page.locator("#__docusaurus article").getByText("first edition").first().waitFor();
  const asked = page.waitForRequest((request) => request.method() === "POST");
  await ask(page, OLD_QUESTION);
  assert.equal(new URL((await asked).url()).searchParams.get("book"), "robot-course-1-0");
  for (const link of await page.locator(".affidavit-sources").getByRole("link").all()) {
    assert.match(await link.getAttribute("href"), /^\/book\/docs\/1\.0\//);
  }
});
