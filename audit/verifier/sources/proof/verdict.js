// Verdicts, findings and rungs, in the words of the command line.

/** @typedef {"TAMPERED" | "MISSING" | "WRONG_VAULT" | "LOST_BY_FAILOVER" | "CANNOT_TELL" | "UNSEALED" | "ARCHIVED" | "ERASED" | "VALID"} Verdict
 *  @typedef {"words" | "row" | "leaf" | "month" | "checkpoint" | "vault" | "witness" | "time stamp"} RungName
 *  @typedef {{verdict: Verdict, what: string, words: string, month?: string, leafIndex?: number, logId?: string, file?: string, line?: number,
 *    expected?: string, found?: string}} Finding
 *  @typedef {{rung: RungName, verdict: Verdict, words: string, expected?: string, found?: string}} Rung */

/** Worst first: the verdict of a report is that of its worst finding. @type {Verdict[]} */
export const WORST_FIRST = [
  "TAMPERED", "MISSING", "WRONG_VAULT", "LOST_BY_FAILOVER", "CANNOT_TELL", "UNSEALED", "ARCHIVED", "ERASED", "VALID"];
/** @type {RungName[]} */
export const RUNGS = ["words", "row", "leaf", "month", "checkpoint", "vault", "witness", "time stamp"];

/** @param {Iterable<Verdict>} verdicts @returns {Verdict} */
export function worst(verdicts) {
  const places = Array.from(verdicts, (verdict) => WORST_FIRST.indexOf(verdict));
  return WORST_FIRST[Math.min(...places, WORST_FIRST.length - 1)];
}

/** @param {RungName} rung @param {Verdict} verdict @param {string} words @param {{expected?: string, found?: string}} [differs] @returns {Rung} */
export const rung = (rung, verdict, words, differs = {}) => ({ rung, verdict, words, ...differs });

const FINDINGS_MAX = 1_000; // more than a person reads; the others are counted

/** What was found in many records. Never VALID unless something was checked.
 * @typedef {{content: Blob, from: number, to: number}} Kept  the bytes of a line
 * @typedef {{month: string, line: number, index: number | null, logId: string, time: string, question: string, verdict: Verdict,
 *    rungs: Rung[] | null, kept: Kept}} RecordLine  `rungs` only if not all is well: else they are written when they are shown */
export class Report {
  constructor() {
    /** @type {Finding[]} */
    this.findings = [];
    this.findingsLeftOff = 0;
    /** @type {Verdict} */
    this.worst = "VALID";
    /** @type {RecordLine[]} */
    this.records = [];
    /** @type {Map<RungName, Map<Verdict, number>>} */
    this.climbed = new Map(RUNGS.map((name) => [name, new Map()]));
    /** @type {string[]} */
    this.notes = [];
  }

  /** @returns {Verdict} */
  get verdict() {
    return this.worst === "VALID" && !this.records.length ? "CANNOT_TELL" : this.worst;
  }

  /** @param {Finding} finding */
  add(finding) {
    this.worst = worst([this.worst, finding.verdict]);
    if (this.findings.length < FINDINGS_MAX) this.findings.push(finding);
    else this.findingsLeftOff += 1;
  }

  /** @param {Rung} rung */
  climb({ rung, verdict }) {
    const counts = /** @type {Map<Verdict, number>} */ (this.climbed.get(rung));
    counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  }
}
