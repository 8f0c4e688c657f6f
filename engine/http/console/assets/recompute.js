
"use strict";

const basics_bytes = (() => {
// Bytes and their texts. Every decoder accepts the one canonical spelling and gives null for any other.

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** @param {string} text */
const utf8 = (text) => encoder.encode(text);

/** The text of UTF-8, or null: nothing is replaced, and nothing is left out.
 * @param {Uint8Array} bytes @returns {string | null} */
function textOf(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
}

/** @param {Uint8Array} bytes */
function toHex(bytes) {
  let text = "";
  for (const byte of bytes) text += (byte < 16 ? "0" : "") + byte.toString(16);
  return text;
}

/** @param {string} text @returns {Uint8Array | null} */
function ofHex(text) {
  if (text.length % 2 || !/^[0-9a-f]*$/.test(text)) return null;
  return Uint8Array.from({ length: text.length / 2 }, (_, at) => parseInt(text.slice(2 * at, 2 * at + 2), 16));
}

/** @param {Uint8Array} bytes */
function toBase64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** Standard alphabet, padded, unused bits zero.
 * @param {string} text @returns {Uint8Array | null} */
function ofBase64(text) {
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(text) || text.length % 4) return null;
  const decoded = atob(text);
  return btoa(decoded) === text ? Uint8Array.from(decoded, (character) => character.charCodeAt(0)) : null;
}

/** @param {...Uint8Array} parts */
function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** @param {Uint8Array} left @param {Uint8Array} right */
function areEqual(left, right) {
  return left.length === right.length && left.every((byte, at) => byte === right[at]);
}
return { utf8, textOf, toHex, ofHex, toBase64, ofBase64, joined, areEqual };
})();

const basics_canonical = (() => {
// Canonical JSON (RFC 8785), which is defined by what JavaScript writes. A file is read only if writing what was read gives the
// same text again: so a second member of one name, a needless space or another spelling of a number cannot hide.
const { textOf } = basics_bytes;

const HALF_PAIR = /[\ud800-\udfff]/u;

/** The value's one and only text. Throws if it has none.
 * @param {unknown} value @returns {string} */
function canonicalText(value) {
  if (typeof value === "string") return quoted(value);
  if (typeof value !== "object" || value === null) return plain(value);
  if (Array.isArray(value)) return `[${value.map(canonicalText).join()}]`;
  const members = /** @type {Record<string, unknown>} */ (value);
  return `{${Object.keys(members).sort().map((name) => `${quoted(name)}:${canonicalText(members[name])}`).join()}}`;
}

/** The object in one line of canonical JSON; null if the bytes are anything else, down to the last of them.
 * @param {Uint8Array} bytes @returns {Record<string, any> | null} */
function readLine(bytes) {
  const text = textOf(bytes);
  return text !== null && text.endsWith("\n") ? readText(text.slice(0, -1)) : null;
}

/** The same, without the line's end.
 * @param {string} text @returns {Record<string, any> | null} */
function readText(text) {
  try {
    const value = JSON.parse(text);
    return isObject(value) && canonicalText(value) === text ? value : null;
  } catch {
    return null;
  }
}

/** @param {unknown} value @returns {value is Record<string, any>} */
function isObject(value) {
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
return { canonicalText, readLine, readText, isObject };
})();

const basics_sha2 = (() => {
// SHA-256 and SHA-512 (FIPS 180-4) in plain JavaScript. The browser's own digest is asynchronous, and a call of it takes longer
// than hashing a small value here; and a browser that lacks Ed25519 may lack it too.
const { joined } = basics_bytes;

const PRIMES = primes(80);
const MASK = (1n << 64n) - 1n;
const K512 = PRIMES.map((prime) => rootOf(BigInt(prime) << 192n, 3n) & MASK); // the fractions of the primes' cube roots
const H512 = PRIMES.slice(0, 8).map((prime) => rootOf(BigInt(prime) << 128n, 2n) & MASK);
const K256 = Int32Array.from(K512.slice(0, 64), (value) => Number(value >> 32n) | 0);
const H256 = Int32Array.from(H512, (value) => Number(value >> 32n) | 0);
const schedule = new Int32Array(64);

/** @param {...Uint8Array} parts */
function sha256(...parts) {
  const hash = new Sha256();
  for (const part of parts) hash.update(part);
  return hash.digest();
}

class Sha256 {
  constructor() {
    this.state = Int32Array.from(H256);
    this.block = new Uint8Array(64);
    this.length = 0;
  }

  /** @param {Uint8Array} bytes */
  update(bytes) {
    let at = 0;
    const held = this.length % 64;
    this.length += bytes.length;
    if (held) {
      at = Math.min(64 - held, bytes.length);
      this.block.set(bytes.subarray(0, at), held);
      if (held + at < 64) return this;
      compress(this.state, this.block, 0);
    }
    for (; at + 64 <= bytes.length; at += 64) compress(this.state, bytes, at);
    this.block.set(bytes.subarray(at), 0);
    return this;
  }

  digest() {
    const held = this.length % 64;
    const tail = new Uint8Array(held < 56 ? 64 : 128);
    tail.set(this.block.subarray(0, held));
    tail[held] = 0x80;
    const view = new DataView(tail.buffer);
    view.setUint32(tail.length - 8, Math.floor(this.length / 2 ** 29));
    view.setUint32(tail.length - 4, (this.length * 8) >>> 0);
    for (let at = 0; at < tail.length; at += 64) compress(this.state, tail, at);
    const digest = new Uint8Array(32);
    this.state.forEach((word, at) => new DataView(digest.buffer).setInt32(4 * at, word));
    return digest;
  }
}

/** @param {Int32Array} state @param {Uint8Array} bytes @param {number} from */
function compress(state, bytes, from) {
  const w = schedule;
  for (let i = 0; i < 16; i++, from += 4) {
    w[i] = (bytes[from] << 24) | (bytes[from + 1] << 16) | (bytes[from + 2] << 8) | bytes[from + 3];
  }
  for (let i = 16; i < 64; i++) {
    const x = w[i - 15], y = w[i - 2];
    const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
  }
  let a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
  for (let i = 0; i < 64; i++) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K256[i] + w[i]) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g; g = f; f = e; e = (d + t1) | 0; d = c; c = b; b = a; a = (t1 + t2) | 0;
  }
  state[0] += a; state[1] += b; state[2] += c; state[3] += d; state[4] += e; state[5] += f; state[6] += g; state[7] += h;
}

/** For signatures alone, where the browser has none: in whole numbers, because nothing here needs speed.
 * @param {...Uint8Array} parts */
function sha512(...parts) {
  const bytes = joined(...parts);
  const whole = new Uint8Array(Math.ceil((bytes.length + 17) / 128) * 128);
  whole.set(bytes);
  whole[bytes.length] = 0x80;
  const view = new DataView(whole.buffer);
  view.setBigUint64(whole.length - 8, BigInt(bytes.length) * 8n);
  const state = [...H512];
  for (let at = 0; at < whole.length; at += 128) compress512(state, view, at);
  const digest = new DataView(new ArrayBuffer(64));
  state.forEach((word, at) => digest.setBigUint64(8 * at, word));
  return new Uint8Array(digest.buffer);
}

/** @param {bigint[]} state @param {DataView} view @param {number} from */
function compress512(state, view, from) {
  const w = Array.from({ length: 16 }, (_, i) => view.getBigUint64(from + 8 * i));
  for (let i = 16; i < 80; i++) {
    const x = w[i - 15], y = w[i - 2];
    const s0 = turned(x, 1n) ^ turned(x, 8n) ^ (x >> 7n);
    const s1 = turned(y, 19n) ^ turned(y, 61n) ^ (y >> 6n);
    w.push((w[i - 16] + s0 + w[i - 7] + s1) & MASK);
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 80; i++) {
    const s1 = turned(e, 14n) ^ turned(e, 18n) ^ turned(e, 41n);
    const t1 = h + s1 + ((e & f) ^ (~e & MASK & g)) + K512[i] + w[i];
    const s0 = turned(a, 28n) ^ turned(a, 34n) ^ turned(a, 39n);
    const t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) & MASK, c, b, a, (t1 + t2) & MASK];
  }
  [a, b, c, d, e, f, g, h].forEach((word, at) => (state[at] = (state[at] + word) & MASK));
}

/** @param {bigint} word @param {bigint} by */
function turned(word, by) {
  return (word >> by) | ((word << (64n - by)) & MASK);
}

/** @param {number} count */
function primes(count) {
  const found = [2];
  for (let next = 3; found.length < count; next += 2) {
    if (found.every((prime) => next % prime)) found.push(next);
  }
  return found;
}

/** The largest whole number of which the power is not above the value, by Newton's method from above.
 * @param {bigint} value @param {bigint} power */
function rootOf(value, power) {
  let guess = 1n << (BigInt(value.toString(2).length) / power + 1n);
  for (;;) {
    const next = ((power - 1n) * guess + value / guess ** (power - 1n)) / power;
    if (next >= guess) return guess;
    guess = next;
  }
}
return { sha256, Sha256, sha512 };
})();

const basics_ed25519 = (() => {
// Ed25519 (RFC 8032). The browser's own where it has it; else in plain JavaScript, with the same verdicts: S below the group's
// order, points in their one canonical form, and no multiplication by the cofactor.
const { areEqual, ofHex, toHex, utf8 } = basics_bytes;
const { sha256, sha512 } = basics_sha2;

/** @typedef {{x: bigint, y: bigint, z: bigint, t: bigint}} Point  in extended coordinates: x/z, y/z, t = xy/z */

const SIGNED_BYTES_MAX = 4096;
const P = 2n ** 255n - 19n;
const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const D = modulo(-121665n * inverse(121666n));
const HALF_TURN = power(2n, (P - 1n) / 4n); // a square root of -1
const NEUTRAL = { x: 0n, y: 1n, z: 1n, t: 0n };
const BASE = pointOf(littleEndian(modulo(4n * inverse(5n)))) ?? NEUTRAL;
/** @type {Map<string, Point[]>} */
const multiplesOfKeys = new Map();
/** @type {Map<string, Promise<CryptoKey>>} */
const imported = new Map();
/** @type {Point[] | null} */
let multiplesOfBase = null;
/** @type {Promise<boolean> | null} */
let browserSigns = null;

/** Whether this key signed the message.
 * @param {Uint8Array} key @param {Uint8Array} signature @param {Uint8Array} message @returns {Promise<boolean>} */
async function isSigned(key, signature, message) {
  if (signature.length !== 64 || !isPoint(key)) return false;
  browserSigns ??= doesBrowserSign();
  return (await browserSigns) ? byBrowser(key, signature, message) : isSignedPlainly(key, signature, message);
}

/** Whether this key of a log signed the text. A long one may be signed by its digest: some keys elsewhere take no longer ones.
 * @param {Uint8Array} key @param {Uint8Array} signature @param {Uint8Array} text @returns {Promise<boolean>} */
async function isTextSigned(key, signature, text) {
  if (await isSigned(key, signature, text)) return true;
  return text.length > SIGNED_BYTES_MAX && isSigned(key, signature, utf8(`affidavit digest\n${toHex(sha256(text))}\n`));
}

/** Whether the browser's own program is used. */
async function isBrowsersOwn() {
  return (browserSigns ??= doesBrowserSign());
}

/** @param {Uint8Array} key @param {Uint8Array} signature @param {Uint8Array} message */
function isSignedPlainly(key, signature, message) {
  const s = numberOf(signature.subarray(32));
  const known = multiplesOf(key);
  if (signature.length !== 64 || s >= L || !known) return false;
  const h = modulo(numberOf(sha512(signature.subarray(0, 32), key, message)), L);
  multiplesOfBase ??= multiples(BASE);
  return areEqual(encoded(sumOfProducts(s, multiplesOfBase, h, known)), signature.subarray(0, 32));
}

/** Whether these 32 bytes are a point of the curve, spelt as it must be.
 * @param {Uint8Array} key */
const isPoint = (key) => multiplesOf(key) !== null;

/** @param {Uint8Array} key @param {Uint8Array} signature @param {Uint8Array} message */
async function byBrowser(key, signature, message) {
  const name = key.join();
  if (!imported.has(name)) imported.set(name, crypto.subtle.importKey("raw", owned(key), "Ed25519", false, ["verify"]));
  const known = /** @type {CryptoKey} */ (await imported.get(name));
  return crypto.subtle.verify("Ed25519", known, owned(signature), owned(message));
}

/** @param {Uint8Array} bytes @returns {Uint8Array<ArrayBuffer>} */
const owned = (bytes) => /** @type {Uint8Array<ArrayBuffer>} */ (bytes);

/** A known signature must be valid, and it over another message must not. */
async function doesBrowserSign() {
  const key = /** @type {Uint8Array} */ (ofHex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"));
  const signature = /** @type {Uint8Array} */ (ofHex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"));
  try {
    return (await byBrowser(key, signature, utf8(""))) && !(await byBrowser(key, signature, utf8("x")));
  } catch {
    return false;
  }
}

/** The key's point with the opposite sign, and its multiples up to the fifteenth.
 * @param {Uint8Array} key @returns {Point[] | null} */
function multiplesOf(key) {
  const name = key.join();
  const known = multiplesOfKeys.get(name);
  if (known) return known;
  const point = pointOf(key);
  if (!point) return null;
  const made = multiples({ ...point, x: modulo(-point.x), t: modulo(-point.t) });
  multiplesOfKeys.set(name, made);
  return made;
}

/** @param {Point} point */
function multiples(point) {
  const all = [NEUTRAL];
  while (all.length < 16) all.push(sum(all[all.length - 1], point));
  return all;
}

/** s times one point and h times another, four bits of both at a time.
 * @param {bigint} s @param {Point[]} ones @param {bigint} h @param {Point[]} others */
function sumOfProducts(s, ones, h, others) {
  let point = NEUTRAL;
  for (let bits = 252n; bits >= 0n; bits -= 4n) {
    for (let doubling = 0; doubling < 4; doubling++) point = doubled(point);
    point = sum(point, ones[Number((s >> bits) & 15n)]);
    point = sum(point, others[Number((h >> bits) & 15n)]);
  }
  return point;
}

/** @param {Point} one @param {Point} other @returns {Point} */
function sum(one, other) {
  const a = modulo((one.y - one.x) * (other.y - other.x)), b = modulo((one.y + one.x) * (other.y + other.x));
  const c = modulo(modulo(2n * D * one.t) * other.t), d = 2n * one.z * other.z;
  return joinedPoint(b - a, modulo(d - c), modulo(d + c), b + a);
}

/** @param {Point} point @returns {Point} */
function doubled({ x, y, z }) {
  const a = modulo(x * x), b = modulo(y * y), h = a + b;
  const e = h - modulo((x + y) * (x + y)), g = a - b;
  return joinedPoint(e, modulo(2n * z * z) + g, g, h);
}

/** @param {bigint} e @param {bigint} f @param {bigint} g @param {bigint} h @returns {Point} */
function joinedPoint(e, f, g, h) {
  return { x: modulo(e * f), y: modulo(g * h), z: modulo(f * g), t: modulo(e * h) };
}

/** @param {Uint8Array} bytes @returns {Point | null} */
function pointOf(bytes) {
  if (bytes.length !== 32) return null;
  const whole = numberOf(bytes);
  const sign = whole >> 255n, y = whole & (2n ** 255n - 1n);
  if (y >= P) return null;
  const square = modulo((y * y - 1n) * inverse(D * y * y + 1n));
  let x = power(square, (P + 3n) / 8n);
  if (modulo(x * x) !== square) x = modulo(x * HALF_TURN);
  if (modulo(x * x) !== square || (x === 0n && sign)) return null;
  if ((x & 1n) !== sign) x = P - x;
  return { x, y, z: 1n, t: modulo(x * y) };
}

/** @param {Point} point */
function encoded({ x, y, z }) {
  const shrunk = inverse(z);
  return littleEndian(modulo(y * shrunk) | ((modulo(x * shrunk) & 1n) << 255n));
}

/** @param {bigint} number */
function littleEndian(number) {
  return Uint8Array.from({ length: 32 }, (_, at) => Number((number >> BigInt(8 * at)) & 255n));
}

/** @param {Uint8Array} bytes */
function numberOf(bytes) {
  return bytes.reduceRight((number, byte) => (number << 8n) | BigInt(byte), 0n);
}

/** @param {bigint} number @param {bigint} [by] */
function modulo(number, by = P) {
  const rest = number % by;
  return rest < 0n ? rest + by : rest;
}

/** @param {bigint} number */
function inverse(number) {
  return power(modulo(number), P - 2n);
}

/** @param {bigint} number @param {bigint} exponent */
function power(number, exponent) {
  let result = 1n;
  for (let square = modulo(number); exponent; exponent >>= 1n, square = (square * square) % P) {
    if (exponent & 1n) result = (result * square) % P;
  }
  return result;
}
return { isSigned, isTextSigned, isBrowsersOwn, isSignedPlainly, isPoint };
})();

const basics_times = (() => {
// Moments and months as they are signed: text in UTC with six decimals, so that two moments compare as their texts do.

const TIME = /^([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})\.[0-9]{6}Z$/;
const WRITTEN = /^([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:[.,]([0-9]{1,9}))?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)$/;

/** @param {unknown} text @returns {text is string} */
function isTime(text) {
  const found = typeof text === "string" ? TIME.exec(text) : null;
  if (!found) return false;
  const [year, month, day, hour, minute, second] = found.slice(1).map(Number);
  return year > 0 && month >= 1 && month <= 12 && day >= 1 && day <= daysOf(year, month) && hour < 24 && minute < 60 && second < 60;
}

/** "2026-11" @param {unknown} text @returns {text is string} */
function isMonth(text) {
  return typeof text === "string" && /^[0-9]{4}-(0[1-9]|1[0-2])$/.test(text) && !text.startsWith("0000");
}

/** Any ISO 8601 text of a moment with its offset, as it is signed; null for anything else.
 * @param {unknown} text */
function signedTime(text) {
  const found = typeof text === "string" ? WRITTEN.exec(text) : null;
  if (!found) return null;
  const [, day, clock, fraction = "", offset] = found;
  const at = Date.parse(`${day}T${clock.length === 5 ? `${clock}:00` : clock}.000Z`);
  if (Number.isNaN(at) || !new Date(at).toISOString().startsWith(day)) return null;
  const moved = new Date(at - minutesOf(offset) * 60_000).toISOString().slice(0, 19);
  const time = `${moved}.${fraction.slice(0, 6).padEnd(6, "0")}Z`;
  return isTime(time) ? time : null;
}

/** @param {string} offset */
function minutesOf(offset) {
  if (offset === "Z") return 0;
  const minutes = Number(offset.slice(1, 3)) * 60 + Number(offset.slice(3).replace(":", ""));
  return offset.startsWith("-") ? -minutes : minutes;
}

/** @param {number} year @param {number} month */
function daysOf(year, month) {
  const isLeap = year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0);
  return [31, isLeap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month - 1];
}
return { isTime, isMonth, signedTime };
})();

const proof_keys = (() => {
// The keys that the auditor pinned: the log's, one a line, and whatever they delegate. Nothing that was dropped adds a key, but
// for a delegation by a pinned one.
const { ofBase64, ofHex, toBase64, toHex, utf8 } = basics_bytes;
const { isPoint, isTextSigned } = basics_ed25519;
const { sha256 } = basics_sha2;
const { isTime } = basics_times;

/** @typedef {{begin: string, until: string, parent: string, signature: Uint8Array}} Delegation
 *  @typedef {{name: string, id: string, raw: Uint8Array, text: string, revokedAt: string | null, delegation: Delegation | null}} Key
 *  `id` is the fingerprint in hex */

const ED25519 = 1;
const ID = "affidavit\\+[0-9a-f]{8}";
const LINE = new RegExp(`^(${ID}\\+[A-Za-z0-9+/]{44})(?: revoked (\\S+)| delegated (\\S+) (\\S+) (${ID}) (\\S+))?$`);

/** Keys, and which of them count when. Pinned keys count for everything until they are revoked. A delegated key counts for rows,
 *  receipts and erasures of its time, if a pinned key signed its delegation: for no head, and not for delegating further. */
class KeyRing {
  /** @param {Key[]} keys */
  constructor(keys) {
    this.keys = keys;
    const delegated = new Set(keys.filter(({ delegation }) => delegation).map(nameOf));
    this.pinned = keys.filter((key) => !key.delegation && !(key.revokedAt && delegated.has(nameOf(key))));
    /** @type {Map<Key, Key[]>} */
    this.parents = new Map();
  }

  /** @param {string} at */
  headKeys(at) {
    return this.pinned.filter((key) => !this.isRevoked(key, at));
  }

  /** The key with this id, counting at that time, that signed the message; null if none did.
   * @param {string} id @param {string} at @param {Uint8Array} signature @param {Uint8Array} message */
  async signer(id, at, signature, message) {
    for (const key of this.keys) {
      if (key.id === id && (await this.isRowKey(key, at)) && (await isTextSigned(key.raw, signature, message))) return key;
    }
    return null;
  }

  /** @param {Key} key @param {string} at */
  async isRowKey(key, at) {
    if (this.isRevoked(key, at)) return false;
    if (!key.delegation) return this.pinned.some((pinned) => nameOf(pinned) === nameOf(key));
    const { begin, until } = key.delegation;
    return begin <= at && at < until && (await this.isGiven(key, at));
  }

  /** And the delegations among these lines, from wherever they come. Others pin and revoke nothing.
   * @param {string[]} lines */
  withDelegations(lines) {
    const known = new Set(this.keys.map(lineOf));
    const found = lines.map(keyOfLine).filter((key) => key?.delegation && !known.has(lineOf(key)));
    return found.length ? new KeyRing([...this.keys, .../** @type {Key[]} */ (found)]) : this;
  }

  /** Why a key with this id signed no head at that time, as far as it is known.
   * @param {string} keyId @param {string} at */
  whyNot(keyId, at) {
    const key = this.keys.find(({ name, id }) => `${name}+${id}` === keyId);
    if (!key) return `The signing key ${keyId} is not among the given ones`;
    if (!this.pinned.some((pinned) => nameOf(pinned) === nameOf(key))) return `The key ${keyId} was only delegated: it must not sign this`;
    return `The key ${keyId} was revoked at ${this.revokedAt(key)}, before the time ${at}`;
  }

  /** @param {Key} key @param {string} at */
  async isGiven(key, at) {
    if (!this.parents.has(key)) {
      const parents = [];
      for (const parent of this.pinned) if (await isDelegatedBy(key, parent)) parents.push(parent);
      this.parents.set(key, parents);
    }
    return (this.parents.get(key) ?? []).some((parent) => !this.isRevoked(parent, at));
  }

  /** @param {Key} key @param {string} at */
  isRevoked(key, at) {
    const revokedAt = this.revokedAt(key);
    return revokedAt !== undefined && at >= revokedAt;
  }

  /** The earliest time, if it was revoked. @param {Key} key */
  revokedAt(key) {
    const times = this.keys.filter((each) => each.revokedAt && nameOf(each) === nameOf(key)).map(({ revokedAt }) => String(revokedAt));
    return times.sort()[0];
  }
}

/** The keys of a file, or which line of it is none.
 * @param {string} text @returns {{ring: KeyRing, complaint: string}} */
function readKeys(text) {
  const lines = text.split(/\r?\n/).map((line) => line.trim()).filter((line) => line !== "");
  const keys = [];
  for (const line of lines) {
    const key = keyOfLine(line);
    if (!key) return { ring: new KeyRing([]), complaint: `This line is not a public key of a log: ${shortened(line)}` };
    keys.push(key);
  }
  return { ring: new KeyRing(keys), complaint: keys.length ? "" : "There is no public key. One looks like affidavit+1a2b3c4d+AQ…" };
}

/** @param {string} line @returns {Key | null} */
function keyOfLine(line) {
  const [, text, revokedAt = null, begin, until, parent, coded] = LINE.exec(line) ?? [];
  const content = text ? ofBase64(text.slice("affidavit+1a2b3c4d+".length)) : null;
  if (content?.length !== 33 || content[0] !== ED25519 || !isPoint(content.subarray(1))) return null;
  const raw = content.slice(1), id = fingerprint("affidavit", ED25519, raw);
  if (text !== `affidavit+${id}+${toBase64(content)}` || (revokedAt !== null && !isTime(revokedAt))) return null;
  const key = { name: "affidavit", id, raw, text, revokedAt, delegation: null };
  if (!begin) return key;
  const signature = ofBase64(coded);
  if (!isTime(begin) || !isTime(until) || begin >= until || signature?.length !== 64) return null;
  return { ...key, delegation: { begin, until, parent, signature } };
}

/** The four bytes, in hex, that name a key in a note.
 * @param {string} name @param {number} kind @param {Uint8Array} raw */
function fingerprint(name, kind, raw) {
  return toHex(sha256(utf8(`${name}\n`), Uint8Array.of(kind), raw).subarray(0, 4));
}

/** The id of a signature that begins with four bytes of its key, and the rest.
 * @param {Uint8Array} whole */
const apart = (whole) => ({ id: toHex(whole.subarray(0, 4)), signature: whole.subarray(4) });

/** @param {string} text */
const bytesOf = (text) => (text.startsWith("\\x") ? ofHex(text.slice(2)) : null);

/** @param {Key} key @param {Key} parent */
async function isDelegatedBy({ text, delegation }, parent) {
  if (delegation?.parent !== `affidavit+${parent.id}`) return false;
  const message = utf8(`affidavit delegation\n${text}\n${delegation.begin}\n${delegation.until}\n`);
  return isTextSigned(parent.raw, delegation.signature, message);
}

/** @param {Key} key */
const nameOf = ({ text }) => text;

/** @param {Key} key */
const lineOf = ({ text, revokedAt, delegation }) => [text, revokedAt, delegation?.begin, delegation?.until, delegation?.parent].join(" ");

/** @param {string} line */
const shortened = (line) => (line.length > 60 ? `${line.slice(0, 60)}…` : line);
return { KeyRing, readKeys, keyOfLine, fingerprint, apart, bytesOf };
})();

const basics_merkle = (() => {
// Merkle tree of RFC 6962 over leaf hashes. Sizes and places are whole numbers of any length: a note may name a large one.
const { areEqual } = basics_bytes;
const { sha256 } = basics_sha2;

const NODE = Uint8Array.of(1);
const EMPTY_ROOT = sha256();

/** Whether the proof leads from the leaf to the root and has exactly as many hashes as it must have.
 * @param {Uint8Array} leaf @param {bigint} index @param {bigint} size @param {Uint8Array[]} proof @param {Uint8Array} root */
function isIncluded(leaf, index, size, proof, root) {
  const found = rootOfPath(leaf, index, size, proof);
  return found !== null && areEqual(found, root);
}

/** The root to which the path leads; null if the path is not of this place.
 * @param {Uint8Array} leaf @param {bigint} index @param {bigint} size @param {Uint8Array[]} proof */
function rootOfPath(leaf, index, size, proof) {
  if (index < 0n || index >= size) return null;
  let node = leaf, at = index, last = size - 1n;
  for (const beside of proof) {
    if (last === 0n) return null;
    if (at & 1n || at === last) {
      node = nodeOf(beside, node);
      [at, last] = pastEdge(at, last);
    } else {
      node = nodeOf(node, beside);
    }
    at >>= 1n;
    last >>= 1n;
  }
  return last === 0n ? node : null;
}

/** Whether the tree of `size` leaves begins with the tree of `old` leaves.
 * @param {bigint} old @param {bigint} size @param {Uint8Array} oldRoot @param {Uint8Array} root @param {Uint8Array[]} proof */
function isConsistent(old, size, oldRoot, root, proof) {
  if (old < 0n || old > size) return false;
  if (old === 0n || old === size) return !proof.length && areEqual(oldRoot, old === size ? root : EMPTY_ROOT);
  let at = old - 1n, last = size - 1n;
  for (; at & 1n; at >>= 1n) last >>= 1n; // the earlier tree ends with a full subtree of this height
  const rest = at ? proof.slice(1) : proof;
  if (at && !proof.length) return false;
  let earlier = at ? proof[0] : oldRoot, later = earlier;
  for (const beside of rest) {
    if (last === 0n) return false;
    if (at & 1n || at === last) {
      [earlier, later] = [nodeOf(beside, earlier), nodeOf(beside, later)];
      [at, last] = pastEdge(at, last);
    } else {
      later = nodeOf(later, beside);
    }
    at >>= 1n;
    last >>= 1n;
  }
  return last === 0n && areEqual(earlier, oldRoot) && areEqual(later, root);
}

/** An append-only tree that keeps only the roots of its full subtrees, the largest first. */
class Frontier {
  constructor() {
    this.size = 0;
    /** @type {Uint8Array[]} */
    this.heads = [];
  }

  /** @param {Uint8Array} leaf */
  append(leaf) {
    let node = leaf;
    for (let full = this.size; full % 2; full = Math.floor(full / 2)) {
      node = nodeOf(/** @type {Uint8Array} */ (this.heads.pop()), node);
    }
    this.heads.push(node);
    this.size += 1;
  }

  root() {
    return this.heads.length ? this.heads.reduceRight((node, head) => nodeOf(head, node)) : EMPTY_ROOT;
  }
}

/** On the right edge, levels without a neighbour are skipped.
 * @param {bigint} at @param {bigint} last @returns {[bigint, bigint]} */
function pastEdge(at, last) {
  while (at && !(at & 1n)) {
    at >>= 1n;
    last >>= 1n;
  }
  return [at, last];
}

/** @param {Uint8Array} left @param {Uint8Array} right */
const nodeOf = (left, right) => sha256(NODE, left, right);
return { EMPTY_ROOT, isIncluded, rootOfPath, isConsistent, Frontier };
})();

const proof_note = (() => {
// Signed notes of C2SP, and what the log signs in them: a month's head, and a break of its history. The errors' words are those
// of the command line.
const { ofBase64, utf8 } = basics_bytes;
const { apart } = proof_keys;
const { isTextSigned } = basics_ed25519;
const { isMonth, isTime } = basics_times;

/** @typedef {import("./keys.js").Key} Key
 *  @typedef {import("./keys.js").KeyRing} KeyRing
 *  @typedef {{name: string, id: string, signature: Uint8Array}} SignatureLine
 *  @typedef {{text: string, lines: SignatureLine[]}} SignedNote
 *  @typedef {{month: string, size: bigint, root: Uint8Array}} Link
 *  @typedef {{kept: bigint, lost: bigint, digest: string}} BreakLine
 *  @typedef {{origin: string, month: string, size: bigint, root: Uint8Array, time: string, previous: Link | null,
 *    signedFrom: bigint | null, breaks: BreakLine[]}} Checkpoint */

class NoteError extends Error {}

const SIGNATURES_MAX = 100;
const SPACE = " \\t-\\r\\x1c-\\x1f\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const LINE = new RegExp(`^— ([^${SPACE}+]+) ([A-Za-z0-9+/]+=*)$`, "u");
const BASE64 = "[A-Za-z0-9+/]+=*";
const CHECKPOINT = new RegExp(
  "^([!-~]+)/([0-9]{4}-[0-9]{2})\\n([1-9][0-9]{0,17})\\n" + `(${BASE64})\\n` + "time ([0-9TZ:.-]+)\\n" +
  `(?:previous ([0-9]{4}-[0-9]{2}) ([1-9][0-9]{0,17}) (${BASE64})\\n)?` + "(?:signed (0|[1-9][0-9]{0,17})\\n)?" +
  "((?:break (?:0|[1-9][0-9]*) (?:0|[1-9][0-9]*) [0-9a-f]{64}\\n)*)$");

/** The note, if it is written in the one way that there is. Nothing is verified.
 * @param {string} note @returns {SignedNote} */
function parseNote(note) {
  const end = note.lastIndexOf("\n\n");
  if (end < 1 || note[end - 1] === "\n" || !note.endsWith("\n")) throw new NoteError("This is not a signed note");
  const lines = note.slice(end + 2, -1).split("\n");
  if (lines.length > SIGNATURES_MAX) throw new NoteError(`These are not 1 to ${SIGNATURES_MAX} signature lines`);
  return { text: note.slice(0, end + 1), lines: lines.map(signatureLine) };
}

/** Those of these keys that signed the text; an error if one of their signatures does not fit it.
 * @param {SignedNote} note @param {{name: string, id: string, raw: Uint8Array}[]} keys */
async function signersOf(note, keys) {
  const found = [];
  for (const line of note.lines) {
    const key = keys.find((each) => each.name === line.name && each.id === line.id);
    if (!key) continue;
    if (!(await isTextSigned(key.raw, line.signature, utf8(note.text)))) {
      throw new NoteError(`The signature of the key ${line.name}+${line.id} does not fit the text`);
    }
    found.push(key);
  }
  return found;
}

/** The month's head, if a key signed it that counts for heads at its time.
 * @param {string} note @param {KeyRing} ring @returns {Promise<Checkpoint & {keyId: string}>} */
async function openCheckpoint(note, ring) {
  const signed = parseNote(note);
  const checkpoint = readCheckpoint(signed.text);
  const [signer] = await signersOf(signed, ring.headKeys(checkpoint.time));
  if (!signer) {
    const line = signed.lines.find(({ name }) => name === "affidavit") ?? signed.lines[0];
    throw new NoteError(ring.whyNot(`${line.name}+${line.id}`, checkpoint.time));
  }
  return { ...checkpoint, keyId: `affidavit+${signer.id}` };
}

/** @param {string} text @returns {Checkpoint} */
function readCheckpoint(text) {
  const found = CHECKPOINT.exec(text);
  if (!found) throw new NoteError("This is not a checkpoint in the format of a signed note");
  const [, origin, month, size, root, time, earlier, earlierSize, earlierRoot, signedFrom, breaks] = found;
  if (!isMonth(month) || (earlier && !isMonth(earlier))) throw new NoteError("A month of the checkpoint does not exist");
  if (!isTime(time)) throw new NoteError("The checkpoint's time is not written as a time in UTC");
  if (earlier && earlier >= month) throw new NoteError("The previous month is not earlier than the month");
  if (signedFrom && BigInt(signedFrom) > BigInt(size)) throw new NoteError("Its rows are signed from a leaf on that it does not have");
  return {
    origin, month, size: BigInt(size), root: hashOf(root), time,
    previous: earlier ? { month: earlier, size: BigInt(earlierSize), root: hashOf(earlierRoot) } : null,
    signedFrom: signedFrom ? BigInt(signedFrom) : null,
    breaks: breaks.split("\n").slice(0, -1).map(breakLine),
  };
}

/** @param {string} text */
function hashOf(text) {
  const content = ofBase64(text);
  if (content?.length !== 32) throw new NoteError(`${text} is not base64 of 32 bytes`);
  return content;
}

/** @param {string} line @returns {BreakLine} */
function breakLine(line) {
  const [, kept, lost, digest] = line.split(" ");
  if (BigInt(kept) >= BigInt(lost)) throw new NoteError("A break has lost at least one leaf");
  return { kept: BigInt(kept), lost: BigInt(lost), digest };
}

/** @param {string} line @returns {SignatureLine} */
function signatureLine(line) {
  const [, name, coded] = LINE.exec(line) ?? [];
  if (!name) throw new NoteError("This is not a signed note");
  const content = ofBase64(coded);
  if (!content) throw new NoteError(`${coded} is not canonical base64`);
  if (content.length <= 4) throw new NoteError(`The signature of ${name} is cut off`);
  return { name, ...apart(content) };
}
return { NoteError, parseNote, signersOf, openCheckpoint, readCheckpoint, hashOf };
})();

const proof_record = (() => {
// A row: its commitments, its leaf, its signature.
const { toHex, utf8 } = basics_bytes;
const { canonicalText } = basics_canonical;
const { apart, bytesOf } = proof_keys;
const { sha256 } = basics_sha2;

/** @typedef {import("./keys.js").KeyRing} KeyRing
 *  @typedef {Record<string, any>} Row */

const VERSIONS = [2, 3, 4];
const SIGNED_FROM = 4;
const PERSONAL = new Set([
  "user_query_text", "retrieval_query", "chunks_returned", "llm_prompt", "llm_response", "answer_text", "released_text",
  "citations", "selected_text", "filters", "filter_message", "details", "end_user", "client_address",
]);
const UNHASHED = new Set(["spooled", "salt", "leaf_hash", "erased_at", "signature"]);
const LEAF = Uint8Array.of(0), END = Uint8Array.of(0);

/** The salted hashes that stand for the personal values in the leaf.
 * @param {Row} row @returns {Map<string, string>} */
function commitmentsOf(row) {
  const salt = bytesOf(row.salt);
  if (!salt) throw new TypeError("The record's salt is missing");
  const names = Object.keys(row).filter((name) => PERSONAL.has(name));
  return new Map(names.map((name) => [name, toHex(sha256(salt, utf8(name), END, utf8(canonicalText(row[name]))))]));
}

/** @param {Row} row @param {Map<string, string>} commitments */
function leafOf(row, commitments) {
  const members = Object.keys(row).filter((name) => !UNHASHED.has(name) && !PERSONAL.has(name));
  const texts = new Map(members.map((name) => [name, canonicalText(row[name])]));
  for (const [name, commitment] of commitments) texts.set(name, `"${commitment}"`);
  const whole = [...texts.keys()].sort().map((name) => `"${name}":${texts.get(name)}`).join();
  return sha256(LEAF, utf8(`{${whole}}`));
}

/** Whether a row at this place needs a signature.
 * @param {unknown} version @param {bigint} index @param {bigint | null} signedFrom */
function mustBeSigned(version, index, signedFrom) {
  return Number(version) >= SIGNED_FROM || (signedFrom !== null && index >= signedFrom);
}

/** Whether the row has a valid signature, or none and needs none at this place of its tree.
 * @param {Row} row @param {Uint8Array} leaf @param {bigint} index @param {bigint | null} signedFrom @param {KeyRing} ring */
async function isVouchedFor(row, leaf, index, signedFrom, ring) {
  if (row.signature === undefined) return !mustBeSigned(row.schema_version, index, signedFrom);
  const whole = bytesOf(row.signature);
  if (whole?.length !== 68) return false;
  const { id, signature } = apart(whole);
  const message = utf8(`affidavit row\n${row.log_id}\n${toHex(leaf)}\n`);
  return (await ring.signer(id, row.timestamp, signature, message)) !== null;
}
return { VERSIONS, PERSONAL, commitmentsOf, leafOf, mustBeSigned, isVouchedFor };
})();

const proof_verdict = (() => {
// Verdicts, findings and rungs, in the words of the command line.

/** @typedef {"TAMPERED" | "MISSING" | "WRONG_VAULT" | "LOST_BY_FAILOVER" | "CANNOT_TELL" | "UNSEALED" | "ARCHIVED" | "ERASED" | "VALID"} Verdict
 *  @typedef {"words" | "row" | "leaf" | "month" | "checkpoint" | "vault" | "witness" | "time stamp"} RungName
 *  @typedef {{verdict: Verdict, what: string, words: string, month?: string, leafIndex?: number, logId?: string, file?: string, line?: number,
 *    expected?: string, found?: string}} Finding
 *  @typedef {{rung: RungName, verdict: Verdict, words: string, expected?: string, found?: string}} Rung */

/** Worst first: the verdict of a report is that of its worst finding. @type {Verdict[]} */
const WORST_FIRST = [
  "TAMPERED", "MISSING", "WRONG_VAULT", "LOST_BY_FAILOVER", "CANNOT_TELL", "UNSEALED", "ARCHIVED", "ERASED", "VALID"];
/** @type {RungName[]} */
const RUNGS = ["words", "row", "leaf", "month", "checkpoint", "vault", "witness", "time stamp"];

/** @param {Iterable<Verdict>} verdicts @returns {Verdict} */
function worst(verdicts) {
  const places = Array.from(verdicts, (verdict) => WORST_FIRST.indexOf(verdict));
  return WORST_FIRST[Math.min(...places, WORST_FIRST.length - 1)];
}

/** @param {RungName} rung @param {Verdict} verdict @param {string} words @param {{expected?: string, found?: string}} [differs] @returns {Rung} */
const rung = (rung, verdict, words, differs = {}) => ({ rung, verdict, words, ...differs });

const FINDINGS_MAX = 1_000; // more than a person reads; the others are counted

/** What was found in many records. Never VALID unless something was checked.
 * @typedef {{content: Blob, from: number, to: number}} Kept  the bytes of a line
 * @typedef {{month: string, line: number, index: number | null, logId: string, time: string, question: string, verdict: Verdict,
 *    rungs: Rung[] | null, kept: Kept}} RecordLine  `rungs` only if not all is well: else they are written when they are shown */
class Report {
  constructor() {
    /** @type {Finding[]} */
    this.findings = [];
    this.findingsLeftOff = 0;
    /** @type {Verdict} */
    this.worst = "VALID";
    /** @type {RecordLine[]} */
    this.records = [];
    /** @type {Map<RungName, Map<Verdict, number>>} */
    this.climbed = new Map(RUNGS.map((name) => [name, new Map()]));
    /** @type {string[]} */
    this.notes = [];
  }

  /** @returns {Verdict} */
  get verdict() {
    return this.worst === "VALID" && !this.records.length ? "CANNOT_TELL" : this.worst;
  }

  /** @param {Finding} finding */
  add(finding) {
    this.worst = worst([this.worst, finding.verdict]);
    if (this.findings.length < FINDINGS_MAX) this.findings.push(finding);
    else this.findingsLeftOff += 1;
  }

  /** @param {Rung} rung */
  climb({ rung, verdict }) {
    const counts = /** @type {Map<Verdict, number>} */ (this.climbed.get(rung));
    counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  }
}
return { WORST_FIRST, RUNGS, worst, rung, Report };
})();

const proof_bundle = (() => {
// The proof of one record: decoded as strictly as the command line does it, and judged rung by rung.
const { areEqual, ofHex, toBase64, toHex } = basics_bytes;
const { isObject, readLine } = basics_canonical;
const { keyOfLine } = proof_keys;
const { rootOfPath } = basics_merkle;
const { NoteError, openCheckpoint, parseNote, readCheckpoint } = proof_note;
const { commitmentsOf, isVouchedFor, leafOf, PERSONAL, VERSIONS } = proof_record;
const { isTime } = basics_times;
const { rung, RUNGS } = proof_verdict;

/** @typedef {import("./keys.js").KeyRing} KeyRing
 *  @typedef {import("./note.js").Checkpoint} Checkpoint
 *  @typedef {import("./verdict.js").Rung} Rung
 *  @typedef {{row: Record<string, any>, index: number, proof: Uint8Array[], note: string, month: string,
 *    commitments: Map<string, string> | null, delegation: {line: string, key: import("./keys.js").Key} | null}} Bundle
 *  @typedef {{bundle: Bundle | null, leaf: string, commitments: Map<string, string>, rungs: Rung[],
 *    verdict: import("./verdict.js").Verdict}} Judged */

class BundleError extends Error {}
class UnknownVersionError extends BundleError {}

const FORMAT = "affidavit proof 1";
const FIELDS = ["checkpoint", "format", "leaf_index", "proof", "row"];
const OPTIONAL = ["commitments", "delegation"];
const HASH = /^[0-9a-f]{64}$/;
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const NEVER = ["spooled", "leaf_hash", "erased_at"];

/** @param {Uint8Array} content @returns {Bundle} */
function decode(content) {
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
async function headOf(note, ring) {
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
async function judge(content, ring, given) {
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
function areCommitments(commitments) {
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
return { BundleError, UnknownVersionError, FORMAT, decode, headOf, judge, areCommitments };
})();

const proof_heads = (() => {
// The log of heads: its signed head, C2SP's tlog-proof, and the witnesses that must have cosigned.
const { areEqual, joined, ofBase64, toBase64, toHex, utf8 } = basics_bytes;
const { isPoint, isSigned } = basics_ed25519;
const { fingerprint } = proof_keys;
const { isIncluded } = basics_merkle;
const { hashOf, NoteError, openCheckpoint, parseNote, signersOf } = proof_note;
const { sha256 } = basics_sha2;

/** @typedef {import("./keys.js").KeyRing} KeyRing
 *  @typedef {import("./note.js").SignedNote} SignedNote
 *  @typedef {{origin: string, size: bigint, root: Uint8Array, signed: SignedNote}} Head
 *  @typedef {{name: string, id: string, raw: Uint8Array}} Cosigner
 *  @typedef {{witnesses: Map<string, Cosigner>, groups: Map<string, {threshold: number, members: string[]}>, logs: Cosigner[], quorum: string}} Policy */

const LEAF = Uint8Array.of(0);
const COSIGNER = 4, TIME_BYTES = 8, NONE = "none", MEMBERS_MAX = 100;
const HEAD = /^([^\n]+)\n(0|[1-9][0-9]{0,17})\n([A-Za-z0-9+/]+=*)\n$/;
const PROOF = /^c2sp\.org\/tlog-proof@v1\n(?:extra ([A-Za-z0-9+/]+=*)\n)?index (0|[1-9][0-9]{0,17})\n((?:[A-Za-z0-9+/]{43}=\n){0,63})\n([^]+)$/;
const VKEY = /^([^\s+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/]+=*)$/;

/** The head of a log of heads, signed by one of these keys; others may have signed it too.
 * @param {string} note @param {KeyRing} ring @returns {Promise<Head>} */
async function openHead(note, ring) {
  const signed = parseNote(note);
  const [, origin, size, root] = HEAD.exec(signed.text) ?? [];
  if (!origin) throw new NoteError("The head of a log of heads has three lines and no more: origin, size and root");
  const named = ring.pinned.map(({ raw }) => ({ name: origin, id: fingerprint(origin, 1, raw), raw }));
  if (!(await signersOf(signed, named)).length) {
    throw new NoteError(`The signing key ${signed.lines[0].name}+${signed.lines[0].id} is not among the given ones`);
  }
  return { origin, size: BigInt(size), root: hashOf(root), signed };
}

/** @param {string} text @returns {{index: bigint, hashes: Uint8Array[], note: string, extra: Uint8Array}} */
function parseTlogProof(text) {
  const [, extra, index, lines, note] = PROOF.exec(text) ?? [];
  if (!note) throw new NoteError("This is not a proof in C2SP's format, which begins with c2sp.org/tlog-proof@v1");
  const entry = ofBase64(extra ?? "");
  if (!entry) throw new NoteError(`${extra} is not canonical base64`);
  return { index: BigInt(index), hashes: lines.split("\n").slice(0, -1).map(hashOf), note, extra: entry };
}

/** The month's head that it proves, under the head of heads. Without an entry it is the proof's own.
 * @param {string} text @param {KeyRing} ring @param {string} [other] */
async function openTlogProof(text, ring, other) {
  const proof = parseTlogProof(text);
  const bytes = other === undefined ? proof.extra : utf8(other);
  if (!bytes.length) throw new NoteError("The proof does not have the entry that it is of: the signed head of a month");
  const head = await openHead(proof.note, ring);
  if (!isIncluded(sha256(LEAF, bytes), proof.index, head.size, proof.hashes, head.root)) {
    throw new NoteError("The proof does not lead from the month's head to the root of the log of heads");
  }
  const entry = new TextDecoder().decode(bytes);
  const monthHead = await openCheckpoint(entry, ring);
  if (monthHead.origin !== head.origin) throw new NoteError(`The month's head is of another log, ${monthHead.origin}`);
  return { head, monthHead, entry, note: proof.note, index: proof.index };
}

/** The witnesses of the policy that cosigned it; an error if a cosignature of one of them does not fit.
 * @param {SignedNote} note @param {Policy} policy */
async function cosigners(note, policy) {
  /** @type {string[]} */
  const found = [];
  for (const [name, witness] of policy.witnesses) {
    for (const line of note.lines.filter((each) => each.name === witness.name && each.id === witness.id)) {
      if (!(await isCosigned(witness, line.signature, note.text))) {
        throw new NoteError(`The signature of the key ${line.name}+${line.id} does not fit the text`);
      }
      if (!found.includes(name)) found.push(name);
    }
  }
  return found;
}

/** What the head lacks of what the policy demands; "" if nothing.
 * @param {Policy} policy @param {Head} head @param {KeyRing} ring @param {string[]} cosigned */
function lacks(policy, { origin }, ring, cosigned) {
  const isOurs = policy.logs.some((log) => log.name === origin && ring.keys.some(({ raw }) => areEqual(raw, log.raw)));
  if (policy.logs.length && !isOurs) return `The policy is of other logs than ${origin}`;
  if (isMet(policy, cosigned)) return "";
  return `The witnesses that the policy demands have not all cosigned the head of heads: ${cosigned.join(", ") || "none of them"}`;
}

/** @param {Policy} policy @param {string[]} cosigned @param {string} [name] @returns {boolean} */
function isMet(policy, cosigned, name = policy.quorum) {
  if (name === NONE) return true;
  const group = policy.groups.get(name);
  return group ? group.members.filter((member) => isMet(policy, cosigned, member)).length >= group.threshold : cosigned.includes(name);
}

/** The auditor's policy, or which line of it is wrong.
 * @param {string} text @returns {{policy: Policy | null, complaint: string}} */
function readPolicy(text) {
  /** @type {Policy} */
  const policy = { witnesses: new Map(), groups: new Map(), logs: [], quorum: "" };
  const lines = text.replace(/\r\n/g, "\n").split("\n");
  for (const [at, line] of lines.entries()) {
    const words = line.split(/[ \t]+/).filter(Boolean);
    const wrong = words.length && !words[0].startsWith("#") ? addLine(policy, words) : "";
    if (wrong) return { policy: null, complaint: `Line ${at + 1} of the witness policy is wrong: ${wrong}` };
  }
  return policy.quorum ? { policy, complaint: "" } : { policy: null, complaint: "The witness policy has no quorum line, such as: quorum none" };
}

/** What is wrong with the line, or "".
 * @param {Policy} policy @param {string[]} words */
function addLine(policy, words) {
  const [kind, name] = words;
  if (kind === "log") return addLog(policy, words);
  if (kind === "witness") return addWitness(policy, words);
  if (kind === "group") return addGroup(policy, words);
  if (kind !== "quorum") return `it begins with ${kind}, and not with witness, group, quorum, log or #`;
  if (policy.quorum || words.length !== 2) return "write one line quorum NAME";
  if (name !== NONE && !policy.witnesses.has(name) && !policy.groups.has(name)) return `${name} is not defined above`;
  policy.quorum = name;
  return "";
}

/** @param {Policy} policy @param {string[]} words */
function addLog({ logs }, words) {
  const key = words.length <= 3 ? keyOfKind(words[1] ?? "", 1) : null;
  if (key) logs.push(key);
  return key ? "" : "write log KEY, with a key that begins with AQ";
}

/** @param {Policy} policy @param {string[]} words */
function addWitness({ witnesses, groups }, words) {
  const [, name, text] = words, key = words.length === 3 || words.length === 4 ? keyOfKind(text, COSIGNER) : null;
  if (!key) return "write witness NAME KEY URL, with a key that begins with BA";
  if ([...witnesses.values()].some((known) => toHex(known.raw) === toHex(key.raw))) return "another witness has the same key";
  if (isTaken(witnesses, groups, name)) return `the name ${name} is taken, or there are too many`;
  witnesses.set(name, key);
  return "";
}

/** @param {Policy} policy @param {string[]} words */
function addGroup({ witnesses, groups }, words) {
  const [, name, number, ...members] = words;
  if (!members.length) return "write group NAME 2 MEMBER…, or any or all in place of the number";
  const used = [...groups.values()].flatMap((group) => group.members);
  const strange = members.find((member, at) =>
    !(witnesses.has(member) || groups.has(member)) || used.includes(member) || members.indexOf(member) !== at);
  if (strange) return `${strange} is not defined above, or is a member already`;
  const threshold = number === "any" ? 1 : number === "all" ? members.length : /^[1-9][0-9]*$/.test(number) ? Number(number) : 0;
  if (threshold < 1 || threshold > members.length) return `${number} is not any, all or a number from 1 to ${members.length}`;
  if (isTaken(witnesses, groups, name)) return `the name ${name} is taken, or there are too many`;
  groups.set(name, { threshold, members });
  return "";
}

/** @param {Map<string, unknown>} witnesses @param {Map<string, unknown>} groups @param {string} name */
function isTaken(witnesses, groups, name) {
  return name === NONE || witnesses.has(name) || groups.has(name) || witnesses.size + groups.size >= MEMBERS_MAX;
}

/** @param {string} text @param {number} kind @returns {Cosigner | null} */
function keyOfKind(text, kind) {
  const [, name, id, coded] = VKEY.exec(text) ?? [];
  const content = coded ? ofBase64(coded) : null;
  if (content?.length !== 33 || content[0] !== kind || !isPoint(content.subarray(1))) return null;
  const raw = content.slice(1);
  return fingerprint(name, kind, raw) === id && toBase64(content) === coded ? { name, id, raw } : null;
}

/** @param {Cosigner} witness @param {Uint8Array} signature @param {string} text */
async function isCosigned({ raw }, signature, text) {
  if (signature.length !== TIME_BYTES + 64 || signature[0] > 127) return false;
  const seconds = signature.subarray(0, TIME_BYTES).reduce((sum, byte) => sum * 256n + BigInt(byte), 0n);
  return isSigned(raw, signature.subarray(TIME_BYTES), joined(utf8(`cosignature/v1\ntime ${seconds}\n`), utf8(text)));
}
return { openHead, parseTlogProof, openTlogProof, cosigners, lacks, readPolicy };
})();

const proof_receipt = (() => {
// A receipt, alone or inside an answer of the API. It proves that the record must exist, not that it does.
const { ofBase64, utf8 } = basics_bytes;
const { isObject } = basics_canonical;
const { signedTime } = basics_times;

/** @typedef {{log_id: string, leaf_hash: string, issued_at: string, key_id: string, signature: string}} Receipt */

const FIELDS = ["issued_at", "key_id", "leaf_hash", "log_id", "signature"];
const FORGED = "The signature is not valid under any given key: the receipt was altered, or another key signed it";
const GENUINE = "The receipt is genuine, so the record must exist. Get its proof: GET /v1/receipts/{query_id}";

/** @param {Uint8Array} content @returns {Receipt | null} */
function receiptOf(content) {
  try {
    const body = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content));
    const found = isObject(body) ? (body.receipt === undefined ? body : body.receipt) : null;
    return isObject(found) && Object.keys(found).sort().join() === FIELDS.join() ? /** @type {Receipt} */ (found) : null;
  } catch {
    return null;
  }
}

/** @param {Receipt} receipt @param {import("./keys.js").KeyRing} ring */
async function isGenuine(receipt, ring) {
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
return { FORGED, GENUINE, receiptOf, isGenuine };
})();

const files_single = (() => {
// A file that stands for one record: a proof, a receipt, an answer with its receipt.
const { judge } = proof_bundle;
const { cosigners, lacks, openTlogProof } = proof_heads;
const { FORGED, GENUINE, isGenuine } = proof_receipt;
const { RUNGS, rung } = proof_verdict;

/** @typedef {import("../proof/keys.js").KeyRing} KeyRing
 *  @typedef {{ring: KeyRing, policy: import("../proof/heads.js").Policy | null}} Given
 *  @typedef {import("../proof/receipt.js").Receipt} Receipt
 *  @typedef {import("../proof/verdict.js").Rung} Rung
 *  @typedef {import("../proof/verdict.js").Verdict} Verdict
 *  @typedef {import("../proof/bundle.js").Judged} Judged */

/** @type {Partial<Record<import("../proof/verdict.js").RungName, string>>} */
const NOT_HERE = {
  vault: "A proof has no anchors of the vault. A package has them.",
  witness: "A proof has no head of heads. Drop the .tlog-proof of its checkpoint with it.",
  "time stamp": "A proof has no time stamp. A package has it.",
};

/** With a proof of the log of heads beside it, also whether the record's checkpoint is in that.
 * @param {Uint8Array} content @param {Given} given @param {string} [heads] @returns {Promise<Judged>} */
async function checkProof(content, { ring, policy }, heads) {
  const judged = await judge(content, ring);
  if (!judged.bundle) return judged;
  const words = judged.bundle.commitments
    ? rung("words", "ERASED", "The personal data was erased or withheld. Its commitments stay, and the record is proven by them.")
    : rung("words", "VALID", "What is shown below is written from the very bytes that were checked.");
  const witness = heads === undefined ? [] : [(await checkHeads(heads, { ring, policy }, judged.bundle.note)).witness];
  const verdict = witness.some((each) => each.verdict === "TAMPERED") ? "TAMPERED" : judged.verdict;
  return { ...judged, verdict, rungs: withRest([words, ...judged.rungs, ...witness]) };
}

/** A `.tlog-proof`: that a month's head is in the log of heads, and that its witnesses are those of the policy.
 * @param {string} text @param {Given} given @param {string} [entry] @returns {Promise<{verdict: Verdict, rungs: Rung[], witness: Rung}>} */
async function checkHeads(text, { ring, policy }, entry) {
  try {
    const { head, monthHead, index } = await openTlogProof(text, ring, entry);
    const month = rung("month", "VALID", `The head of ${monthHead.month} with ${monthHead.size} records, of the log ${monthHead.origin}.`);
    const checkpoint = rung("checkpoint", "VALID", `Signed at ${monthHead.time} with the pinned key ${monthHead.keyId}.`);
    const place = `It is entry ${index} of ${head.size} in the log of heads.`;
    const found = policy ? await cosigners(head.signed, policy) : [];
    const wanting = policy ? lacks(policy, head, ring, found) : "No policy of witnesses was given, so only the log itself vouches for it.";
    const witness = wanting ? rung("witness", "CANNOT_TELL", `${place} ${wanting}`) : rung("witness", "VALID", `${place} Cosigned by ${found.join(", ") || "none, which the policy allows"}.`);
    return { verdict: policy && wanting ? "CANNOT_TELL" : "VALID", rungs: [month, checkpoint, witness], witness };
  } catch (wrong) {
    const witness = rung("witness", "TAMPERED", wrong instanceof Error ? wrong.message : String(wrong));
    return { verdict: "TAMPERED", rungs: [witness], witness };
  }
}

/** @param {Receipt} receipt @param {KeyRing} ring @returns {Promise<{verdict: Verdict, words: string}>} */
async function checkReceipt(receipt, ring) {
  return (await isGenuine(receipt, ring)) ? { verdict: "UNSEALED", words: GENUINE } : { verdict: "TAMPERED", words: FORGED };
}

/** What is wrong between a proof and the receipt that was dropped with it; "" if they are of one record.
 * @param {Judged} judged @param {Receipt} receipt @param {KeyRing} ring */
async function difference(judged, receipt, ring) {
  if (!(await isGenuine(receipt, ring))) return FORGED;
  const isSame = receipt.log_id === judged.bundle?.row.log_id && receipt.leaf_hash === judged.leaf;
  return isSame ? "" : `The proof is not of the receipt's record, ${receipt.log_id}`;
}

/** @param {Rung[]} rungs */
function withRest(rungs) {
  const missing = RUNGS.filter((name) => !rungs.some((each) => each.rung === name));
  return [...rungs, ...missing.map((name) => rung(name, "CANNOT_TELL", NOT_HERE[name] ?? ""))];
}

return { checkProof, checkHeads, checkReceipt, difference };
})();

const page_dom = (() => {
// Elements of text. Nothing that was read ever becomes HTML: children are nodes or text.

/** @typedef {Node | string | null | undefined | false} Child */

/** @param {string} tag @param {Record<string, string>} [attributes] @param {...Child} children */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** @param {string} id */
function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** @param {string} words @param {() => void} act @param {Record<string, string>} [attributes] */
function button(words, act, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, words);
  made.addEventListener("click", act);
  return made;
}

/** Pairs of a term and what is said of it; those without are left out.
 * @param {string} style @param {[string, Child][]} pairs */
function pairs(style, pairs) {
  const shown = pairs.filter(([, value]) => value);
  return element("dl", { class: style }, ...shown.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]));
}

/** Gives the page a moment to paint and to hear its reader. A timer would wait longer in a tab behind others. */
function moment() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => (port1.close(), resolve(undefined));
    port2.postMessage(null);
  });
}
return { element, byId, button, pairs, moment };
})();

const page_ladder = (() => {
// The rungs of a record, with what differs on each red one.
const { RUNGS } = proof_verdict;
const { element, pairs } = page_dom;

/** @typedef {import("../proof/verdict.js").Rung} Rung
 *  @typedef {import("../proof/verdict.js").Verdict} Verdict */

const GOOD = ["VALID", "ERASED"], BAD = ["TAMPERED", "MISSING", "WRONG_VAULT"];
/** @type {Record<string, string>} */
const MEANINGS = {
  VALID: "Everything that was checked is as it was sealed.",
  ERASED: "Everything is proven. Personal data was erased, which changes no proof.",
  TAMPERED: "Something was changed after it was sealed, or was never the log's.",
  MISSING: "Something that the log held is not here.",
  CANNOT_TELL: "This could not be judged. That says nothing against the record.",
  UNSEALED: "The receipt is genuine: its record must exist. It is not a proof of the record by itself.",
  LOST_BY_FAILOVER: "What is here is proven. An operator signed that a failover or a restore lost other records.",
  ARCHIVED: "The records are in an archive.",
  WRONG_VAULT: "The vault is not that of this log.",
};
const SIGNS = { good: "✓", bad: "✕", calm: "!", unknown: "?" };

/** @param {Verdict} verdict @returns {"good" | "bad" | "calm"} */
function kindOf(verdict) {
  return GOOD.includes(verdict) ? "good" : BAD.includes(verdict) ? "bad" : "calm";
}

/** @param {Verdict} verdict */
const meaningOf = (verdict) => MEANINGS[verdict];

/** @param {Rung[]} rungs */
function ladder(rungs) {
  const sorted = [...rungs].sort((one, other) => RUNGS.indexOf(one.rung) - RUNGS.indexOf(other.rung));
  return element("ol", { class: "ladder" }, ...sorted.map(shown));
}

/** @param {Rung} rung */
function shown({ rung, verdict, words, expected, found }) {
  const kind = verdict === "CANNOT_TELL" ? "unknown" : kindOf(verdict);
  return element("li", { class: kind, "data-rung": rung, "data-verdict": verdict },
    element("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]),
    element("span", { class: "name" }, rung[0].toUpperCase() + rung.slice(1)),
    element("div", { class: "says" },
      element("span", { class: `verdict ${kind}` }, verdict), ` ${words}`,
      (expected || found) && pairs("differs", [["Expected", expected], ["Found", found]])));
}
return { kindOf, meaningOf, ladder };
})();

const page_recompute = (() => {
// On a record's page of the console: computes the ladder again from the proof, in this browser, with the log's public keys.
const { checkProof } = files_single;
const { readKeys } = proof_keys;
const { byId, element } = page_dom;
const { ladder } = page_ladder;

const place = byId("recompute");
const [button] = place.getElementsByTagName("button");
const [said] = place.querySelectorAll('[role="status"]');

button.hidden = false;
button.addEventListener("click", () => {
  button.disabled = true;
  said.replaceChildren("Computing …");
  recomputed().then((found) => said.replaceChildren(found), (wrong) => said.replaceChildren(`It could not be computed: ${wrong instanceof Error ? wrong.message : String(wrong)}`))
    .finally(() => { button.disabled = false; });
});

async function recomputed() {
  const { ring, complaint } = readKeys(place.dataset.keys ?? "");
  if (complaint) throw new Error(complaint);
  const response = await fetch(place.dataset.proof ?? "");
  if (!response.ok) throw new Error(`the proof is not there (${response.status}). A record is sealed within ten seconds.`);
  const { rungs, verdict } = await checkProof(new Uint8Array(await response.arrayBuffer()), { ring, policy: null });
  return element("div", { "data-verdict": verdict },
    element("p", {}, "Computed in this browser from the proof. The keys came from this server: compare them with yours."),
    ladder(rungs));
}
return {  };
})();
