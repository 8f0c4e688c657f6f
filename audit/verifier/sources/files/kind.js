// What a file is, by its content: a name proves nothing.
import { textOf } from "../basics/bytes.js";
import { isObject } from "../basics/canonical.js";
import { receiptOf } from "../proof/receipt.js";

/** @typedef {"package" | "evidence" | "manifest" | "checkpoint" | "keys" | "leaves" | "tlog-proof" | "receipt" | "proof" | "none"} Kind */

export const PROOF_BYTES_MAX = 64 * 2 ** 20; // far above any record; a larger file is no proof of ours
const ZIP_END_BYTES = 22;
const ZSTD = [0x28, 0xb5, 0x2f, 0xfd];

/** @param {File} file @returns {Promise<Kind>} */
export async function kindOfFile(file) {
  const begin = new Uint8Array(await file.slice(0, 4096).arrayBuffer());
  const end = new Uint8Array(await file.slice(-ZIP_END_BYTES).arrayBuffer());
  if ([begin, end].some(([first, second]) => first === 0x50 && second === 0x4b) || file.name.endsWith(".zip")) return "package";
  if (ZSTD.every((byte, at) => begin[at] === byte)) return "evidence";
  const text = new TextDecoder().decode(begin);
  if (text.startsWith("c2sp.org/tlog-proof@v1\n")) return "tlog-proof";
  if (text.startsWith('{"commitments":{') && /"leaf_index":|"personal":/.test(text) && !text.includes('"checkpoint":')) return "evidence";
  if (/^affidavit\+[0-9a-f]{8}\+/.test(text)) return "keys";
  if (/\n\n?— /.test(text) && /^[!-~]+\/[0-9]{4}-[0-9]{2}\n/.test(text)) return "checkpoint";
  if (!/^\s*[{[]/.test(text)) return file.name.endsWith("leaves") ? "leaves" : "none";
  return kindOfJson(new Uint8Array(await file.slice(0, PROOF_BYTES_MAX + 1).arrayBuffer()));
}

/** @param {Uint8Array} content @returns {Kind} */
function kindOfJson(content) {
  if (receiptOf(content)) return "receipt";
  try {
    const body = JSON.parse(textOf(content) ?? "");
    if (isObject(body) && String(body.format).startsWith("affidavit archive")) return "manifest";
    if (isObject(body) && "leaf_index" in body && !("checkpoint" in body) && !("format" in body)) return "evidence";
  } catch {
    // Several lines, or none of JSON: the check of a proof says what is wrong with it.
  }
  return "proof";
}
