// What was found in one file: the verdict first, then the ladder, then the words.
import { element, pairs } from "./dom.js";
import { kindOf, ladder, meaningOf } from "./ladder.js";
import { record } from "./record.js";

/** @typedef {import("../proof/verdict.js").Verdict} Verdict */

/** @param {string} file @param {Verdict} verdict @param {...import("./dom.js").Child} children */
export function panel(file, verdict, ...children) {
  return element("section", { class: `panel ${kindOf(verdict)}`, "aria-label": file, "data-verdict": verdict, "data-file": file },
    element("p", { class: "file" }, file), element("h2", {}, verdict), ...children);
}

/** @param {string} file @param {Verdict} verdict @param {string} words */
export function toldPanel(file, verdict, words) {
  return panel(file, verdict, element("p", { class: "meaning" }, words));
}

/** @param {string} file @param {import("../proof/receipt.js").Receipt} receipt @param {{verdict: Verdict, words: string}} found */
export function receiptPanel(file, receipt, { verdict, words }) {
  return panel(file, verdict, element("p", { class: "meaning" }, words), pairs("facts", [
    ["Record", String(receipt.log_id)], ["Leaf’s hash", element("code", {}, String(receipt.leaf_hash))],
    ["Issued at", String(receipt.issued_at)], ["Key", String(receipt.key_id)],
  ]), element("p", { class: "small" }, "A receipt signs the hash of the record, not the words of an answer beside it. Drop the proof to see the words that were sealed."));
}

/** @param {string} file @param {import("../proof/bundle.js").Judged} judged @param {string} differs  from the receipt that was dropped with it */
export function proofPanel(file, judged, differs) {
  const verdict = differs ? "TAMPERED" : judged.verdict;
  return panel(file, verdict, element("p", { class: "meaning" }, meaningOf(verdict)),
    differs && element("ul", { class: "findings" }, element("li", {}, differs)),
    element("h3", {}, "Rung by rung"), ladder(judged.rungs),
    element("h3", {}, "What was said"), record(judged, new Map()));
}

/** @param {string} file @param {{verdict: Verdict, rungs: import("../proof/verdict.js").Rung[]}} found */
export function headsPanel(file, { verdict, rungs }) {
  return panel(file, verdict, element("p", { class: "meaning" }, meaningOf(verdict)), element("h3", {}, "Rung by rung"), ladder(rungs));
}
