// Canonical JSON (RFC 8785), which is defined by what JavaScript writes. A file is read only if writing what was read gives the
// same text again: so a second member of one name, a needless space or another spelling of a number cannot hide.
import { textOf } from "../basics/bytes.js";

const HALF_PAIR = /[\ud800-\udfff]/u;

/** The value's one and only text. Throws if it has none.
 * @param {unknown} value @returns {string} */
export function canonicalText(value) {
  if (typeof value === "string") return quoted(value);
  if (typeof value !== "object" || value === null) return plain(value);
  if (Array.isArray(value)) return `[${value.map(canonicalText).join()}]`;
  const members = /** @type {Record<string, unknown>} */ (value);
  return `{${Object.keys(members).sort().map((name) => `${quoted(name)}:${canonicalText(members[name])}`).join()}}`;
}

/** The object in one line of canonical JSON; null if the bytes are anything else, down to the last of them.
 * @param {Uint8Array} bytes @returns {Record<string, any> | null} */
export function readLine(bytes) {
  const text = textOf(bytes);
  return text !== null && text.endsWith("\n") ? readText(text.slice(0, -1)) : null;
}

/** The same, without the line's end.
 * @param {string} text @returns {Record<string, any> | null} */
export function readText(text) {
  try {
    const value = JSON.parse(text);
    return isObject(value) && canonicalText(value) === text ? value : null;
  } catch {
    return null;
  }
}

/** @param {unknown} value @returns {value is Record<string, any>} */
export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** @param {string} text */
function quoted(text) {
  if (HALF_PAIR.test(text)) throw new TypeError("Half of a surrogate pair has no canonical form");
  return JSON.stringify(text);
}

/** @param {unknown} value */
function plain(value) {
  const text = JSON.stringify(value);
  if (text === undefined || (text === "null" && value !== null)) throw new TypeError("No JSON value");
  return text;
}
