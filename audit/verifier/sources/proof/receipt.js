// A receipt, alone or inside an answer of the API. It proves that the record must exist, not that it does.
import { ofBase64, utf8 } from "../basics/bytes.js";
import { isObject } from "../basics/canonical.js";
import { signedTime } from "../basics/times.js";

/** @typedef {{log_id: string, leaf_hash: string, issued_at: string, key_id: string, signature: string}} Receipt */

const FIELDS = ["issued_at", "key_id", "leaf_hash", "log_id", "signature"];
export const FORGED = "The signature is not valid under any given key: the receipt was altered, or another key signed it";
export const GENUINE = "The receipt is genuine, so the record must exist. Get its proof: GET /v1/receipts/{query_id}";

/** @param {Uint8Array} content @returns {Receipt | null} */
export function receiptOf(content) {
  try {
    const body = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content));
    const found = isObject(body) ? (body.receipt === undefined ? body : body.receipt) : null;
    return isObject(found) && Object.keys(found).sort().join() === FIELDS.join() ? /** @type {Receipt} */ (found) : null;
  } catch {
    return null;
  }
}

/** @param {Receipt} receipt @param {import("./keys.js").KeyRing} ring */
export async function isGenuine(receipt, ring) {
  const { log_id: logId, leaf_hash: leaf, issued_at: issuedAt, key_id: keyId, signature } = receipt;
  const time = signedTime(issuedAt), id = idOf(logId), signed = typeof signature === "string" ? ofBase64(signature) : null;
  if (!time || !id || !signed || typeof leaf !== "string" || typeof keyId !== "string" || !keyId.startsWith("affidavit+")) return false;
  const message = utf8(`affidavit receipt\n${id}\n${leaf}\n${time}\n`);
  return (await ring.signer(keyId.slice("affidavit+".length), time, signed, message)) !== null;
}

/** @param {unknown} text */
function idOf(text) {
  return typeof text === "string" && /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text) ? text.toLowerCase() : null;
}
