// A package: what was found, what its period should hold, and its records, the red ones first.
import { readLine } from "../basics/canonical.js";
import { RUNGS, WORST_FIRST } from "../proof/verdict.js";
import { button, element, pairs } from "./dom.js";
import { kindOf, ladder, meaningOf } from "./ladder.js";
import { panel } from "./panels.js";
import { record } from "./record.js";

/** @typedef {import("../files/package.js").Package} Package
 *  @typedef {import("../files/archive.js").Archive} Archive
 *  @typedef {import("../proof/verdict.js").Report} Report
 *  @typedef {import("../proof/verdict.js").RecordLine} RecordLine
 *  @typedef {import("../proof/verdict.js").Finding} Finding
 *  @typedef {import("../proof/verdict.js").Verdict} Verdict */

const FINDINGS_SHOWN = 20, ROWS_SHOWN = 50;

/** @param {string} file @param {Package} package_ */
export async function packagePanel(file, package_) {
  const { manifest, verdict, findings, records } = package_;
  const about = element("div", { id: "record", tabindex: "-1" });
  return panel(file, verdict, element("p", { class: "meaning" }, meaningOf(verdict)),
    manifest && pairs("facts", facts(package_)),
    findings.length > 0 && element("h3", {}, "What was found"),
    findings.length > 0 && foundList(package_),
    records.length > 0 && element("h3", {}, "All records, rung by rung"),
    records.length > 0 && ladder(RUNGS.map((rung) => summary(package_, rung))),
    ...(manifest ? await coverage(package_) : []),
    records.length > 0 && element("h3", {}, "The records"),
    records.length > 0 && table(package_, (line) => void show(package_, package_.passages, line, about)), about);
}

/** @param {string} file @param {Archive} archive */
export function archivePanel(file, archive) {
  const { manifest, verdict, findings, records, notes } = archive;
  const about = element("div", { id: "record", tabindex: "-1" });
  return panel(file, verdict, element("p", { class: "meaning" }, meaningOf(verdict)),
    manifest && pairs("facts", [
      ["Records", `${records.length} checked`], ["Month", manifest.month], ["Log", manifest.origin], ["Signed with", manifest.key_id], ["To know", notes.join(" ")],
    ]),
    findings.length > 0 && element("h3", {}, "What was found"), findings.length > 0 && foundList(archive),
    records.length > 0 && element("h3", {}, "All records, rung by rung"),
    records.length > 0 && ladder(RUNGS.map((rung) => summary(archive, rung))),
    records.length > 0 && element("h3", {}, "The records"),
    records.length > 0 && table(archive, (line) => void show(archive, new Map(), line, about)), about);
}

/** @param {Package} package_ @returns {[string, import("./dom.js").Child][]} */
function facts({ manifest, records, notes }) {
  if (!manifest) return [];
  const chosen = Object.entries(manifest.chosen).map(([name, value]) => `${name} ${value === true ? "withheld" : value}`);
  return [
    ["Records", `${records.length} checked`], ["Period", `from ${manifest.from} to before ${manifest.to}`], ["Chosen by", ["the period", ...chosen].join(", ")],
    ["Form", manifest.redacted ? "Redacted: no personal words, only their commitments" : ""], ["Log", manifest.origin],
    ["Made at", `${manifest.made_at}, recorded as ${manifest.event}`], ["Signed with", manifest.key_id], ["To know", notes.join(" ")],
  ];
}

/** @param {Report} report */
function foundList({ findings, findingsLeftOff }) {
  const left = findings.length - FINDINGS_SHOWN;
  return element("div", {},
    element("ul", { class: "findings" }, ...findings.slice(0, FINDINGS_SHOWN).map(finding)),
    left > 0 && element("details", {}, element("summary", {}, `${left + findingsLeftOff} more`),
      element("div", { class: "inside" }, element("ul", { class: "findings" }, ...findings.slice(FINDINGS_SHOWN).map(finding)))));
}

/** @param {Finding} finding */
function finding({ verdict, what, words, month, leafIndex, logId, file, line, expected, found }) {
  const place = [what, file && line ? `${file}, line ${line}` : file, leafIndex === undefined ? month : `leaf ${leafIndex} of ${month}`, logId && `record ${logId}`];
  return element("li", { class: kindOf(verdict), "data-what": what, "data-verdict": verdict },
    element("span", { class: `verdict ${kindOf(verdict)}` }, verdict), ` ${words} `,
    element("span", { class: "small" }, `(${place.filter(Boolean).join("; ")})`),
    (expected || found) && pairs("differs", [["Expected", cut(expected)], ["Found", cut(found)]]));
}

/** @param {Report} report @param {import("../proof/verdict.js").RungName} rung */
function summary({ climbed, records }, rung) {
  const counts = [...(climbed.get(rung) ?? [])].sort(([one], [other]) => WORST_FIRST.indexOf(one) - WORST_FIRST.indexOf(other));
  const red = counts.find(([verdict]) => kindOf(verdict) === "bad");
  const unknown = counts.find(([verdict]) => verdict === "CANNOT_TELL");
  const verdict = red?.[0] ?? (unknown && unknown[1] === records.length ? "CANNOT_TELL" : "VALID");
  return { rung, verdict, words: counts.map(([each, number]) => `${number} ${each}`).join(", ") };
}

/** @param {Package} package_ */
async function coverage(package_) {
  const said = readLine(await package_.read("coverage.json")), queries = readLine(await package_.read("queries.json"));
  const rows = Array.isArray(said?.months) ? said.months : [];
  return [
    element("h3", {}, "What the period should hold"),
    element("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": "What the period should hold" }, element("table", { class: "records" },
      element("thead", {}, element("tr", {}, ...["Month", "Sealed", "In the package", "Anchored", "Not sealed yet", "Where"].map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...rows.map((each) => element("tr", {}, ...[each?.month, each?.size, each?.records, each?.anchored, each?.unsealed, each?.tier]
        .map((value) => element("td", {}, String(value)))))))),
    queries && element("details", {}, element("summary", {}, "How the records were chosen"),
      element("div", { class: "inside" }, element("p", {}, String(queries.words)), element("pre", {}, JSON.stringify(queries.sql, null, 2)))),
  ];
}

/** The records with search, a choice of verdict, and paging. Only the rows of one page are ever made.
 * @param {Report} report @param {(line: RecordLine) => void} open */
function table({ records }, open) {
  const sorted = [...records].sort((one, other) => Number(kindOf(other.verdict) === "bad") - Number(kindOf(one.verdict) === "bad"));
  let chosen = /** @type {Verdict | ""} */ (""), words = "", page = 0;
  const body = element("tbody"), told = element("span", { class: "small", role: "status" });
  const search = /** @type {HTMLInputElement} */ (element("input", { type: "search", id: "search", placeholder: "Words of a question, an id, a time" }));
  const before = button("Earlier", () => draw(page - 1)), after = button("Later", () => draw(page + 1));
  const verdicts = [...new Set(records.map(({ verdict }) => verdict))].sort((one, other) => WORST_FIRST.indexOf(one) - WORST_FIRST.indexOf(other));
  const counts = verdicts.map((verdict) => {
    const number = records.filter((each) => each.verdict === verdict).length;
    const made = button(`${number} ${verdict}`, () => {
      chosen = chosen === verdict ? "" : verdict;
      draw(0);
    }, { "aria-pressed": "false" });
    return { verdict, made };
  });
  search.addEventListener("input", () => {
    words = search.value.trim().toLowerCase();
    draw(0);
  });

  /** @param {number} to */
  function draw(to) {
    const found = sorted.filter((each) => (!chosen || each.verdict === chosen) && (!words || `${each.question} ${each.logId} ${each.time}`.toLowerCase().includes(words)));
    page = Math.max(0, Math.min(to, Math.ceil(found.length / ROWS_SHOWN) - 1));
    const from = page * ROWS_SHOWN, shown = found.slice(from, from + ROWS_SHOWN);
    body.replaceChildren(...shown.map((each) => row(each, open)));
    told.textContent = found.length ? `${from + 1} to ${from + shown.length} of ${found.length}` : "No record has these words.";
    /** @type {HTMLButtonElement} */ (before).disabled = page === 0;
    /** @type {HTMLButtonElement} */ (after).disabled = from + shown.length >= found.length;
    for (const { verdict, made } of counts) made.setAttribute("aria-pressed", String(verdict === chosen));
  }
  draw(0);
  return element("div", {}, element("div", { class: "counts", role: "group", "aria-label": "Only records of a verdict" }, ...counts.map(({ made }) => made)),
    element("div", { class: "field" }, element("label", { for: "search" }, "Search the records"), search),
    element("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": "Records" }, element("table", { class: "records", id: "records" },
      element("thead", {}, element("tr", {}, ...["Verdict", "Time", "Question"].map((name) => element("th", { scope: "col" }, name)))), body)),
    element("div", { class: "paging" }, before, after, told));
}

/** @param {RecordLine} line @param {(line: RecordLine) => void} open */
function row(line, open) {
  const kind = kindOf(line.verdict);
  return element("tr", { "data-verdict": line.verdict }, element("td", {}, element("span", { class: `verdict ${kind}` }, line.verdict)),
    element("td", { class: "when" }, line.time.slice(0, 19).replace("T", " ")),
    element("td", {}, button(line.question, () => open(line))));
}

/** @param {{shown: (line: RecordLine) => Promise<import("../proof/bundle.js").Judged>}} report @param {Map<string, any>} passages
 *  @param {RecordLine} line @param {HTMLElement} about */
async function show(report, passages, line, about) {
  const judged = await report.shown(line);
  about.replaceChildren(
    element("h3", {}, `Line ${line.line} of ${line.month}: `, element("span", { class: `verdict ${kindOf(line.verdict)}` }, line.verdict)),
    ladder(judged.rungs), element("h3", {}, "What was said"), record(judged, passages));
  about.focus({ preventScroll: true });
  about.scrollIntoView({ block: "start" });
}

/** @param {string | undefined} words */
const cut = (words) => (words && words.length > 2_000 ? `${words.slice(0, 2_000)}…` : words);
