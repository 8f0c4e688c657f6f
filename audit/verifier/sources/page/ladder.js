// The rungs of a record, with what differs on each red one.
import { RUNGS } from "../proof/verdict.js";
import { element, pairs } from "./dom.js";

/** @typedef {import("../proof/verdict.js").Rung} Rung
 *  @typedef {import("../proof/verdict.js").Verdict} Verdict */

const GOOD = ["VALID", "ERASED"], BAD = ["TAMPERED", "MISSING", "WRONG_VAULT"];
/** @type {Record<string, string>} */
const MEANINGS = {
  VALID: "Everything that was checked is as it was sealed.",
  ERASED: "Everything is proven. Personal data was erased, which changes no proof.",
  TAMPERED: "Something was changed after it was sealed, or was never the log's.",
  MISSING: "Something that the log held is not here.",
  CANNOT_TELL: "This could not be judged. That says nothing against the record.",
  UNSEALED: "The receipt is genuine: its record must exist. It is not a proof of the record by itself.",
  LOST_BY_FAILOVER: "What is here is proven. An operator signed that a failover or a restore lost other records.",
  ARCHIVED: "The records are in an archive.",
  WRONG_VAULT: "The vault is not that of this log.",
};
const SIGNS = { good: "✓", bad: "✕", calm: "!", unknown: "?" };

/** @param {Verdict} verdict @returns {"good" | "bad" | "calm"} */
export function kindOf(verdict) {
  return GOOD.includes(verdict) ? "good" : BAD.includes(verdict) ? "bad" : "calm";
}

/** @param {Verdict} verdict */
export const meaningOf = (verdict) => MEANINGS[verdict];

/** @param {Rung[]} rungs */
export function ladder(rungs) {
  const sorted = [...rungs].sort((one, other) => RUNGS.indexOf(one.rung) - RUNGS.indexOf(other.rung));
  return element("ol", { class: "ladder" }, ...sorted.map(shown));
}

/** @param {Rung} rung */
function shown({ rung, verdict, words, expected, found }) {
  const kind = verdict === "CANNOT_TELL" ? "unknown" : kindOf(verdict);
  return element("li", { class: kind, "data-rung": rung, "data-verdict": verdict },
    element("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]),
    element("span", { class: "name" }, rung[0].toUpperCase() + rung.slice(1)),
    element("div", { class: "says" },
      element("span", { class: `verdict ${kind}` }, verdict), ` ${words}`,
      (expected || found) && pairs("differs", [["Expected", expected], ["Found", found]])));
}
