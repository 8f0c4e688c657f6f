// The proof of one record: decoded as strictly as the command line does it, and judged rung by rung.
import { areEqual, ofHex, toBase64, toHex } from "../basics/bytes.js";
import { isObject, readLine } from "../basics/canonical.js";
import { keyOfLine } from "./keys.js";
import { rootOfPath } from "../basics/merkle.js";
import { NoteError, openCheckpoint, parseNote, readCheckpoint } from "./note.js";
import { commitmentsOf, isVouchedFor, leafOf, PERSONAL, VERSIONS } from "./record.js";
import { isTime } from "../basics/times.js";
import { rung, RUNGS } from "./verdict.js";

/** @typedef {import("./keys.js").KeyRing} KeyRing
 *  @typedef {import("./note.js").Checkpoint} Checkpoint
 *  @typedef {import("./verdict.js").Rung} Rung
 *  @typedef {{row: Record<string, any>, index: number, proof: Uint8Array[], note: string, month: string,
 *    commitments: Map<string, string> | null, delegation: {line: string, key: import("./keys.js").Key} | null}} Bundle
 *  @typedef {{bundle: Bundle | null, leaf: string, commitments: Map<string, string>, rungs: Rung[],
 *    verdict: import("./verdict.js").Verdict}} Judged */

export class BundleError extends Error {}
export class UnknownVersionError extends BundleError {}

export const FORMAT = "affidavit proof 1";
const FIELDS = ["checkpoint", "format", "leaf_index", "proof", "row"];
const OPTIONAL = ["commitments", "delegation"];
const HASH = /^[0-9a-f]{64}$/;
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const NEVER = ["spooled", "leaf_hash", "erased_at"];

/** @param {Uint8Array} content @returns {Bundle} */
export function decode(content) {
  const body = readLine(content);
  if (!body) throw new BundleError("The file is not one line of canonical JSON: it was changed, or another program wrote it");
  const names = Object.keys(body).filter((name) => !OPTIONAL.includes(name));
  if (names.join() !== FIELDS.join() || body.format !== FORMAT) {
    throw new BundleError(`The file does not have exactly the fields of “${FORMAT}”`);
  }
  const isErased = "commitments" in body;
  checkRow(body.row, isErased);
  if (isErased && !areCommitments(body.commitments)) throw new BundleError("The commitments are not those of erased columns");
  if (!Number.isInteger(body.leaf_index) || typeof body.checkpoint !== "string") {
    throw new BundleError("The leaf_index or the checkpoint is missing");
  }
  return {
    row: body.row, index: body.leaf_index, proof: hashes(body.proof), note: body.checkpoint, month: monthOf(body.row),
    commitments: isErased ? new Map(Object.entries(body.commitments)) : null, delegation: "delegation" in body ? delegationOf(body.delegation, body.row) : null,
  };
}

/** What a record is compared with: the head of its month, as far as it can be read, and what is wrong with it.
 * @typedef {{note: string, month: string | null, checkpoint: Checkpoint | null, keyId: string, wrong: string}} Head */

/** @param {string} note @param {KeyRing} ring @returns {Promise<Head>} */
export async function headOf(note, ring) {
  const head = { note, month: null, checkpoint: null, keyId: "", wrong: "" };
  try {
    const checkpoint = readCheckpoint(parseNote(note).text);
    const read = { ...head, month: checkpoint.month, checkpoint };
    return await openCheckpoint(note, ring).then(({ keyId }) => ({ ...read, keyId }), (wrong) => ({ ...read, wrong: reason(wrong).message }));
  } catch (wrong) {
    return { ...head, wrong: reason(wrong).message };
  }
}

/** Every rung that a proof has by itself. The head is that of its own note, or one that was found elsewhere.
 * @param {Uint8Array} content @param {KeyRing} ring @param {Head} [given] @returns {Promise<Judged>} */
export async function judge(content, ring, given) {
  let bundle, leaf, commitments;
  try {
    bundle = decode(content);
    commitments = bundle.commitments ?? commitmentsOf(bundle.row);
    leaf = leafOf(bundle.row, commitments);
  } catch (wrong) {
    return unreadable(wrong);
  }
  const head = given ?? (await headOf(bundle.note, ring));
  const rungs = [await rowRung(bundle, leaf, head, ring), leafRung(bundle, leaf, head), monthRung(bundle, head), checkpointRung(head)];
  const isRed = rungs.some(({ verdict }) => verdict === "TAMPERED");
  return { bundle, leaf: toHex(leaf), commitments, rungs, verdict: isRed ? "TAMPERED" : bundle.commitments ? "ERASED" : "VALID" };
}

/** @param {unknown} wrong @returns {Judged} */
function unreadable(wrong) {
  const { message } = reason(wrong);
  const verdict = wrong instanceof UnknownVersionError ? "CANNOT_TELL" : "TAMPERED";
  const nothing = "The record could not be read, so there is nothing to check.";
  const rungs = RUNGS.map((name) => (name === "row" ? rung(name, verdict, message) : rung(name, "CANNOT_TELL", nothing)));
  return { bundle: null, leaf: "", commitments: new Map(), rungs, verdict };
}

/** @param {Bundle} bundle @param {Uint8Array} leaf @param {Head} head @param {KeyRing} ring */
async function rowRung({ row, index, delegation }, leaf, { checkpoint }, ring) {
  const known = delegation ? ring.withDelegations([delegation.line]) : ring;
  if (delegation && !(await known.isRowKey(delegation.key, row.timestamp))) {
    return rung("row", "TAMPERED", "None of the given keys delegated the key that signed the record, or not for its time");
  }
  if (!(await isVouchedFor(row, leaf, BigInt(index), checkpoint ? checkpoint.signedFrom : 0n, known))) {
    const found = row.signature ? `one of affidavit+${row.signature.slice(2, 10)} that does not fit the leaf ${toHex(leaf)}` : "no signature";
    return rung("row", "TAMPERED", "None of the given keys signed this row: it was altered, or the engine did not write it",
      { expected: `a signature of this leaf by ${known.keys.map(({ id }) => `affidavit+${id}`).join(", ")}`, found });
  }
  return rung("row", "VALID", row.signature
    ? `Its columns give the leaf, and the engine signed it with affidavit+${row.signature.slice(2, 10)}.`
    : "Its columns give the leaf. Rows of this version were not signed.");
}

/** @param {Bundle} bundle @param {Uint8Array} leaf @param {Head} head */
function leafRung({ index, proof }, leaf, { checkpoint }) {
  if (!checkpoint) return rung("leaf", "CANNOT_TELL", "The checkpoint cannot be read, so no root is known.");
  const found = rootOfPath(leaf, BigInt(index), checkpoint.size, proof);
  if (found && areEqual(found, checkpoint.root)) {
    return rung("leaf", "VALID", `Leaf ${index} of ${checkpoint.size}: its path leads to the root of the checkpoint.`);
  }
  const path = found ? `its path leads to ${toBase64(found)}` : `its path is not one of leaf ${index} in a tree of ${checkpoint.size}`;
  return rung("leaf", "TAMPERED",
    "The record is not the one that was sealed at this place: it was altered, or the proof is of another one",
    { expected: `the root ${toBase64(checkpoint.root)}`, found: path });
}

/** @param {Bundle} bundle @param {Head} head */
function monthRung({ month, note }, head) {
  if (!head.month) return rung("month", "CANNOT_TELL", "The checkpoint cannot be read, so no month is known.");
  if (month !== head.month) {
    return rung("month", "TAMPERED", `The record is not of the checkpoint's month, ${head.month}`, { expected: head.month, found: month });
  }
  if (note !== head.note) {
    return rung("month", "TAMPERED", "The record's checkpoint is not that of its month in the package", { expected: head.note, found: note });
  }
  if (!head.checkpoint) return rung("month", "VALID", `The record is of ${month}.`);
  const { size, previous, breaks } = head.checkpoint;
  const lost = breaks.map(({ kept, lost }) => ` The leaves ${kept} to ${lost - 1n} were lost by a failover or a restore, and it says so.`);
  return rung("month", "VALID", `${month} has ${size} records.${previous ? ` It follows ${previous.month} with ${previous.size}.` : ""}${lost.join("")}`);
}

/** @param {Head} head */
function checkpointRung({ checkpoint, keyId, wrong }) {
  if (wrong || !checkpoint) return rung("checkpoint", "TAMPERED", wrong);
  return rung("checkpoint", "VALID", `Signed at ${checkpoint.time} with the pinned key ${keyId}.`);
}

/** @param {any} row @param {boolean} isErased */
function checkRow(row, isErased) {
  if (!isObject(row) || !["log_id", "query_id", "timestamp", "schema_version"].every((name) => name in row)) {
    throw new BundleError("The file does not contain a complete record");
  }
  if (!VERSIONS.includes(row.schema_version)) {
    throw new UnknownVersionError(`This program does not know schema version ${row.schema_version} of records: use a newer one`);
  }
  const names = Object.keys(row);
  const surplus = names.find((name) => NEVER.includes(name) || (isErased && (name === "salt" || PERSONAL.has(name))));
  if (surplus) throw new BundleError(`A proof of this kind must not contain ${surplus}`);
  if (!names.every((name) => /^[a-z][a-z0-9_]*$/.test(name))) throw new BundleError("The record has an invalid column name");
  if (names.some((name) => row[name] === null)) throw new BundleError("A proof must not contain columns without a value");
  if (!isErased && !isTextOf(/^\\x[0-9a-f]{64}$/, row.salt)) throw new BundleError("The record's salt is missing");
  if ("signature" in row && !isTextOf(/^\\x[0-9a-f]{136}$/, row.signature)) throw new BundleError("The record's signature is not 68 bytes");
  monthOf(row);
  for (const name of ["log_id", "query_id"]) {
    if (!isTextOf(ID, row[name])) throw new BundleError(`The record's ${name} is not a UUID`);
  }
}

/** @param {Record<string, any>} row */
function monthOf({ timestamp }) {
  if (!isTime(timestamp)) throw new BundleError("The record's timestamp is not written as a time in UTC");
  return timestamp.slice(0, 7);
}

/** The key that signed the row, with its delegation. Whether that counts is for the pinned keys to say.
 * @param {unknown} line @param {Record<string, any>} row */
function delegationOf(line, row) {
  const key = typeof line === "string" ? keyOfLine(line) : null;
  if (!key?.delegation) throw new BundleError("The delegation is not a line of a file of keys");
  if (String(row.signature).slice(2, 10) !== key.id) throw new BundleError("The delegation is not of the key that signed the record");
  return { line: String(line), key };
}

/** Under another name than a personal column's one could hide a column that was changed.
 * @param {unknown} commitments */
export function areCommitments(commitments) {
  if (!isObject(commitments)) return false;
  const names = Object.keys(commitments);
  return names.length > 0 && names.every((name) => PERSONAL.has(name) && isTextOf(HASH, commitments[name]));
}

/** @param {unknown} proof @returns {Uint8Array[]} */
function hashes(proof) {
  if (!Array.isArray(proof) || !proof.every((part) => isTextOf(HASH, part))) {
    throw new BundleError("The inclusion proof is not a list of hashes of 32 bytes");
  }
  return proof.map((part) => /** @type {Uint8Array} */ (ofHex(part)));
}

/** @param {RegExp} pattern @param {unknown} value */
const isTextOf = (pattern, value) => typeof value === "string" && pattern.test(value);

/** @param {unknown} wrong */
function reason(wrong) {
  const isOurs = wrong instanceof NoteError || wrong instanceof BundleError;
  return isOurs ? wrong : new BundleError("The record has no canonical form");
}
