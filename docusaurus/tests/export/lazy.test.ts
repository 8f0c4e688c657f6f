import assert from "node:assert/strict";
import { test } from "node:test";
import { readBody } from "../../src/export/body.js";
import { everyTab, withoutCopies } from "../../src/export/lazy.js";

const LAZY = "<div class=tabs-container><ul role=tablist><li role=tab aria-selected=true>A<li role=tab aria-selected=false>B</ul><div><div role=tabpanel>One.</div></div></div>";
const WHOLE = LAZY.replace("One.</div>", "One.</div><div role=tabpanel hidden>Two.</div>");
const page = (copy: string) => `<!doctype html><body><div class=theme-doc-markdown><p>Before.${LAZY}${copy}<p>Ünd after.</div>`;

test("closed tabs that are lazy are exported once, each under its label", () => {
  // Seen red with the theme's Tabs and their copy both read.
  const body = readBody(page(`<div data-affidavit-tabs hidden>${WHOLE}</div>`), "T", new Map());
  assert.deepEqual(body?.sections.flatMap(({ blocks }) => blocks.map(({ text }) => text)), ["Before.", "A", "One.", "B", "Two.", "Ünd after."]);
});

test("the page is byte for byte what the theme made of it, also with copies in copies", () => {
  const inner = `<div data-affidavit-tabs="" hidden="">${WHOLE}</div>`;
  const copy = `<div data-affidavit-tabs hidden>${WHOLE.replace("Two.", LAZY + inner)}</div>`;
  assert.equal(withoutCopies(page(copy)), page(""));
  assert.equal(withoutCopies(page("")), page(""));
});

test("a theme without Tabs is left as it is", () => {
  assert.deepEqual(everyTab({ "@theme/Layout": "/l.js" }), {});
  assert.deepEqual(everyTab(undefined), {});
  assert.equal(everyTab({ "@theme/Tabs": "/own/Tabs.js" })["@affidavit/tabs"], "/own/Tabs.js");
});
