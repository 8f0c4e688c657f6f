import assert from "node:assert/strict";
import { test } from "node:test";
import { pageLabel, parts } from "../src/client/panel/citing.js";
import { converse, type Exchange } from "../src/client/panel/conversation.js";
import { locate } from "../src/client/panel/highlight.js";
import { timeFrom } from "../src/client/panel/wording.js";
import type { Citation } from "../src/client/stream.js";
import { de } from "../src/texts/de.js";
import { en } from "../src/texts/en.js";
import { shippedTexts } from "../src/texts/shipped.js";

const FIRST: Citation = { n: 1, section: "A", chapter: "C", page: "7", url: "/a", excerpt: `He said "stop".` };
const SECOND: Citation = { n: 2, section: "B", chapter: "C", page: "b", url: "/b/#x", excerpt: "Go." };

test("marks become citations, and text that only looks like one stays text", () => {
  const text = `One. [Source: A (Page 7) - "He said "stop"."] Two [Source: Z (Page 1) - "no"] [Source: B (Page b) - "Go."]`;
  assert.deepEqual(parts(text, [FIRST, SECOND]), ["One.", FIRST, ` Two [Source: Z (Page 1) - "no"]`, SECOND]);
});

test("a page is named where it is one, and not where it repeats the address", () => {
  assert.equal(pageLabel(FIRST), "7");
  assert.equal(pageLabel(SECOND), "");
});

test("a quote is found across nodes, whatever space they have", () => {
  const found = locate(["Physical AI\u200b", "\n", "The word ", "embodiment", " names a\n  fact.", "Next"], "The word embodiment names a fact.");
  assert.deepEqual(found, { start: { node: 2, offset: 0 }, end: { node: 4, offset: 15 } });
});

test("a quote that is not there is not found", () => {
  assert.equal(locate(["The word embodiment"], "The word imprisonment"), undefined);
  assert.equal(locate(["The word"], "  "), undefined);
});

test("what comes for a question that has ended is not heard", () => {
  const asked = converse([], { type: "asked", id: 1, question: "q" });
  const ended = converse(asked, { type: "ended", id: 1, outcome: { outcome: "stopped" } });
  const late = converse(ended, { type: "sentence", id: 1, sentence: { text: "late", citations: [] } });
  assert.deepEqual(late, ended);
});

test("trying again takes the place of what failed", () => {
  const failed: Exchange[] = converse(converse([], { type: "asked", id: 1, question: "q" }), {
    type: "ended", id: 1, outcome: { outcome: "failed", kind: "cut", retryable: true },
  });
  const again = converse(failed, { type: "asked", id: 2, question: "q", insteadOf: 1 });
  assert.deepEqual(again.map(({ id }) => id), [2]);
});

test("the wait is told in the reader's language and never as less than it is", () => {
  assert.equal(timeFrom(119, "en"), "in 119 seconds");
  assert.equal(timeFrom(121, "en"), "in 3 minutes");
  assert.equal(timeFrom(80_000, "de"), "in 23 Stunden");
});

test("every text has the same names to fill in, in all languages", () => {
  const namesIn = (text: string) => [...text.matchAll(/\{\w+\}/g)].map(String).sort();
  for (const name of Object.keys(en) as (keyof typeof en)[]) assert.deepEqual(namesIn(de[name]), namesIn(en[name]), name);
});

test("a locale without texts of ours gets English, one with a region those of its language", () => {
  assert.equal(shippedTexts("fr"), en);
  assert.equal(shippedTexts("de-AT"), de);
});
