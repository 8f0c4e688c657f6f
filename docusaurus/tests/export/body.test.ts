import assert from "node:assert/strict";
import { test } from "node:test";
import { admonitionLabels, readBody, type Block, type Section } from "../../src/export/body.js";

const LABELS = admonitionLabels({ "theme.admonition.tip": "Tipp" });

function sections(html: string): Section[] {
  const frame = `<nav>Menu</nav><article><div class="theme-doc-markdown markdown">${html}</div><footer>Edit</footer></article>`;
  return readBody(frame, "Walking", LABELS)!.sections;
}

function blocks(html: string): Block[] {
  return sections(html).flatMap((section) => section.blocks);
}

function texts(html: string): string[] {
  return blocks(html).map(({ text }) => text);
}

test("headings are taken as built, with unquoted ids and without their hash links", () => {
  const link = '<a href=#gait class=hash-link aria-label="Direct link to Gait">\u200b</a>';
  const found = sections(`<header><h1>Walking</h1></header><p>A.<h2 class="anchor x" id=gait>The <em>gait</em>${link}</h2><p>B.<h3 id=c>C<a class=hash-link href=#c>#</a></h3><h2>D</h2>`);
  assert.deepEqual(found.map(({ level, anchor, path }) => [level, anchor, path]), [
    [1, null, ["Walking"]],
    [2, "gait", ["Walking", "The gait"]],
    [3, "c", ["Walking", "The gait", "C"]],
    [2, null, ["Walking", "D"]],
  ]);
});

test("text above the first heading stands under the title, and headings without one too", () => {
  assert.deepEqual(sections("<p>A.</p><h2 id=b>B</h2>").map(({ path }) => path), [["Walking"], ["Walking", "B"]]);
  assert.deepEqual(sections("<h2 id=b>B</h2>").map(({ path }) => path), [["Walking", "B"]]);
});

test("a page's title is what its first heading shows", () => {
  assert.equal(readBody("<div class=theme-doc-markdown><h1>A <b>bold</b> title", "x", LABELS)?.title, "A bold title");
  assert.equal(readBody("<div class=theme-doc-markdown><h2 id=a>A</h2>", "x", LABELS)?.title, undefined);
});

test("a page without a body is none", () => {
  assert.equal(readBody("<main><p>Hello.</main>", "x", LABELS), null);
});

test("what is around the text is no text", () => {
  const html = `<ul class=table-of-contents><li><a href=#a>A</a></ul><button>Copy</button><svg><title>Icon</title></svg>
    <style>p{}</style><script>let a</script><nav>Next</nav><span aria-hidden=true>*</span><!-- note -->
    <article><a class="card cardContainer_x" href=/b><h2>Card</h2></a></article><p>Text.`;
  assert.deepEqual(texts(html), ["Text."]);
  assert.equal(sections(html).length, 1);
});

test("paragraphs, quotes, lists in lists and terms are blocks of their own", () => {
  const html = `Loose <b>text</b>.<blockquote><p>Quoted.</blockquote><ul><li><p>One.</p><li>Two <em>and</em>
    <ol><li>deep</ol>after<li><input type=checkbox> done</ul><dl><dt>Term<dd>Meaning.</dl>`;
  assert.deepEqual(blocks(html), [
    { kind: "prose", text: "Loose text." },
    { kind: "prose", text: "Quoted." },
    { kind: "list", text: "One." },
    { kind: "list", text: "Two and" },
    { kind: "list", text: "deep" },
    { kind: "list", text: "after" },
    { kind: "list", text: "done" },
    { kind: "prose", text: "Term" },
    { kind: "prose", text: "Meaning." },
  ]);
});

test("a table has a line for each row, with nothing doubled by a table in it", () => {
  const html = `<table><caption>Rates</caption><thead><tr><th>Layer<th>Rate<tbody><tr><td>Motor<br>drive<td><ul><li>10<li>20</ul>
    <tr><td>x<td><table><tr><td>in<td>side</table></table>`;
  assert.deepEqual(blocks(html), [{ kind: "table", text: "Rates\nLayer | Rate\nMotor drive | 10 20\nx | in side" }]);
});

test("code keeps its lines, without line numbers, buttons and a last line that is empty", () => {
  const line = (code: string) => `<div class=token-line><span class=codeLineNumber></span><span>${code}</span><br/></div>`;
  const html = `<div class="theme-code-block"><div class=codeBlockTitle_x>a.py</div><pre><code>${line("if a:")}${line("")}${line("  b &lt; c")}</code></pre><button>Copy</button></div>`;
  assert.deepEqual(blocks(html), [{ kind: "prose", text: "a.py" }, { kind: "code", text: "if a:\n\n  b < c" }]);
});

test("the name that the theme gives to an admonition is no text, a title of its own is", () => {
  const admonition = (type: string, title: string) =>
    `<div class="theme-admonition theme-admonition-${type}"><div class=heading><span><svg></svg></span>${title}</div><div><p>Text.</div></div>`;
  assert.deepEqual(texts(admonition("tip", "Tipp")), ["Text."]);
  assert.deepEqual(texts(admonition("warning", "warning")), ["Text."]);
  assert.deepEqual(texts(admonition("tip", "Mind the <em>gap</em>")), ["Mind the gap", "Text."]);
});

test("each label of tabs stands above its panel, hidden or not, also with tabs in tabs", () => {
  const tabs = (panels: [string, string][]) =>
    `<div><ul role=tablist>${panels.map(([label]) => `<li role=tab>${label}`).join("")}</ul><div>${panels
      .map(([, html], index) => `<div role=tabpanel ${index ? "hidden" : ""}>${html}</div>`).join("")}</div></div>`;
  const inner = tabs([["x86", "<p>Intel."], ["ARM", "<p>Apple."]]);
  assert.deepEqual(texts(tabs([["Linux", "<p>Use apt."], ["macOS", inner]])), [
    "Linux", "Use apt.", "macOS", "x86", "Intel.", "ARM", "Apple.",
  ]);
});

test("of lazy tabs the panel that is there has its own label", () => {
  const html = `<ul role=tablist><li role=tab aria-selected=false>A<li role=tab aria-selected=true>B</ul><div><div role=tabpanel>Text.</div></div>`;
  assert.deepEqual(texts(html), ["B", "Text."]);
});

test("details are text, closed or not", () => {
  assert.deepEqual(texts('<details><summary>More</summary><div style="display:none"><p>Hidden.</div></details>'), ["More", "Hidden."]);
});

test("pictures are their description", () => {
  assert.deepEqual(texts('<p>See <img src=a.png alt="a robot"> there.<p><img src=b.png>'), ["See a robot there."]);
});

test("a formula is said once, by its source", () => {
  const katex = `<span class=katex><span class=katex-mathml><math><semantics><mrow><mi>E</mi></mrow><annotation encoding="application/x-tex">E = mc^2</annotation></semantics></math></span><span class=katex-html aria-hidden=true><span>E=mc2</span></span></span>`;
  assert.deepEqual(texts(`<p>So ${katex} holds.`), ["So $E = mc^2$ holds."]);
});

test("10 to the third is not 103", () => {
  // Seen red with the plain text of <sup>.
  assert.deepEqual(texts("<p>10<sup>3</sup> N, H<sub>2</sub>O, 10<sup>-6</sup>, the 1<sup>st</sup>."), ["10³ N, H₂O, 10⁻⁶, the 1st."]);
});

test("marks of footnotes and the way back from them are no text", () => {
  const html = `<p>It walks.<sup><a href=#fn-1 data-footnote-ref=true>1</a></sup></p><section data-footnotes><h2 id=footnote-label>Footnotes</h2>
    <ol><li id=fn-1><p>Slowly. <a href=#r data-footnote-backref aria-label="Back">↩</a></ol></section>`;
  assert.deepEqual(texts(html), ["It walks.", "Slowly."]);
});

test("white space is as a browser shows it", () => {
  assert.deepEqual(texts("<p>One\n   two<br/>three <b> four</b>\u00a0five"), ["One two three four\u00a0five"]);
});
