// The panel with a real engine, as a reader meets it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import {
  ask, assertAccessible, engineDouble, GERMAN_BOOK, OFF_TOPIC, openPanel, PAGE, reader, shoot, startBrowser, startGateway, WATERING,
} from "./scene.mjs";

const EXCERPT = "The greenhouse robot waters the tomatoes at dawn, when little of the water evaporates.";

let browser;
before(async () => (browser = await startBrowser()));
after(() => browser.close());

const highlighted = (page) => page.evaluate(() => [...(CSS.highlights.get("affidavit") ?? [])].map(String).join(""));
const isInView = (page, selector) => page.locator(selector).evaluate((element) => {
  const { top, bottom } = element.getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
});

test("a question is answered, and its source leads to the heading and marks the quote, with the panel still there", async (t) => {
  const { page, complaints } = await reader(t, browser, await startGateway(t));
  await openPanel(page);
  await shoot(page, "opened");
  await ask(page, WATERING);
  assert.match(await page.locator(".affidavit-answer").innerText(), /waters the tomatoes at dawn/);
  await shoot(page, "answered");
  await page.locator(".affidavit-sources").getByRole("link").first().click();
  await page.waitForURL("**/book/docs/workshop/greenhouse#watering");
  await page.getByRole("heading", { name: "Watering" }).waitFor();
  await page.waitForFunction(() => CSS.highlights.get("affidavit"));
  assert.equal(await highlighted(page), EXCERPT);
  assert.ok(await isInView(page, "#watering"));
  assert.match(await page.locator(".affidavit-answer").innerText(), /at dawn/);
  await shoot(page, "followed");
  assert.deepEqual(complaints, []);
});

for (const [question, quote] of [
  ["How much water does a cucumber plant need per day?", "Cucumber1200 ml"],
  ["How many millilitres does the greenhouse robot carry?", "It carries 103 millilitres of H2O."],
]) {
  test(`quotes are marked that the page writes otherwise: ${quote}`, async (t) => {
    const { page } = await reader(t, browser, await startGateway(t));
    await openPanel(page);
    await ask(page, question);
    await page.locator(".affidavit-sources").getByRole("link").last().click();
    await page.waitForURL("**/book/docs/workshop/greenhouse*");
    await page.waitForFunction(() => CSS.highlights.get("affidavit"));
    assert.equal((await highlighted(page)).replaceAll("\n", ""), quote);
  });
}

test("what a reader selects is asked about", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t), { at: "/book/docs/workshop/greenhouse" });
  const sentence = page.getByText("A stuck valve is freed with a quarter turn of the wrench.");
  await page.getByText("What if the valve is stuck?").click();
  await sentence.selectText();
  await page.getByRole("button", { name: "Ask about this" }).click();
  assert.match(await page.locator(".affidavit-selection").innerText(), /A stuck valve is freed/);
  await shoot(page, "selected");
  const sent = page.waitForRequest("**/ask");
  await ask(page, "How is a stuck valve freed?");
  assert.deepEqual((await sent).postDataJSON().selected_text, "A stuck valve is freed with a quarter turn of the wrench.");
  assert.match(await page.locator(".affidavit-answer").innerText(), /quarter turn of the wrench/);
});

test("what the book does not say is refused, with the nearest sections", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t));
  await openPanel(page);
  await ask(page, OFF_TOPIC);
  await shoot(page, "refused");
  const nearest = page.locator(".affidavit-refusal").getByRole("link").first();
  const href = await nearest.getAttribute("href");
  await nearest.click();
  await page.waitForURL(`**${href}`);
});

test("a sentence is on the page before the next one has come, and who leaves takes the question along", async (t) => {
  // Seen red with a gateway that reads the whole answer first.
  const engine = await engineDouble(t);
  const { page } = await reader(t, browser, await startGateway(t, { engine: engine.url }));
  await openPanel(page);
  await page.getByLabel("Your question").fill(WATERING);
  await page.getByLabel("Your question").press("Enter");
  const { body, headers, send, left } = await engine.asked;
  assert.equal(body.query, WATERING);
  assert.match(headers["x-end-user"], /^anon:/);
  const place = { chunk_id: "a", section: "Watering", chapter: "Robot", filename: "a.md", page: "1", url: "/book/docs/workshop/greenhouse#watering" };
  send("sources", { sources: [{ ...place, score: 0.9 }] });
  await page.getByRole("status").filter({ hasText: "Watering" }).waitFor();
  send("sentence", { text: `At dawn. [Source: Watering (Page 1) - "At dawn."]`, citations: [{ ...place, n: 1, excerpt: "At dawn.", start: 0, end: 8, score: 0.9 }] });
  await page.locator(".affidavit-answer").filter({ hasText: "At dawn." }).waitFor();
  await shoot(page, "streaming");
  await page.keyboard.press("Escape");
  await left;
});

test("too many questions: says when the next can be asked", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t, { flags: ["--per-address=1/minute"] }));
  await openPanel(page);
  await ask(page, WATERING);
  await ask(page, "How is the course graded?", /^No answer/);
  assert.match(await page.locator(".affidavit-problem").last().innerText(), /Too many questions/);
  assert.ok(await page.getByRole("button", { name: "Try again" }).isDisabled());
  await shoot(page, "too-many");
  await assertAccessible(page, "too many questions");
});

test("an engine that is away: says so, and one button asks again", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t, { engine: "http://127.0.0.1:1" }));
  await openPanel(page);
  await ask(page, WATERING);
  await shoot(page, "engine-away");
  const again = page.waitForRequest("**/ask");
  await page.getByRole("button", { name: "Try again" }).click();
  assert.equal((await again).postDataJSON().query, WATERING);
});

test("a reader who is offline is told so, and is answered after coming back", async (t) => {
  const { page, context } = await reader(t, browser, await startGateway(t));
  await openPanel(page);
  await context.setOffline(true);
  await ask(page, WATERING);
  assert.match(await page.locator(".affidavit-problem").innerText(), /You are offline/);
  await shoot(page, "offline");
  await context.setOffline(false);
  await page.getByRole("button", { name: "Try again" }).click();
  await page.getByRole("status").filter({ hasText: /^Answered/ }).waitFor();
});

test("everything can be done by keyboard", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t));
  await page.keyboard.press("Alt+a");
  await page.getByRole("dialog").waitFor();
  await page.keyboard.type("What is the zero moment point?");
  await page.keyboard.press("Enter");
  await page.getByRole("status").filter({ hasText: /^Answered/ }).waitFor();
  for (let presses = 0; !(await page.evaluate(() => document.activeElement?.matches(".affidavit-answer a"))); presses++) {
    assert.ok(presses < 20, "the citation is never reached");
    await page.keyboard.press("Shift+Tab");
  }
  await page.keyboard.press("Enter");
  await page.waitForURL("**/book/docs/locomotion#the-zero-moment-point");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Ask the book");
});

test("a closed panel has forgotten everything, and nothing is stored", async (t) => {
  const { page, context } = await reader(t, browser, await startGateway(t));
  const stored = () => page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
  const before = await stored();
  await openPanel(page);
  await ask(page, WATERING);
  await page.getByRole("button", { name: "Close and forget" }).click();
  await openPanel(page);
  assert.equal(await page.locator(".affidavit-exchange").count(), 0);
  assert.equal(await page.getByLabel("Your question").inputValue(), "");
  assert.equal(await stored(), before);
  assert.deepEqual(await context.cookies(), []);
  assert.deepEqual(await page.evaluate(() => indexedDB.databases()), []);
});

test("on a phone the panel covers the page, steps aside for a source and comes back", async (t) => {
  const { page } = await reader(t, browser, await startGateway(t), { phone: true });
  await openPanel(page);
  await ask(page, WATERING);
  await shoot(page, "phone-answered");
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
  await page.locator(".affidavit-sources").getByRole("link").first().click();
  await page.waitForURL("**#watering");
  await page.waitForFunction(() => CSS.highlights.get("affidavit"));
  assert.ok(await isInView(page, "#watering"));
  await shoot(page, "phone-followed");
  await page.getByRole("button", { name: "Back to the answer" }).click();
  assert.match(await page.locator(".affidavit-answer").innerText(), /at dawn/);
});

for (const [name, look] of Object.entries({ light: {}, dark: { dark: true }, phone: { phone: true }, "dark-phone": { dark: true, phone: true } })) {
  test(`axe finds nothing: ${name}`, async (t) => {
    const { page } = await reader(t, browser, await startGateway(t), look);
    await assertAccessible(page, "closed");
    await openPanel(page);
    await assertAccessible(page, "open");
    await ask(page, WATERING);
    await shoot(page, `${name}-answered`);
    await assertAccessible(page, "answered");
    await ask(page, OFF_TOPIC, /^The book does not/);
    await shoot(page, `${name}-refused`);
    await assertAccessible(page, "refused");
  });
}

test("a German page speaks German and leads to German pages", async (t) => {
  const origin = await startGateway(t, { book: GERMAN_BOOK });
  const { page } = await reader(t, browser, origin, { at: PAGE.replace("/book/", "/book/de/") });
  await page.getByRole("button", { name: "Das Buch fragen" }).click();
  await page.getByRole("textbox").fill("What is the zero moment point?");
  await page.getByRole("textbox").press("Enter");
  await page.locator(".affidavit-sources").getByRole("link").first().click();
  await page.waitForURL("**/book/de/docs/locomotion#the-zero-moment-point");
  await shoot(page, "german");
});
