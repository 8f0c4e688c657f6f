// Ed25519 (RFC 8032). The browser's own where it has it; else in plain JavaScript, with the same verdicts: S below the group's
// order, points in their one canonical form, and no multiplication by the cofactor.
import { areEqual, ofHex, toHex, utf8 } from "../basics/bytes.js";
import { sha256, sha512 } from "../basics/sha2.js";

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
export async function isSigned(key, signature, message) {
  if (signature.length !== 64 || !isPoint(key)) return false;
  browserSigns ??= doesBrowserSign();
  return (await browserSigns) ? byBrowser(key, signature, message) : isSignedPlainly(key, signature, message);
}

/** Whether this key of a log signed the text. A long one may be signed by its digest: some keys elsewhere take no longer ones.
 * @param {Uint8Array} key @param {Uint8Array} signature @param {Uint8Array} text @returns {Promise<boolean>} */
export async function isTextSigned(key, signature, text) {
  if (await isSigned(key, signature, text)) return true;
  return text.length > SIGNED_BYTES_MAX && isSigned(key, signature, utf8(`affidavit digest\n${toHex(sha256(text))}\n`));
}

/** Whether the browser's own program is used. */
export async function isBrowsersOwn() {
  return (browserSigns ??= doesBrowserSign());
}

/** @param {Uint8Array} key @param {Uint8Array} signature @param {Uint8Array} message */
export function isSignedPlainly(key, signature, message) {
  const s = numberOf(signature.subarray(32));
  const known = multiplesOf(key);
  if (signature.length !== 64 || s >= L || !known) return false;
  const h = modulo(numberOf(sha512(signature.subarray(0, 32), key, message)), L);
  multiplesOfBase ??= multiples(BASE);
  return areEqual(encoded(sumOfProducts(s, multiplesOfBase, h, known)), signature.subarray(0, 32));
}

/** Whether these 32 bytes are a point of the curve, spelt as it must be.
 * @param {Uint8Array} key */
export const isPoint = (key) => multiplesOf(key) !== null;

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
