// An archived month: its signed manifest, the evidence in the order of the leaves, and the checkpoint. Personal values are in boxes
// that this page does not open; their commitments are part of each leaf.
import { areEqual, ofBase64, toHex, utf8 } from "../basics/bytes.js";
import { canonicalText, isObject, readLine } from "../basics/canonical.js";
import { isTextSigned } from "../basics/ed25519.js";
import { Frontier } from "../basics/merkle.js";
import { Sha256 } from "../basics/sha2.js";
import { decompressed, ZstdError } from "../basics/zstd.js";
import { areCommitments, BundleError, headOf } from "../proof/bundle.js";
import { isVouchedFor, leafOf, PERSONAL, VERSIONS } from "../proof/record.js";
import { Report, rung, RUNGS, worst } from "../proof/verdict.js";
import { linesOf } from "./lines.js";

/** @typedef {import("./kind.js").Kind} Kind
 *  @typedef {import("../proof/verdict.js").Rung} Rung
 *  @typedef {import("../proof/verdict.js").RecordLine} RecordLine
 *  @typedef {{leaf: Uint8Array, row: Record<string, any>, commitments: Map<string, string>, index: number}} Line */

const FIELDS = "code_version,columns,files,format,key_id,month,origin,root,rows,schema_versions,signature";
/** @type {Record<string, string>} */
const NAMES = { evidence: "evidence.jsonl.zst", leaves: "leaves", checkpoint: "checkpoint.note", keys: "keys.pub" };
const LINES_AT_ONCE = 64;
const MEMBERS = ["commitments", "erased_at", "leaf_index", "personal", "row", "signature", "spooled"];
/** @type {Partial<Record<import("../proof/verdict.js").RungName, string>>} */
const NOT_HERE = {
  words: "Personal values are in boxes that this page does not open. Their commitments are part of the leaf.",
  vault: "Drop a package to compare the month with the anchors of the vault.",
  witness: "An archive has no head of heads.", "time stamp": "An archive has no time stamp.",
};

export class Archive extends Report {
  /** @param {Map<Kind, File>} files @param {import("./package.js").Given} given @param {import("./package.js").Watch} watch */
  constructor(files, { ring }, watch) {
    super();
    this.files = files;
    this.ring = ring;
    this.watch = watch;
    /** @type {Record<string, any> | null} */
    this.manifest = null;
    /** @type {import("../proof/bundle.js").Head} */
    this.head = { note: "", month: null, checkpoint: null, keyId: "", wrong: "The archive's checkpoint.note was not dropped" };
    this.leaves = new Uint8Array();
    this.tree = new Frontier();
  }

  async check() {
    const manifest = this.files.get("manifest"), evidence = this.files.get("evidence");
    if (!manifest || !evidence) return this.tell("CANNOT_TELL", "Drop manifest.json, evidence.jsonl.zst, checkpoint.note and leaves of the archive together");
    await this.readManifest(await bytesOf(manifest));
    if (!this.manifest) return;
    await this.readHead();
    for (const kind of /** @type {Kind[]} */ (["evidence", "leaves", "checkpoint", "keys"])) await this.compareFile(kind);
    this.leaves = await bytesOf(this.files.get("leaves") ?? new Blob());
    await this.readEvidence(evidence);
    this.finish(this.manifest);
  }

  /** @param {RecordLine} record */
  async shown({ kept, line, rungs, verdict }) {
    const judged = await this.judged(new Uint8Array(await kept.content.slice(kept.from, kept.to).arrayBuffer()), line - 1);
    const { read } = judged;
    const bundle = read && { row: read.row, index: read.index, month: read.row.timestamp.slice(0, 7), proof: [], note: this.head.note, commitments: read.commitments, delegation: null };
    return { bundle, leaf: read ? toHex(read.leaf) : "", commitments: read?.commitments ?? new Map(), rungs: rungs ?? judged.rungs, verdict };
  }

  /** @param {Uint8Array} content */
  async readManifest(content) {
    const body = readLine(content);
    if (!body || Object.keys(body).join() !== FIELDS || !isManifest(body)) return this.tell("TAMPERED", "The manifest is not one of an archive, in canonical form", "manifest.json");
    this.manifest = body;
    const { signature, ...unsigned } = body;
    const key = this.ring.headKeys(`${body.month}-01T00:00:00.000000Z`).find(({ id }) => `affidavit+${id}` === body.key_id);
    const signed = ofBase64(signature), message = utf8(`affidavit archive\n${canonicalText(unsigned)}\n`);
    if (!key || !signed || !(await isTextSigned(key.raw, signed, message))) this.tell("TAMPERED", "None of the given keys signed the manifest", "manifest.json");
  }

  async readHead() {
    const file = this.files.get("checkpoint");
    if (!file) return this.tell("CANNOT_TELL", this.head.wrong, "checkpoint.note");
    this.head = await headOf(new TextDecoder().decode(await bytesOf(file)), this.ring);
    const { checkpoint, wrong } = this.head, manifest = this.manifest ?? {};
    if (wrong) return this.tell("TAMPERED", wrong, "checkpoint.note", "checkpoint");
    const said = [manifest.origin, manifest.month, String(manifest.rows), manifest.root].join(" ");
    const found = [checkpoint?.origin, checkpoint?.month, checkpoint?.size, toHex(checkpoint?.root ?? new Uint8Array())].join(" ");
    if (said !== found) this.tell("TAMPERED", "The manifest and the checkpoint disagree on the log, the month, its size or its root", "checkpoint.note", "checkpoint", said, found);
    for (const { kept, lost } of checkpoint?.breaks ?? []) {
      this.tell("LOST_BY_FAILOVER", `The leaves ${kept} to ${lost - 1n} were lost by a failover or a restore, and the checkpoint says so`, "checkpoint.note", "break");
    }
  }

  /** @param {Kind} kind */
  async compareFile(kind) {
    const file = this.files.get(kind), name = NAMES[kind], listed = this.manifest?.files[name];
    if (!file) return void this.notes.push(`${name} was not dropped.`);
    if (kind === "evidence" && !(await isCompressed(file))) return void this.notes.push("The evidence is decompressed, so its file is not compared with the manifest. Its records are.");
    const hash = new Sha256(), reader = file.stream().getReader();
    for (let next = await reader.read(); !next.done; next = await reader.read()) hash.update(next.value);
    const found = toHex(hash.digest());
    if (found === listed.sha256 && file.size === listed.size) return;
    this.tell("TAMPERED", "The file is not the one that the manifest lists: its digest or its size differs", name, "file", listed.sha256, found);
  }

  /** @param {File} file */
  async readEvidence(file) {
    let index = 0, done = 0;
    try {
      const pieces = (await isCompressed(file)) ? decompressed(await bytesOf(file)) : piecesOf(file);
      for await (const lines of linesOf(counted(pieces, (bytes) => (done += bytes)))) {
        for (let at = 0; at < lines.length; at += LINES_AT_ONCE) {
          const some = lines.slice(at, at + LINES_AT_ONCE), first = index;
          const judged = await Promise.all(some.map((line, place) => this.judged(line, first + place)));
          const content = new Blob(/** @type {BlobPart[]} */ (some));
          let from = 0;
          for (const [place, { length }] of some.entries()) this.addRecord(judged[place], index++, { content, from, to: (from += length) });
          await this.watch.tell(index, Math.max(index, Number(this.manifest?.rows)));
        }
      }
    } catch (wrong) {
      if (!(wrong instanceof ZstdError || wrong instanceof RangeError)) throw wrong;
      this.tell("TAMPERED", wrong.message, "evidence.jsonl.zst");
    }
    this.notes.push(`${Math.round(done / 2 ** 20)} MiB of evidence were read. The typed copy, rows.parquet, proves nothing by itself and was not read.`);
  }

  /** @param {{read: Line | null, rungs: Rung[]}} judged @param {number} index @param {import("../proof/verdict.js").Kept} kept */
  addRecord({ read, rungs }, index, kept) {
    if (read) this.tree.append(read.leaf);
    for (const each of rungs) this.climb(each);
    const reds = rungs.filter(({ verdict }) => verdict === "TAMPERED"), row = read?.row;
    const month = String(this.manifest?.month), place = { month, leafIndex: index, logId: row?.log_id, file: "evidence.jsonl", line: index + 1 };
    for (const each of reds) if (each.words !== this.head.wrong) this.add({ ...place, ...each, what: each.rung });
    const unknown = rungs.some(({ rung, verdict }) => rung === "row" && verdict === "CANNOT_TELL");
    if (unknown) this.add({ ...place, verdict: "CANNOT_TELL", what: "row", words: "This page does not know the record's schema version: use a newer one" });
    const verdict = reds.length ? worst(reds.map(({ verdict }) => verdict)) : unknown ? "CANNOT_TELL" : "VALID";
    const question = row ? `${row.endpoint ?? ""} ${row.outcome ?? ""}`.trim() || row.log_id : "Not a record";
    this.records.push({ month, line: index + 1, index, logId: row?.log_id ?? "", time: row?.timestamp ?? "", question, verdict, rungs: reds.length ? rungs : null, kept });
  }

  /** @param {Uint8Array} content @param {number} index @returns {Promise<{read: Line | null, rungs: Rung[]}>} */
  async judged(content, index) {
    const rest = RUNGS.flatMap((name) => (NOT_HERE[name] ? [rung(name, "CANNOT_TELL", NOT_HERE[name])] : []));
    const { checkpoint, wrong, keyId } = this.head;
    const ofHead = checkpoint && !wrong ? rung("checkpoint", "VALID", `Signed at ${checkpoint.time} with the pinned key ${keyId}.`)
      : rung("checkpoint", this.files.has("checkpoint") ? "TAMPERED" : "CANNOT_TELL", wrong);
    try {
      const read = lineOf(content, index), month = String(this.manifest?.month), { row } = read;
      const vouched = await isVouchedFor(row, read.leaf, BigInt(index), checkpoint ? checkpoint.signedFrom : null, this.ring);
      const listed = this.leaves.subarray(32 * index, 32 * index + 32);
      return { read, rungs: [
        ...rest, ofHead,
        !VERSIONS.includes(row.schema_version) ? rung("row", "CANNOT_TELL", `This page does not know schema version ${row.schema_version}.`)
          : vouched ? rung("row", "VALID", "Its columns and commitments give the leaf, and the engine signed it where it must.")
            : rung("row", "TAMPERED", "None of the given keys signed this row: it was altered, or the engine did not write it"),
        !this.files.has("leaves") ? rung("leaf", "CANNOT_TELL", "The file of the leaves was not dropped. All leaves together must give the root.")
          : areEqual(listed, read.leaf) ? rung("leaf", "VALID", `Leaf ${index} of the archive. All leaves together must give the root.`)
            : rung("leaf", "TAMPERED", "The record is not the one that was sealed at this place", { expected: toHex(listed), found: toHex(read.leaf) }),
        row.timestamp.startsWith(month) ? rung("month", "VALID", `The record is of ${month}.`)
          : rung("month", "TAMPERED", "The record is not of the archive's month", { expected: month, found: row.timestamp }),
      ] };
    } catch (wrong) {
      const words = wrong instanceof BundleError ? wrong.message : "The record has no canonical form";
      return { read: null, rungs: [...rest, ofHead, rung("row", "TAMPERED", words), ...(/** @type {const} */ (["leaf", "month"])).map((name) => rung(name, "CANNOT_TELL", "The record could not be read."))] };
    }
  }

  /** @param {Record<string, any>} manifest */
  finish({ rows, root }) {
    const found = toHex(this.tree.root());
    if (this.records.length !== rows) {
      this.tell(this.records.length < rows ? "MISSING" : "TAMPERED", `The archive has ${this.records.length} records, and its manifest says ${rows}`, "evidence.jsonl.zst", "log", String(rows), String(this.records.length));
    }
    if (found !== root) this.tell("TAMPERED", "The records do not give the root of the month's tree", "evidence.jsonl.zst", "leaf", root, found);
    if (this.files.has("leaves") && this.leaves.length !== 32 * rows) this.tell("TAMPERED", "The file of the leaves has another length", "leaves", "leaf");
  }

  /** @param {import("../proof/verdict.js").Verdict} verdict @param {string} words @param {string} [file] @param {string} [what] @param {string} [expected] @param {string} [found] */
  tell(verdict, words, file, what = "file", expected, found) {
    this.add({ verdict, what, words, file, expected, found });
  }
}

/** The record in a line of the evidence, if it is in its one form.
 * @param {Uint8Array} content @param {number} index @returns {Line} */
function lineOf(content, index) {
  const body = readLine(content);
  if (!body || !Object.keys(body).every((name) => MEMBERS.includes(name)) || !isObject(body.row) || !isObject(body.commitments)) {
    throw new BundleError("The line is not one record in canonical form");
  }
  const { row } = body, names = Object.keys(row);
  if (body.leaf_index !== index) throw new BundleError(`The line is of leaf ${body.leaf_index}, and it stands at ${index}`);
  if (names.some((name) => !/^[a-z][a-z0-9_]*$/.test(name) || row[name] === null || PERSONAL.has(name))) throw new BundleError("The record has a column that it must not have");
  if (["spooled", "salt", "leaf_hash", "erased_at", "signature"].some((name) => name in row)) throw new BundleError("The record has a column that it must not have");
  if (Object.keys(body.commitments).length && !areCommitments(body.commitments)) throw new BundleError("The commitments are not those of personal columns");
  if (typeof row.timestamp !== "string" || typeof row.log_id !== "string") throw new BundleError("The line does not contain a complete record");
  const commitments = new Map(Object.entries(body.commitments)), leaf = leafOf(row, commitments);
  const signature = body.signature === undefined ? null : ofBase64(String(body.signature));
  if (body.signature !== undefined && signature?.length !== 68) throw new BundleError("The record's signature is not 68 bytes");
  return { leaf, commitments, index, row: signature ? { ...row, signature: `\\x${toHex(signature)}` } : row };
}

/** @param {Record<string, any>} body */
function isManifest({ origin, month, rows, root, files, key_id: keyId, signature }) {
  return typeof origin === "string" && /^[0-9]{4}-[0-9]{2}$/.test(month) && Number.isInteger(rows) && rows >= 1 && /^[0-9a-f]{64}$/.test(root)
    && typeof keyId === "string" && typeof signature === "string" && isObject(files) && Object.values(NAMES).every((name) => isObject(files[name]));
}

/** @param {File} file */
async function isCompressed(file) {
  return areEqual(new Uint8Array(await file.slice(0, 4).arrayBuffer()), Uint8Array.of(0x28, 0xb5, 0x2f, 0xfd));
}

/** @param {File} file @returns {AsyncGenerator<Uint8Array>} */
async function* piecesOf(file) {
  const reader = file.stream().getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
}

/** @param {AsyncIterable<Uint8Array> | Iterable<Uint8Array>} pieces @param {(bytes: number) => void} tell */
async function* counted(pieces, tell) {
  for await (const piece of pieces) {
    tell(piece.length);
    yield piece;
  }
}

/** @param {Blob} file */
async function bytesOf(file) {
  return new Uint8Array(await file.arrayBuffer());
}
