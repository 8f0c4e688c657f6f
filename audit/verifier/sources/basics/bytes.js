// Bytes and their texts. Every decoder accepts the one canonical spelling and gives null for any other.

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** @param {string} text */
export const utf8 = (text) => encoder.encode(text);

/** The text of UTF-8, or null: nothing is replaced, and nothing is left out.
 * @param {Uint8Array} bytes @returns {string | null} */
export function textOf(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
}

/** @param {Uint8Array} bytes */
export function toHex(bytes) {
  let text = "";
  for (const byte of bytes) text += (byte < 16 ? "0" : "") + byte.toString(16);
  return text;
}

/** @param {string} text @returns {Uint8Array | null} */
export function ofHex(text) {
  if (text.length % 2 || !/^[0-9a-f]*$/.test(text)) return null;
  return Uint8Array.from({ length: text.length / 2 }, (_, at) => parseInt(text.slice(2 * at, 2 * at + 2), 16));
}

/** @param {Uint8Array} bytes */
export function toBase64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** Standard alphabet, padded, unused bits zero.
 * @param {string} text @returns {Uint8Array | null} */
export function ofBase64(text) {
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(text) || text.length % 4) return null;
  const decoded = atob(text);
  return btoa(decoded) === text ? Uint8Array.from(decoded, (character) => character.charCodeAt(0)) : null;
}

/** @param {...Uint8Array} parts */
export function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** @param {Uint8Array} left @param {Uint8Array} right */
export function areEqual(left, right) {
  return left.length === right.length && left.every((byte, at) => byte === right[at]);
}
