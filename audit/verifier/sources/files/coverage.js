// What a package says that its period holds, compared with what is in it.
import { isObject, readLine } from "../basics/canonical.js";
import { WORST_FIRST } from "../proof/verdict.js";
import { isWhole } from "./manifest.js";

/** @typedef {import("./package.js").Package} Package
 *  @typedef {import("./manifest.js").Manifest} Manifest */

const GAPS_MAX = 1_000; // more than a person reads
const FIELDS = "is_whole,months,unsealed,verify", MONTH_FIELDS = "anchored,breaks,month,records,size,tier,unsealed";
const WHOLE = ["VALID", "ERASED", "ARCHIVED", "UNSEALED"];

/** What was found in a month's records. */
export class Counted {
  constructor() {
    this.records = 0;
    this.withheld = 0;
    this.erased = 0;
    this.nextIndex = 0;
    /** @type {[number, number][]} */
    this.gaps = [];
  }

  /** Says what is wrong with its place among the others.
   * @param {import("../proof/bundle.js").Bundle | null} bundle @param {boolean} isErased */
  add(bundle, isErased) {
    this.records += 1;
    this.withheld += bundle?.commitments ? 1 : 0;
    this.erased += isErased ? 1 : 0;
    if (!bundle) return "";
    if (bundle.index < this.nextIndex) return "The record is here twice, or not in the order of the leaves";
    if (bundle.index > this.nextIndex && this.gaps.length < GAPS_MAX) this.gaps.push([this.nextIndex, bundle.index - 1]);
    this.nextIndex = bundle.index + 1;
    return "";
  }
}

/** @param {Package} package_ */
export async function checkCoverage(package_) {
  const manifest = /** @type {Manifest} */ (package_.manifest);
  checkCounts(package_, manifest);
  const said = readLine(await package_.read("coverage.json"));
  const words = wrongWith(said, package_, manifest);
  if (words) package_.add({ verdict: "TAMPERED", what: "coverage", words, file: "coverage.json" });
  else if (said) compare(said, package_);
  if (isWhole(manifest)) checkGaps(package_, manifest);
}

/** @param {Package} package_ @param {Manifest} manifest */
function checkCounts(package_, manifest) {
  const sum = (/** @type {"records" | "withheld" | "erased"} */ name) => [...package_.counted.values()].reduce((all, each) => all + each[name], 0);
  const found = {
    records: sum("records"), withheld: sum("withheld"), erased: sum("erased"), passages: package_.passages.size,
    anchors: Object.keys(manifest.files).filter((name) => name.startsWith("anchors/")).length,
  };
  for (const [name, number] of Object.entries(found)) {
    if (manifest.counts[name] === number) continue;
    const words = `The manifest counts ${manifest.counts[name]} ${name}, and there are ${number}`;
    package_.add({ verdict: "TAMPERED", what: "coverage", words, file: "manifest.json", expected: String(manifest.counts[name]), found: String(number) });
  }
}

/** @param {Record<string, any> | null} said @param {Package} package_ @param {Manifest} manifest */
function wrongWith(said, package_, manifest) {
  const isOne = said && Object.keys(said).join() === FIELDS && Array.isArray(said.months) && isObject(said.verify) && WORST_FIRST.includes(said.verify.verdict)
    && said.months.every((month) => isObject(month) && Object.keys(month).join() === MONTH_FIELDS);
  if (!isOne) return "The file does not have exactly the members of a statement of coverage";
  if (said.is_whole !== isWhole(manifest)) return "The file and the manifest disagree on how the records were chosen";
  const months = [...(package_.months?.all.keys() ?? [])];
  return said.months.map((/** @type {{month: string}} */ each) => each.month).join() === months.join() ? "" : "The file does not have the months of the package";
}

/** @param {Record<string, any>} said @param {Package} package_ */
function compare(said, package_) {
  for (const each of said.months) {
    const head = package_.months?.all.get(each.month)?.head.checkpoint;
    const anchors = [...package_.entries.keys()].filter((name) => name.startsWith(`anchors/${each.month}/`)).map((name) => Number(name.slice(-17, -5)));
    const found = [package_.counted.get(each.month)?.records, head ? Number(head.size) : each.size, Math.max(0, ...anchors)];
    if ([each.records, each.size, each.anchored].join() === found.join()) continue;
    const words = `The file says ${each.records} records in a tree of ${each.size} leaves, ${each.anchored} of them anchored; there are ${found.join(", ")}`;
    package_.add({ verdict: "TAMPERED", what: "coverage", words, month: each.month, file: "coverage.json" });
  }
  if (said.unsealed) package_.notes.push(`${said.unsealed} records of the period were not sealed when the package was made.`);
  if (WHOLE.includes(said.verify.verdict)) return;
  const first = said.verify.findings?.[0]?.words ?? "there was nothing to verify";
  const words = `The log itself was not whole when the package was made: ${first}`;
  package_.add({ verdict: said.verify.verdict, what: "coverage", words, file: "coverage.json" });
}

/** The period alone chose the records and holds the whole month: so every leaf has its record here.
 * @param {Package} package_ @param {Manifest} manifest */
function checkGaps(package_, { from, to }) {
  for (const [month, counted] of package_.counted) {
    const size = package_.months?.all.get(month)?.head.checkpoint?.size;
    if (size === undefined || from > `${month}-01T00:00:00.000000Z` || to < endOf(month)) continue;
    const gaps = [...counted.gaps];
    if (BigInt(counted.nextIndex) < size) gaps.push([counted.nextIndex, Number(size) - 1]);
    for (const [first, last] of gaps) {
      const words = `${first === last ? `The record of leaf ${first}` : `The records of leaves ${first} to ${last}`} should be in the package`;
      package_.add({ verdict: "MISSING", what: "coverage", words, month, leafIndex: first, file: `records/${month}.jsonl` });
    }
  }
}

/** @param {string} month */
function endOf(month) {
  const [year, number] = month.split("-").map(Number);
  const next = number === 12 ? [year + 1, 1] : [year, number + 1];
  return `${String(next[0]).padStart(4, "0")}-${String(next[1]).padStart(2, "0")}-01T00:00:00.000000Z`;
}
