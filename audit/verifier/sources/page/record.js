// One record as its reader saw it, and below it every column with its commitment.
import { canonicalText } from "../basics/canonical.js";
import { element, pairs } from "./dom.js";

/** @typedef {import("../proof/bundle.js").Judged} Judged */

const SHOWN_CHARACTERS_MAX = 20_000; // of one column: a prompt may be a megabyte, and the rest of it is in the file

/** @param {Judged} judged @param {Map<string, Record<string, any>>} passages */
export function record({ bundle, leaf, commitments }, passages) {
  if (!bundle) return element("p", { class: "withheld" }, "The file could not be read as a record, so none of it is shown.");
  const { row } = bundle;
  const quotes = Array.isArray(row.citations) ? row.citations.filter((each) => typeof each?.excerpt === "string") : [];
  return element("article", { class: "record" },
    said("question", row.user_query_text, bundle.commitments, "user_query_text"),
    answer(row, quotes, bundle.commitments),
    quotes.length > 0 && element("h3", {}, "What it quotes"),
    quotes.length > 0 && element("ol", { class: "quotes" }, ...quotes.map((each) => quote(each, passages.get(each.chunk_id)))),
    element("h3", {}, "The record"),
    pairs("facts", [
      ["Time", row.timestamp], ["Outcome", text(row.outcome) + (row.reason ? ` (${text(row.reason)})` : "")], ["Book", text(row.book_id)],
      ["Client", text(row.client_id)], ["End user", text(row.end_user)], ["Model", text(row.model_used)],
      ["Confidence", row.confidence_score === undefined ? "" : `${text(row.confidence_score)} ${text(row.confidence_level)}`],
      ["Took", row.total_latency_ms === undefined ? "" : `${text(row.total_latency_ms)} ms`],
      ["Query", row.query_id], ["Record", row.log_id], ["Leaf", `${bundle.index} of ${bundle.month}`], ["Leaf’s hash", element("code", {}, leaf)],
    ]),
    element("details", {}, element("summary", {}, "All columns and their commitments"), columns(row, commitments)),
    element("details", {}, element("summary", {}, "The signed head of its month"), element("div", { class: "inside" }, element("pre", {}, bundle.note))));
}

/** @param {string} style @param {unknown} words @param {Map<string, string> | null} withheld @param {string} column */
function said(style, words, withheld, column) {
  if (typeof words === "string" && words) return element("p", { class: style }, words);
  const about = withheld?.has(column) ? "Withheld: only its commitment is here." : "There is none.";
  return element("p", { class: "withheld" }, `${column === "answer_text" ? "Answer" : "Question"}: ${about}`);
}

/** @param {Record<string, any>} row @param {any[]} quotes @param {Map<string, string> | null} withheld */
function answer(row, quotes, withheld) {
  if (typeof row.answer_text !== "string" || !row.answer_text) return said("answer", row.answer_text, withheld, "answer_text");
  const parts = marked(row.answer_text, quotes.map(({ excerpt }) => excerpt).filter(Boolean));
  return element("p", { class: "answer" }, ...parts.map(({ words, isQuote }) => (isQuote ? element("mark", {}, words) : words)));
}

/** The text in pieces, of which those are marked that are word for word a quotation.
 * @param {string} whole @param {string[]} excerpts */
export function marked(whole, excerpts) {
  const isQuoted = new Uint8Array(whole.length);
  for (const excerpt of excerpts) {
    for (let at = whole.indexOf(excerpt); at >= 0; at = whole.indexOf(excerpt, at + 1)) isQuoted.fill(1, at, at + excerpt.length);
  }
  const pieces = [];
  for (let from = 0, to = 0; from < whole.length; from = to) {
    while (to < whole.length && isQuoted[to] === isQuoted[from]) to++;
    pieces.push({ words: whole.slice(from, to), isQuote: isQuoted[from] === 1 });
  }
  return pieces;
}

/** @param {any} citation @param {Record<string, any> | undefined} passage */
function quote(citation, passage) {
  const place = [citation.chapter, citation.section, citation.page && `page ${text(citation.page)}`].filter(Boolean).map(text).join(" · ");
  const [before, inside, after] = passage ? around(text(passage.text), citation) : ["", citation.excerpt, ""];
  return element("li", {},
    element("p", {}, `${text(citation.n)}. ${place || text(citation.chunk_id)}`),
    element("blockquote", {}, before, element("mark", {}, inside), after),
    passage && element("p", { class: "small" }, `Passage ${text(citation.chunk_id)} of ${text(passage.filename)}`));
}

/** The passage before, inside and after the quotation; offsets count code points.
 * @param {string} whole @param {any} citation */
function around(whole, { start, end }) {
  const points = Array.from(whole);
  return [points.slice(0, start).join(""), points.slice(start, end).join(""), points.slice(end).join("")];
}

/** @param {Record<string, any>} row @param {Map<string, string>} commitments */
function columns(row, commitments) {
  const names = [...new Set([...Object.keys(row), ...commitments.keys()])].sort();
  return element("div", { class: "inside" }, element("table", { class: "columns" }, element("tbody", {}, ...names.map((name) =>
    element("tr", {}, element("th", { scope: "row" }, name),
      element("td", {}, name in row ? cut(text(row[name])) : "withheld",
        commitments.has(name) && element("small", {}, `commitment ${commitments.get(name)}`)))))));
}

/** @param {string} words */
function cut(words) {
  const left = words.length - SHOWN_CHARACTERS_MAX;
  return left > 0 ? `${words.slice(0, SHOWN_CHARACTERS_MAX)}… and ${left} more characters` : words;
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value : value === undefined || value === null ? "" : canonicalText(value);
}
