import assert from "node:assert/strict";
import { test } from "node:test";
import { type Block, blocks } from "../../src/client/panel/answer/blocks.js";
import { distinct, numberOf, pageLabel, parts } from "../../src/client/panel/answer/citing.js";
import { converse, type Exchange } from "../../src/client/panel/conversation.js";
import { questions } from "../../src/client/panel/examples.js";
import { locate } from "../../src/client/panel/highlight.js";
import { linkTo, plainText, takeShared } from "../../src/client/panel/sharing.js";
import { timeFrom } from "../../src/client/panel/wording.js";
import type { Citation } from "../../src/client/stream.js";
import { de } from "../../src/texts/de.js";
import { en } from "../../src/texts/en.js";
import { SHIPPED, shippedTexts } from "../../src/texts/shipped.js";

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

test("eight languages have every text, with the same names to fill in, and none in English", () => {
  const namesIn = (text: string) => [...text.matchAll(/\{\w+\}/g)].map(String).sort();
  assert.deepEqual(Object.keys(SHIPPED), ["ar", "de", "en", "es", "fr", "hi", "ur", "zh"]);
  for (const [language, texts] of Object.entries(SHIPPED)) {
    assert.deepEqual(Object.keys(texts), Object.keys(en), language);
    for (const name of Object.keys(en) as (keyof typeof en)[]) {
      assert.deepEqual(namesIn(texts[name]), namesIn(en[name]), `${language}: ${name}`);
      assert.ok(texts[name].trim(), `${language}: ${name}`);
      assert.ok(texts === en || texts[name] !== en[name] || /^(Sources?|page|Source \{n\}|page \{page\})$/.test(texts[name]), `${language}: ${name}`);
    }
  }
});

test("a locale without texts of ours gets English, one with a region those of its language", () => {
  assert.equal(shippedTexts("ja"), en);
  assert.equal(shippedTexts("de-AT"), de);
  assert.equal(shippedTexts("zh-Hans"), SHIPPED.zh);
});

const CODE = "def water(plant):\n    valve.open(seconds=10)\n\n    if plant:\n\treturn `1`";

function citation(n: number, excerpt: string): Citation {
  return { n, section: "Watering", chapter: "Robot", page: "p", url: "/p#watering", excerpt };
}

function marked(text: string, ...cited: Citation[]): string {
  return `${text} ${cited.map(({ excerpt }) => `[Source: Watering (Page p) - "${excerpt}"]`).join(" ")}`;
}

// Seen red with the answer as one paragraph.
test("code keeps every line and its indentation, between text before and after it", () => {
  const cited = [citation(1, "Run this:"), citation(2, CODE), citation(3, "It works.")];
  const text = `${marked("Run this:", cited[0]!)}\n\`\`\`\n${CODE}\n\`\`\`\n${marked("", cited[1]!).trim()} ${marked("It works.", cited[2]!)}`;
  assert.deepEqual(blocks(text, cited), [
    { kind: "text", parts: ["Run this:", cited[0]] },
    { kind: "code", text: CODE, cited: [cited[1]] },
    { kind: "text", parts: ["It works.", cited[2]] },
  ]);
});

test("code with backticks of its own ends where its longer fence ends", () => {
  const code = "```md\nx\n```";
  assert.deepEqual(blocks(`\`\`\`\`\n${code}\n\`\`\`\``, []), [{ kind: "code", text: code, cited: [] }]);
});

test("a fence that does not end is text", () => {
  assert.deepEqual(blocks("```\nx", []), [{ kind: "text", parts: ["```\nx"] }]);
});

test("rows of one header are one table, and those of another begin a new one", () => {
  const header = citation(1, "Plant | Water | ");
  const [tomato, cucumber] = [citation(2, "Tomato | 800 ml | daily"), citation(4, "Cucumber |  | daily")];
  const other = [citation(5, "Sensor | Range"), citation(6, "Lidar | 100 m")];
  const text = [
    marked("Plant: Tomato; Water: 800 ml; daily", header, tomato), marked("Plant: Cucumber; daily", { ...header, n: 3 }, cucumber),
    marked("Sensor: Lidar; Range: 100 m", ...other),
  ].join(" ");
  const found = blocks(text, [header, tomato, { ...header, n: 3 }, cucumber, ...other]) as (Block & { kind: "table" })[];
  assert.deepEqual(found.map(({ header, rows }) => [header?.cells, ...rows.map(({ cells }) => cells)]), [
    [["Plant", "Water", ""], ["Tomato", "800 ml", "daily"], ["Cucumber", "", "daily"]],
    [["Sensor", "Range"], ["Lidar", "100 m"]],
  ]);
});

test("what is said otherwise than the engine says a row is no table", () => {
  const cited = [citation(1, "Plant | Water"), citation(2, "Tomato | 800 ml")];
  assert.deepEqual(blocks(marked("Tomatoes take 800 ml.", ...cited), cited).map(({ kind }) => kind), ["text"]);
});

test("a quote that several sentences cite is one source", () => {
  const cited = [citation(1, "Plant | Water"), citation(2, "Tomato"), citation(3, "Plant | Water")];
  const listed = distinct(cited);
  assert.deepEqual(cited.map((one) => numberOf(one, listed)), [1, 2, 1]);
});

test("a link has the question in its fragment, where no server sees it, and asks it again once", () => {
  const asked = { question: "Why 100 % & #1? Äpfel 苹果", selection: "a = b\n+ c" };
  for (const [from, page] of [["https://b.example/book/gait?v=1#phases", "/book/gait?v=1"], ["https://b.example/#/gait?x=1", "/#/gait"], ["https://b.example/#/gait#phases", "/#/gait"]] as const) {
    const link = new URL(linkTo(asked, from));
    assert.ok(!/Why|ask/.test(link.pathname + link.search));
    Object.defineProperty(globalThis, "location", { value: link, configurable: true });
    Object.defineProperty(globalThis, "history", { value: { replaceState: (_: unknown, __: string, to: string) => (link.href = to) }, configurable: true });
    assert.deepEqual(takeShared(), asked);
    assert.equal(link.href, `https://b.example${page}`);
    assert.equal(takeShared(), undefined);
  }
});

test("a link that somebody has cut asks nothing", () => {
  Object.defineProperty(globalThis, "location", { value: new URL("https://b.example/#affidavit-ask=%E0%A4"), configurable: true });
  Object.defineProperty(globalThis, "history", { value: { replaceState: () => undefined }, configurable: true });
  assert.equal(takeShared(), undefined);
});

test("a copied answer has its sources with it, and says when it is not sure", () => {
  Object.defineProperty(globalThis, "location", { value: new URL("https://b.example/book/"), configurable: true });
  const cited = [citation(1, "At dawn.")];
  const text = plainText("When?", {
    query_id: "", outcome: "answered", reason: null, answer: `[Low confidence: check the sources.] ${marked("At dawn.", ...cited)}`, citations: cited,
    confidence_score: 0.61, confidence_level: "low", model_used: "m", nearest: [],
  }, en);
  assert.equal(text, "When?\n\nLow confidence, 61%. Check the sources before you rely on this answer.\n\nAt dawn. [1]\n\n" +
    "[1] Watering – Robot: “At dawn.” https://b.example/p#watering");
});

test("examples are the book's own headings: those that ask first, and none that every book has", () => {
  const headings = ["Gait\u200b", "Introduction", "Summary\u200b", "What is ZMP?", "Phases", "Gait"];
  assert.deepEqual(questions(headings, en), ["What is ZMP?", "What does the book say about “Gait”?", "What does the book say about “Phases”?"]);
});

// Seen red with a list of English headings alone: "Was sagt das Buch über „Zusammenfassung“?"
test("headings that every book has are no examples in any language", () => {
  for (const [language, texts] of Object.entries(SHIPPED)) {
    const [first, ...others] = texts.noExamples.split(", ");
    assert.deepEqual(questions([first!, "ZMP", others.at(-1)!.toUpperCase()], texts), [texts.example.replace("{heading}", "ZMP")], language);
  }
});
