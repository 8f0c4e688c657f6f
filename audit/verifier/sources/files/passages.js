// Passages: their ids, which are hashes of all that they hold, and the quotations that are slices of them.
import { toHex, utf8 } from "../basics/bytes.js";
import { isObject } from "../basics/canonical.js";
import { sha256 } from "../basics/sha2.js";

/** @typedef {Record<string, any>} Passage
 *  @typedef {{verdict: import("../proof/verdict.js").Verdict, words: string, expected?: string, found?: string}} Difference */

const FIELDS = [
  "book_id", "chapter", "chunk_id", "chunk_index", "content_hash", "difficulty", "end_page", "end_sentence", "filename", "module",
  "parent_document_id", "section", "sentences", "start_page", "start_sentence", "tags", "text", "url",
];

/** Whether the id follows from the passage, and the columns that repeat a part of it do.
 * @param {Passage} passage */
export function isPassage(passage) {
  const { sentences } = passage;
  if (Object.keys(passage).join() !== FIELDS.join() || typeof passage.text !== "string") return false;
  if (!Array.isArray(sentences) || !sentences.length || !sentences.every(isSentence)) return false;
  const content = digest(passage.chapter, passage.section, passage.chunk_index, passage.text);
  const wanted = {
    content_hash: content, parent_document_id: digest(passage.book_id, passage.filename), start_page: sentences[0][4],
    end_page: sentences[sentences.length - 1][4], end_sentence: passage.start_sentence + sentences.length - 1,
  };
  if (Object.entries(wanted).some(([name, value]) => passage[name] !== value)) return false;
  const short = sentences.map((each) => (each.length === 6 && each[5] === "statement" ? each.slice(0, 5) : each));
  return [short, sentences].some((spelling) => idOf(passage, content, spelling) === passage.chunk_id);
}

/** What is wrong with a citation: it is a slice of the passage, at the place that it names, or not.
 * @param {any} citation @param {Passage | undefined} passage @returns {Difference[]} */
export function differences(citation, passage) {
  if (!isObject(citation) || typeof citation.chunk_id !== "string") return [{ verdict: "TAMPERED", words: "it is not a well-formed citation" }];
  const { chunk_id: id, start, end, excerpt } = citation;
  if (!passage) return [{ verdict: "MISSING", words: `the passage ${id} is missing`, expected: id, found: "no such passage in the package" }];
  if (!Number.isInteger(start) || !Number.isInteger(end)) return [{ verdict: "TAMPERED", words: "it is not a well-formed citation" }];
  /** @type {Difference[]} */
  const found = [];
  const slice = start < 0 ? "" : sliceOf(passage.text, start, end);
  if (slice !== excerpt || !excerpt) {
    const words = `characters ${start} to ${end} of the passage ${id} have another text`;
    found.push({ verdict: "TAMPERED", words, expected: slice, found: String(excerpt) });
  }
  for (const [name, value] of Object.entries(placeOf(passage, start))) {
    if (citation[name] === value) continue;
    found.push({ verdict: "TAMPERED", words: `its ${name} differs from the passage ${id}`, expected: String(value), found: String(citation[name]) });
  }
  return found;
}

/** @param {Passage} passage @param {number} start @returns {Record<string, unknown>} */
function placeOf({ chapter, filename, url, sentences }, start) {
  const sentence = sentences.find((/** @type {any[]} */ each) => each[0] <= start && start < each[1]);
  if (!sentence) return { chapter, filename, section: null, page: null, url: null };
  const [, , section, anchor, page] = sentence;
  return { chapter, filename, section, page, url: anchor ? `${url}#${anchor}` : url };
}

/** Offsets count code points. Most texts have no pair of surrogates, and then they count what JavaScript counts.
 * @param {string} text @param {number} start @param {number} end */
function sliceOf(text, start, end) {
  return /[\ud800-\udbff]/.test(text) ? Array.from(text).slice(start, end).join("") : text.slice(start, end);
}

/** @param {unknown} sentence */
const isSentence = (sentence) => Array.isArray(sentence) && sentence.length >= 5;

/** @param {Passage} passage @param {string} content @param {unknown[]} sentences */
function idOf({ book_id: book, filename, url, start_sentence: start, module, difficulty, tags }, content, sentences) {
  return digest(book, filename, url, content, start, sentences, [module, difficulty, tags]);
}

/** @param {...unknown} parts */
const digest = (...parts) => toHex(sha256(utf8(spaced(parts))));

/** As canonical JSON, but with a space after each comma and colon.
 * @param {unknown} value @returns {string} */
function spaced(value) {
  if (Array.isArray(value)) return `[${value.map(spaced).join(", ")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  return `{${Object.keys(value).map((name) => `${JSON.stringify(name)}: ${spaced(value[name])}`).join(", ")}}`;
}
