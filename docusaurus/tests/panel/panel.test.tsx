import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToStaticMarkup } from "react-dom/server";
import type { Exchange } from "../../src/client/panel/conversation.js";
import { ExchangeView } from "../../src/client/panel/answer/ExchangeView.js";
import { Guide } from "../../src/client/panel/Guide.js";
import { pagesOf, targetOf } from "../../src/client/panel/visit.js";
import type { Answer, Citation, Problem, ProblemKind } from "../../src/client/stream.js";
import { de } from "../../src/texts/de.js";
import { en } from "../../src/texts/en.js";
import { SHIPPED } from "../../src/texts/shipped.js";

const HOSTILE = `<img src=x onerror="alert(1)"></script><script>alert(1)</script>`;
const PAGES = pagesOf([{ path: "/book/docs", routes: [{ path: "/book/docs/gait/" }, { path: "/book/docs/été" }] }, { path: "*" }]);
Object.defineProperty(globalThis, "location", { value: new URL("https://site.example/book/"), configurable: true });

const CITATION: Citation = { n: 1, section: "Phases", chapter: "Gait", page: "156", url: "/book/docs/gait#phases", excerpt: "Gait has two phases." };
const ANSWER: Answer = {
  query_id: "5f0c3a52-7f0e-4c2e-9d55-0b8a4c1f6a10",
  outcome: "answered", reason: null, answer: `Gait has two phases. [Source: Phases (Page 156) - "Gait has two phases."]`,
  citations: [CITATION], confidence_score: 0.9, confidence_level: "high", model_used: "extractive", nearest: [],
};

function shown(outcome: Exchange["outcome"], more: Partial<Exchange> = {}, { texts, locale } = { texts: en, locale: "en" }): string {
  const exchange: Exchange = { id: 1, question: "What is gait?", places: [], sentences: [], ...(outcome && { outcome }), ...more };
  return renderToStaticMarkup(
    <Guide.Provider value={{ texts, locale, targetOf: (url) => targetOf(url, "/book/", PAGES), follow: () => undefined, tell: () => undefined, judge: async () => true }}>
      <ExchangeView exchange={exchange} retry={() => undefined} />
    </Guide.Provider>,
  );
}

const MARKUP = [`\`${HOSTILE}\``, `**${HOSTILE}**`, `*${HOSTILE}*`, `\`\`\`\n${HOSTILE}\n\`\`\``, `\`\`\`html" onload="alert(1)\n${HOSTILE}\n\`\`\``, `[x](javascript:alert(1)) ${HOSTILE}`];

// Seen red with the answer put in by dangerouslySetInnerHTML.
test("nothing that a book, a reader or a server says is read as HTML", () => {
  const citation = { ...CITATION, section: HOSTILE, chapter: HOSTILE, page: HOSTILE, excerpt: HOSTILE, url: `/${HOSTILE}` };
  const pages = [
    shown({ ...ANSWER, answer: HOSTILE, citations: [citation] }, { question: HOSTILE, selection: HOSTILE }),
    shown({ ...ANSWER, outcome: "refused", reason: HOSTILE, answer: HOSTILE, nearest: [citation] }),
    shown({ outcome: "failed", kind: "llm", detail: HOSTILE, retryable: true, requestId: HOSTILE }),
    shown(undefined, { sentences: [{ text: HOSTILE, citations: [citation] }] }),
    ...MARKUP.map((answer) => shown({ ...ANSWER, answer, citations: [] })),
    shown({ ...ANSWER, answer: `a: ${HOSTILE}; b: 1 [Source: Phases (Page 156) - "a | b"] [Source: Phases (Page 156) - "${HOSTILE} | 1"]`,
      citations: [{ ...CITATION, excerpt: "a | b" }, { ...CITATION, n: 2, excerpt: `${HOSTILE} | 1` }] }),
  ];
  for (const html of pages) {
    assert.ok(html.includes("&lt;img"));
    assert.ok(!/<img|<script|<[^>]*(?:onload|javascript:)/.test(html));
  }
});

for (const [text, html] of [
  ["Set `max_speed` to `` a`b ``.", "Set <code>max_speed</code> to <code>a`b</code>."],
  ["It is **very** important, *not* so.", "It is <strong>very</strong> important, <em>not</em> so."],
  ["**重点**文字", "<strong>重点</strong>文字"],
  ["2**3**4, 2*3*4, *args and **kwargs, __init__, snake_case_name, a * b * c", undefined],
  ["`unclosed, and **unclosed", undefined],
] as const) {
  test(`a sentence's Markdown is shown, and nothing is lost that only looks like it: ${text}`, () => {
    assert.ok(shown({ ...ANSWER, answer: text, citations: [] }).includes(`>${html ?? text}<`), shown({ ...ANSWER, answer: text, citations: [] }));
  });
}

test("code is monospaced with its indentation, left to right, and a table is a table, also while it streams", () => {
  const code = `\`\`\`\nif a:\n    b()\n\`\`\``;
  const header = { ...CITATION, excerpt: "Plant | Water" };
  const row = { ...CITATION, n: 2, excerpt: "Tomato | 800 ml" };
  const said = `Plant: Tomato; Water: 800 ml [Source: Phases (Page 156) - "Plant | Water"] [Source: Phases (Page 156) - "Tomato | 800 ml"]`;
  for (const html of [
    shown({ ...ANSWER, answer: `${said}\n${code}`, citations: [header, row] }),
    shown(undefined, { sentences: [{ text: said, citations: [header, row] }, { text: code, citations: [] }] }),
  ]) {
    assert.ok(html.includes(`<pre dir="ltr" tabindex="0"><code>if a:\n    b()</code></pre>`), html);
    assert.match(html, /<th dir="auto">Plant<\/th>.*<td dir="auto">Tomato<\/td><td dir="auto">800 ml/);
  }
});

// Seen red with the check of the address removed.
for (const url of ["javascript:alert(1)", "JAVASCRIPT:alert(1)", "data:text/html,x", "//evil.example/x", "", "docs/gait", "vbscript:x", "/\\evil.example/x"]) {
  test(`an address that is none of the web's own is no link to it: ${JSON.stringify(url)}`, () => {
    const html = shown({ ...ANSWER, citations: [{ ...CITATION, url }] });
    assert.ok(!/href="(?!https:\/\/site\.example|\/(?![\/\\]))/.test(html), html);
    assert.ok(!/href="[^"]*evil\.example\/?[^"]*"/.test(html) || html.includes('rel="noopener noreferrer"'), html);
  });
}

test("a citation is a numbered link to its heading, in the text and below it", () => {
  const html = shown(ANSWER);
  assert.equal(html.split('href="/book/docs/gait/#phases"').length, 3);
  assert.match(html, /<sup><a [^>]*aria-label="Source 1: Phases – Gait"[^>]*>1<\/a><\/sup>/);
  assert.ok(!html.includes("[Source:"));
  assert.match(html, /page 156/);
});

test("the address is that of this build: baseUrl and trailing slash as it has them", () => {
  assert.deepEqual(targetOf("/book/docs/gait#x", "/book/", PAGES), { href: "/book/docs/gait/#x", isOnSite: true });
  assert.deepEqual(targetOf("/docs/gait/#x", "/book/", PAGES), { href: "/book/docs/gait/#x", isOnSite: true });
  assert.deepEqual(targetOf("https://site.example/book/docs/gait", "/book/", PAGES), { href: "/book/docs/gait/", isOnSite: true });
  assert.deepEqual(targetOf("/book/docs/%C3%A9t%C3%A9", "/book/", PAGES), { href: "/book/docs/été", isOnSite: true });
  assert.deepEqual(targetOf("/book/de/docs/gait", "/book/", PAGES), { href: "/book/de/docs/gait", isOnSite: false });
  assert.deepEqual(targetOf("/book/docs/gait#%E0", "/book/", PAGES), { href: "/book/docs/gait/#%E0", isOnSite: false });
  assert.deepEqual(targetOf("https://else.example/a#b", "/book/", PAGES), { href: "https://else.example/a#b", isOnSite: false });
});

test("low confidence is said before the answer", () => {
  const html = shown({ ...ANSWER, confidence_level: "low", confidence_score: 0.6799, answer: `[Low confidence: check the sources.] ${ANSWER.answer}` });
  assert.ok(html.indexOf("Low confidence, 67%") < html.indexOf("Gait has two phases"));
  assert.ok(!html.includes("[Low confidence"));
});

test("confidence is never rounded up into a better level", () => {
  assert.match(shown({ ...ANSWER, confidence_level: "medium", confidence_score: 0.8499999 }), /Medium confidence, 84%/);
});

for (const [reason, text] of Object.entries(en).filter(([name]) => name.startsWith("reason."))) {
  test(`a refusal for ${reason} says why and where to look`, () => {
    const html = shown({ ...ANSWER, outcome: "refused", reason: reason.slice(7), citations: [], nearest: [CITATION] });
    assert.ok(html.includes(text));
    assert.ok(html.includes(">Phases – Gait</a>"));
  });
}

for (const [locale, texts] of Object.entries(SHIPPED)) {
  test(`an answer and a refusal can be judged, and a failure cannot: ${locale}`, () => {
    for (const outcome of ["answered", "refused"] as const) {
      const html = shown({ ...ANSWER, outcome }, {}, { texts, locale });
      for (const label of [texts.helpful, texts.unhelpful]) assert.ok(html.includes(`aria-label="${label}" title="${label}" aria-pressed="false"`), html);
      assert.ok(!html.includes(texts.complaint));
    }
    assert.ok(!shown({ outcome: "failed", kind: "llm", retryable: true }, {}, { texts, locale }).includes("aria-pressed"));
  });
}

const KINDS: ProblemKind[] = [
  "validation", "auth", "rate_limit", "network", "database", "llm", "timeout", "audit", "unknown",
  "offline", "unreachable", "cut", "late", "unreadable",
];
for (const kind of KINDS) {
  for (const [locale, texts] of Object.entries(SHIPPED)) {
    test(`a problem of the kind ${kind} has its words in ${locale}`, () => {
      const html = shown({ outcome: "failed", kind, retryable: true }, {}, { texts, locale });
      for (const text of [texts[`problem.${kind}`], texts[`problem.${kind}.detail`]]) assert.ok(html.includes(text.replaceAll("'", "&#x27;")));
      assert.ok(html.includes(texts.retry));
    });
  }
}

test("the engine's own safe words are shown to who reads English, and ours to others", () => {
  const problem: Problem = { outcome: "failed", kind: "audit", detail: "No answer without a record.", retryable: false };
  assert.ok(shown(problem).includes("No answer without a record."));
  assert.ok(shown(problem, {}, { texts: de, locale: "de" }).includes(de["problem.audit.detail"]));
  assert.ok(!shown(problem).includes(en.retry));
});

test("words for who holds a key are not shown to readers", () => {
  assert.ok(!shown({ outcome: "failed", kind: "auth", detail: "Send a valid API key.", retryable: false }).includes("API key"));
});

test("a limit says when to ask again and lets nobody try before", () => {
  const html = shown({ outcome: "failed", kind: "rate_limit", retryable: true, waitS: 42 });
  assert.match(html, /You can ask again in 42 seconds\./);
  assert.match(html, /<button[^>]* disabled=""/);
  assert.match(shown({ outcome: "failed", kind: "rate_limit", retryable: true, waitS: 7000 }), /in 117 minutes/);
});

// Seen red with the sentences left on the page.
test("sentences of an answer that did not come to its end are taken back", () => {
  const sentences = [{ text: "Gait has two phases.", citations: [] }];
  const html = shown({ outcome: "failed", kind: "cut", retryable: true }, { sentences });
  assert.ok(!html.includes("two phases"));
  assert.ok(html.includes(en.takenBack));
});
