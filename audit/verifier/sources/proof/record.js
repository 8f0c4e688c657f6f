// A row: its commitments, its leaf, its signature.
import { toHex, utf8 } from "../basics/bytes.js";
import { canonicalText } from "../basics/canonical.js";
import { apart, bytesOf } from "./keys.js";
import { sha256 } from "../basics/sha2.js";

/** @typedef {import("./keys.js").KeyRing} KeyRing
 *  @typedef {Record<string, any>} Row */

export const VERSIONS = [2, 3, 4];
const SIGNED_FROM = 4;
export const PERSONAL = new Set([
  "user_query_text", "retrieval_query", "chunks_returned", "llm_prompt", "llm_response", "answer_text", "released_text",
  "citations", "selected_text", "filters", "filter_message", "details", "end_user", "client_address",
]);
const UNHASHED = new Set(["spooled", "salt", "leaf_hash", "erased_at", "signature"]);
const LEAF = Uint8Array.of(0), END = Uint8Array.of(0);

/** The salted hashes that stand for the personal values in the leaf.
 * @param {Row} row @returns {Map<string, string>} */
export function commitmentsOf(row) {
  const salt = bytesOf(row.salt);
  if (!salt) throw new TypeError("The record's salt is missing");
  const names = Object.keys(row).filter((name) => PERSONAL.has(name));
  return new Map(names.map((name) => [name, toHex(sha256(salt, utf8(name), END, utf8(canonicalText(row[name]))))]));
}

/** @param {Row} row @param {Map<string, string>} commitments */
export function leafOf(row, commitments) {
  const members = Object.keys(row).filter((name) => !UNHASHED.has(name) && !PERSONAL.has(name));
  const texts = new Map(members.map((name) => [name, canonicalText(row[name])]));
  for (const [name, commitment] of commitments) texts.set(name, `"${commitment}"`);
  const whole = [...texts.keys()].sort().map((name) => `"${name}":${texts.get(name)}`).join();
  return sha256(LEAF, utf8(`{${whole}}`));
}

/** Whether a row at this place needs a signature.
 * @param {unknown} version @param {bigint} index @param {bigint | null} signedFrom */
export function mustBeSigned(version, index, signedFrom) {
  return Number(version) >= SIGNED_FROM || (signedFrom !== null && index >= signedFrom);
}

/** Whether the row has a valid signature, or none and needs none at this place of its tree.
 * @param {Row} row @param {Uint8Array} leaf @param {bigint} index @param {bigint | null} signedFrom @param {KeyRing} ring */
export async function isVouchedFor(row, leaf, index, signedFrom, ring) {
  if (row.signature === undefined) return !mustBeSigned(row.schema_version, index, signedFrom);
  const whole = bytesOf(row.signature);
  if (whole?.length !== 68) return false;
  const { id, signature } = apart(whole);
  const message = utf8(`affidavit row\n${row.log_id}\n${toHex(leaf)}\n`);
  return (await ring.signer(id, row.timestamp, signature, message)) !== null;
}
