// A whole evidence package: its files, the heads of its months, every record on every rung, and what the period should hold.
// Records are judged as they are read, and kept as pieces of the file; what is shown of one is judged again from its bytes.
import { judge } from "../proof/bundle.js";
import { readLine } from "../basics/canonical.js";
import { areEqual, ofBase64, textOf, toHex, utf8 } from "../basics/bytes.js";
import { Sha256 } from "../basics/sha2.js";
import { isTime } from "../basics/times.js";
import { Report, rung, RUNGS, worst } from "../proof/verdict.js";
import { PackageError, readDirectory, readPieces } from "./container.js";
import { Counted, checkCoverage } from "./coverage.js";
import { linesOf } from "./lines.js";
import { FILE_BYTES_MAX, isManifestSigned, openManifest, wrongWithFiles } from "./manifest.js";
import { Elsewhere } from "./elsewhere.js";
import { Months } from "./months.js";
import { differences, isPassage } from "./passages.js";
import { difference, heading, lineOf, placeOfLine, placeText } from "./spreadsheet.js";

/** @typedef {import("../proof/verdict.js").Finding} Finding
 *  @typedef {import("../proof/verdict.js").Rung} Rung
 *  @typedef {import("../proof/verdict.js").Kept} Kept
 *  @typedef {import("../proof/verdict.js").RecordLine} RecordLine
 *  @typedef {import("../proof/verdict.js").Verdict} Verdict
 *  @typedef {import("../proof/keys.js").KeyRing} KeyRing
 *  @typedef {import("../proof/bundle.js").Judged} Judged
 *  @typedef {import("./months.js").Month} Month
 *  @typedef {import("./months.js").Told} Told
 *  @typedef {import("./elsewhere.js").Trusted & {ring: KeyRing}} Given
 *  @typedef {{tell: (done: number, all: number) => Promise<void>}} Watch  `tell` throws to end the check */

const LINES_AT_ONCE = 64, PREVIEW_CHARACTERS = 160;
const ERASURE_FIELDS = "erased_at,erasure_id,event,key_id,log_id,signature";
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export class Package extends Report {
  /** @param {Blob} file @param {Given} given @param {Watch} watch */
  constructor(file, given, watch) {
    super();
    this.file = file;
    this.ring = given.ring;
    this.trusted = given;
    this.watch = watch;
    /** @type {Map<string, import("./container.js").Entry>} */
    this.entries = new Map();
    /** @type {Map<string, import("./passages.js").Passage>} */
    this.passages = new Map();
    /** @type {Set<string>} */
    this.changed = new Set();
    /** @type {Set<string>} */
    this.erased = new Set();
    /** @type {Set<string>} */
    this.hashed = new Set();
    /** @type {Map<string, Counted>} */
    this.counted = new Map();
    this.bytesDone = 0;
    /** @type {import("./manifest.js").Manifest | null} */
    this.manifest = null;
    /** @type {Months | null} */
    this.months = null;
    this.elsewhere = new Elsewhere();
  }

  async check() {
    try {
      await this.open(); // (1) the ZIP and its manifest
    } catch (wrong) {
      if (!(wrong instanceof PackageError)) throw wrong;
      return this.add({ verdict: "TAMPERED", what: "package", words: wrong.message });
    }
    await this.readHeads(); // (2) the heads of the months
    await this.readPassages(); // (3) passages and erasures
    await this.readErasures();
    await this.readRecords(); // (4) every record, on every rung
    await checkCoverage(this); // (5) what the period should hold
    for (const name of this.entries.keys()) if (!this.hashed.has(name) && name !== "manifest.json") for await (const _ of this.pieces(name));
    if (!this.records.length) this.add({ verdict: "CANNOT_TELL", what: "package", words: "There is no record in the package" });
  }

  /** Every rung of a record, written anew from its bytes. @param {RecordLine} record */
  async shown(record) {
    const month = /** @type {Month} */ (this.months?.all.get(record.month));
    const { content, from, to } = record.kept;
    const judged = await judge(new Uint8Array(await content.slice(from, to).arrayBuffer()), this.ring, month.head);
    return { ...judged, rungs: record.rungs ?? this.ladder(judged, month), verdict: record.verdict };
  }

  /** A whole file; empty if it is not there. @param {string} name */
  async read(name) {
    const pieces = [], entry = this.entries.get(name);
    if (entry && entry.size > FILE_BYTES_MAX) return new Uint8Array(); // wrongWithFiles has said so
    for await (const piece of this.pieces(name)) pieces.push(piece);
    return new Uint8Array(await new Blob(/** @type {BlobPart[]} */ (pieces)).arrayBuffer());
  }

  async open() {
    const entries = await readDirectory(this.file);
    this.entries = new Map(entries.map((entry) => [entry.name, entry]));
    if (entries[entries.length - 1]?.name !== "manifest.json") throw new PackageError("manifest.json is not the last file of the ZIP");
    this.manifest = openManifest(await this.read("manifest.json"));
    if (!(await isManifestSigned(this.manifest, this.ring))) {
      const words = "None of the given keys signed the manifest: it was altered, or another log made the package";
      this.add({ verdict: "TAMPERED", what: "package", words, file: "manifest.json" });
    }
    for (const wrong of wrongWithFiles(entries, this.manifest)) this.add({ what: "package", ...wrong });
    this.months = new Months({ read: (name) => this.read(name), names: [...this.entries.keys()], origin: this.manifest.origin }, this.ring, (finding) => this.add(finding));
  }

  /** The delegations of the package's keys count only under pinned keys; its other keys are only compared. */
  async readHeads() {
    const lines = (textOf(await this.read("keys.pub")) ?? "").split("\n").filter(Boolean);
    const unknown = lines.filter((line) => !this.ring.keys.some(({ text }) => line.startsWith(text)));
    this.notes.push(unknown.length ? `keys.pub has ${unknown.length} of ${lines.length} keys that you have not pinned.` : "keys.pub has only keys that you have pinned.");
    this.ring = this.ring.withDelegations(lines);
    const months = [...this.entries.keys()].map((name) => /^checkpoints\/(.{7})\.note$/.exec(name)?.[1]).filter((month) => month !== undefined);
    if (!this.months) return;
    this.months.ring = this.ring;
    await this.months.check(months);
    await this.elsewhere.check(this.months, this.trusted);
  }

  async readPassages() {
    let last = "", number = 0;
    for await (const lines of this.lines("passages.jsonl")) {
      for (const line of lines) {
        number += 1;
        const passage = readLine(line), id = passage ? String(passage.chunk_id) : "";
        const words = !passage ? "This is not a passage: it is not one line of canonical JSON"
          : !isPassage(passage) ? "The passage is not as it was ingested: its id does not follow from it"
            : id <= last ? "The passage is here twice, or not in order" : "";
        if (words) this.add({ verdict: "TAMPERED", what: "words", words, file: "passages.jsonl", line: number, found: id });
        if (words) this.changed.add(id);
        if (passage) this.passages.set(id, passage);
        last = id;
      }
    }
    if (number && this.manifest?.redacted) {
      this.add({ verdict: "TAMPERED", what: "words", words: "A redacted package has no passages", file: "passages.jsonl" });
    }
  }

  async readErasures() {
    let number = 0;
    for await (const lines of this.lines("erasures.jsonl")) {
      for (const line of lines) {
        number += 1;
        const logId = await this.erasedBy(readLine(line));
        if (logId) this.erased.add(logId);
        else this.add({ verdict: "TAMPERED", what: "row", words: "None of the given keys signed this erasure", file: "erasures.jsonl", line: number });
      }
    }
  }

  /** The record that a signed line says was erased; "" if no key signed it.
   * @param {Record<string, any> | null} line */
  async erasedBy(line) {
    if (!line || Object.keys(line).join() !== ERASURE_FIELDS || !isTime(line.erased_at)) return "";
    const signature = typeof line.signature === "string" ? ofBase64(line.signature) : null;
    if (!signature || ![line.erasure_id, line.log_id, line.event].every((id) => typeof id === "string" && ID.test(id))) return "";
    const message = utf8(`affidavit erasure\n${line.erasure_id}\n${line.log_id}\n${line.event}\n${line.erased_at}\n`);
    const id = String(line.key_id).replace(/^affidavit\+/, "");
    return (await this.ring.signer(id, line.erased_at, signature, message)) ? String(line.log_id) : "";
  }

  async readRecords() {
    const table = new Spreadsheet(this);
    for (const month of this.months?.all.values() ?? []) {
      const counted = new Counted(), name = `records/${month.month}.jsonl`;
      this.counted.set(month.month, counted);
      let number = 0;
      for await (const lines of this.lines(name)) {
        for (let at = 0; at < lines.length; at += LINES_AT_ONCE) {
          const some = lines.slice(at, at + LINES_AT_ONCE);
          const judged = await Promise.all(some.map((line) => judge(line, this.ring, month.head)));
          const content = new Blob(/** @type {BlobPart[]} */ (some)); // a browser moves what is much to the disk
          let from = 0;
          for (const [place, { length }] of some.entries()) {
            const kept = { content, from, to: (from += length) };
            await this.addRecord(month, counted, judged[place], kept, ++number, table);
          }
          await this.watch.tell(this.bytesDone, this.bytesInAll);
        }
      }
    }
    await table.finish();
    const erased = [...this.counted.values()].reduce((sum, each) => sum + each.erased, 0);
    if (erased) this.add({ verdict: "ERASED", what: "words", words: `${erased} records are proven; their personal data was erased`, file: "erasures.jsonl" });
  }

  /** @param {Month} month @param {Counted} counted @param {Judged} judged @param {Kept} kept @param {number} number @param {Spreadsheet} table */
  async addRecord(month, counted, judged, kept, number, table) {
    const { bundle } = judged, row = bundle?.row;
    const rungs = this.ladder(judged, month);
    const isErased = bundle?.commitments != null && this.erased.has(row?.log_id);
    const order = counted.add(bundle, isErased);
    if (order) redden(rungs, rung("leaf", "TAMPERED", order));
    if (bundle && !(await table.has(bundle))) {
      const differs = difference(lineOf(bundle), table.compared);
      redden(rungs, rung("words", "TAMPERED", "The record's line of records.csv is not the one that its bundle gives", differs));
    }
    for (const each of rungs) this.climb(each);
    const own = rungs.filter(({ rung, verdict, words }) => isRed(verdict) && words !== month.red.get(rung)?.words && words !== this.elsewhere.witness.words && words !== this.elsewhere.stamp.words);
    const place = { month: month.month, leafIndex: bundle?.index, logId: row?.log_id, file: `records/${month.month}.jsonl`, line: number };
    for (const each of own) this.add({ ...place, verdict: each.verdict, what: each.rung, words: each.words, expected: each.expected, found: each.found });
    const unread = bundle ? undefined : rungs.find(({ rung }) => rung === "row");
    if (unread?.verdict === "CANNOT_TELL") this.add({ ...place, verdict: "CANNOT_TELL", what: "row", words: unread.words });
    if (row) this.checkChoice(row, place);
    const reds = rungs.filter(({ verdict }) => isRed(verdict));
    const verdict = reds.length ? worst(reds.map(({ verdict }) => verdict)) : unread ? "CANNOT_TELL" : isErased ? "ERASED" : "VALID";
    this.records.push({
      month: month.month, line: number, index: bundle?.index ?? null, logId: row?.log_id ?? "", time: row?.timestamp ?? "",
      question: preview(row, bundle?.commitments ?? null), verdict, rungs: reds.length || unread ? rungs : null,
      kept,
    });
  }

  /** What is judged of the record by itself, and what its month adds.
   * @param {Judged} judged @param {Month} month @returns {Rung[]} */
  ladder({ bundle, rungs }, month) {
    if (!bundle) return rungs;
    const all = [...rungs, this.wordsRung(bundle), this.vaultRung(bundle, month), ...this.elsewhere.rungs(month.month, bundle.index)];
    for (const [name, told] of month.red) redden(all, { rung: name, ...told });
    const wrong = this.wrongWithCommitments(bundle);
    if (wrong) redden(all, rung("row", "TAMPERED", wrong));
    return RUNGS.map((name) => /** @type {Rung} */ (all.find((each) => each.rung === name)));
  }

  /** @param {import("../proof/bundle.js").Bundle} bundle */
  wrongWithCommitments({ row, commitments }) {
    if (!commitments && this.manifest?.redacted) return "The record has personal columns, although the package is redacted";
    if (!commitments || this.erased.has(row.log_id) || this.manifest?.redacted) return "";
    return "The record was emptied, but none of the given keys signed its erasure";
  }

  /** @param {import("../proof/bundle.js").Bundle} bundle */
  wordsRung({ row, commitments }) {
    if (commitments && this.erased.has(row.log_id)) return rung("words", "ERASED", "The personal data was erased, and a signed line says so.");
    if (commitments) return rung("words", "VALID", "Redacted: the words are withheld, and only their commitments are here.");
    const { citations } = row;
    for (const [at, cited] of (citations === undefined ? [] : Array.isArray(citations) ? citations : [citations]).entries()) {
      const found = differences(cited, this.passages.get(cited?.chunk_id));
      if (this.changed.has(cited?.chunk_id)) found.push({ verdict: "TAMPERED", words: `the passage ${cited.chunk_id} is not as it was ingested` });
      const [first] = found;
      if (first) return rung("words", first.verdict, `Quotation ${at + 1}: ${first.words}`, first);
    }
    return rung("words", "VALID", citations?.length
      ? "What is shown is what the bundle holds. Each quotation is a slice of its passage, and the spreadsheet has the same words."
      : "What is shown is what the bundle holds, and the spreadsheet has the same words.");
  }

  /** @param {import("../proof/bundle.js").Bundle} bundle @param {Month} month */
  vaultRung({ index }, { anchors }) {
    const largest = [...anchors.keys()].reduce((one, other) => (one > other ? one : other), 0n);
    return BigInt(index) < largest
      ? rung("vault", "VALID", `The vault has a head of ${largest} leaves, with which the checkpoint's tree begins.`)
      : rung("vault", "CANNOT_TELL", "No anchored head of the package contains the record.");
  }

  /** @param {Record<string, any>} row @param {object} place */
  checkChoice(row, place) {
    const { from, to, chosen } = /** @type {import("./manifest.js").Manifest} */ (this.manifest);
    if (row.timestamp < from || row.timestamp >= to) {
      this.add({ ...place, verdict: "TAMPERED", what: "coverage", words: "The record is not of the package's period" });
    }
    for (const [choice, column] of [["client", "client_id"], ["query", "query_id"]]) {
      if (!(choice in chosen) || row[column] === chosen[choice]) continue;
      this.add({ ...place, verdict: "TAMPERED", what: "coverage", words: `The record is not of the chosen ${choice}` });
    }
  }

  get bytesInAll() {
    return [...this.entries.values()].reduce((sum, { size }) => sum + size, 0);
  }

  /** @param {string} name @param {{quoted: boolean}} [form] */
  async *lines(name, form) {
    try {
      yield* linesOf(this.pieces(name), form);
    } catch (wrong) {
      if (!(wrong instanceof RangeError)) throw wrong;
      this.add({ verdict: "TAMPERED", what: "package", words: wrong.message, file: name });
    }
  }

  /** Its content; at its end it is compared with the manifest. @param {string} name */
  async *pieces(name) {
    const entry = this.entries.get(name), listed = this.manifest?.files[name], hash = new Sha256();
    if (!entry) return;
    const isFirst = !this.hashed.has(name);
    this.hashed.add(name);
    try {
      for await (const piece of readPieces(this.file, entry)) {
        hash.update(piece);
        this.bytesDone += isFirst ? piece.length : 0;
        yield piece;
      }
    } catch (wrong) {
      if (!(wrong instanceof PackageError)) throw wrong;
      if (!this.manifest) throw wrong;
      return this.add({ verdict: "TAMPERED", what: "package", words: wrong.message, file: name });
    }
    const found = isFirst && listed ? toHex(hash.digest()) : "";
    if (isFirst && listed && found !== listed.sha256) {
      const words = "The file is not the one that the manifest lists: its digest or its size differs";
      this.add({ verdict: "TAMPERED", what: "package", words, file: name, expected: listed.sha256, found });
    }
  }
}

/** records.csv beside the records: after a line that differs, each further one is found by the place that it claims. */
class Spreadsheet {
  /** @param {Package} of */
  constructor(of) {
    this.of = of;
    this.batches = of.lines("records.csv", { quoted: true });
    /** @type {Uint8Array[]} */
    this.waiting = [];
    this.at = 0;
    this.isBegun = false;
    /** @type {Uint8Array} */
    this.compared = new Uint8Array();
  }

  /** Whether the next line is the one that the bundle gives. @param {import("../proof/bundle.js").Bundle} bundle */
  async has(bundle) {
    await this.begin();
    const wanted = lineOf(bundle), place = placeText(bundle.month, bundle.index);
    while ((await this.peek()) && placeOfLine(this.compared) < place) {
      this.tell("The spreadsheet has a line that is of no record");
      this.at += 1;
    }
    const isPlace = placeOfLine(this.compared) === place;
    if (!isPlace) this.compared = new Uint8Array();
    this.at += isPlace ? 1 : 0;
    return isPlace && areEqual(this.compared, wanted);
  }

  async finish() {
    await this.begin();
    if (await this.peek()) this.tell("The spreadsheet has more lines than there are records");
    for await (const _ of this.batches);
  }

  async begin() {
    if (this.isBegun) return;
    this.isBegun = true;
    await this.peek();
    if (!areEqual(this.compared, heading())) this.tell("The spreadsheet does not begin with the names of its columns");
    this.at += 1;
  }

  /** Whether there is a next line. */
  async peek() {
    if (this.at === this.waiting.length) {
      const { value } = await this.batches.next();
      [this.waiting, this.at] = [value ?? [], 0];
    }
    this.compared = this.waiting[this.at] ?? new Uint8Array();
    return this.at < this.waiting.length;
  }

  /** @param {string} words */
  tell(words) {
    this.of.add({ verdict: "TAMPERED", what: "words", words, file: "records.csv", found: textOf(this.compared) ?? "" });
  }
}

/** @param {Rung[]} rungs @param {Rung} red  which replaces the rung of its name, unless that is red already */
function redden(rungs, red) {
  const at = rungs.findIndex(({ rung }) => rung === red.rung);
  if (at >= 0 && !isRed(rungs[at].verdict)) rungs[at] = red;
}

/** @param {Verdict} verdict */
const isRed = (verdict) => verdict === "TAMPERED" || verdict === "MISSING";

/** @param {Record<string, any> | undefined} row @param {Map<string, string> | null} withheld */
function preview(row, withheld) {
  if (!row) return "Not a record";
  if (typeof row.user_query_text === "string" && row.user_query_text) return row.user_query_text.slice(0, PREVIEW_CHARACTERS);
  return withheld?.has("user_query_text") ? "Withheld" : String(row.endpoint ?? row.log_id);
}
