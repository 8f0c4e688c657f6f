// SHA-256 and SHA-512 (FIPS 180-4) in plain JavaScript. The browser's own digest is asynchronous, and a call of it takes longer
// than hashing a small value here; and a browser that lacks Ed25519 may lack it too.
import { joined } from "../basics/bytes.js";

const PRIMES = primes(80);
const MASK = (1n << 64n) - 1n;
const K512 = PRIMES.map((prime) => rootOf(BigInt(prime) << 192n, 3n) & MASK); // the fractions of the primes' cube roots
const H512 = PRIMES.slice(0, 8).map((prime) => rootOf(BigInt(prime) << 128n, 2n) & MASK);
const K256 = Int32Array.from(K512.slice(0, 64), (value) => Number(value >> 32n) | 0);
const H256 = Int32Array.from(H512, (value) => Number(value >> 32n) | 0);
const schedule = new Int32Array(64);

/** @param {...Uint8Array} parts */
export function sha256(...parts) {
  const hash = new Sha256();
  for (const part of parts) hash.update(part);
  return hash.digest();
}

export class Sha256 {
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
export function sha512(...parts) {
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
