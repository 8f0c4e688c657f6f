// The ZIP of a package, which is written in one way only: its headers follow from names, sizes and checksums, so they are written
// again here and compared. What a usual ZIP hides (comments, gaps, two headers that disagree) does not fit.
import { areEqual, joined, utf8 } from "../basics/bytes.js";

/** @typedef {{name: string, method: number, crc: number, packed: number, size: number, offset: number}} Entry */

export class PackageError extends Error {}

const DEFLATE = 8, STORED = 0;
const FILES_MAX = 60_000;
const DIRECTORY_BYTES_MAX = 16 * 2 ** 20;
const LARGE = 0xffffffff; // this and more does not fit into 32 bits
const DATE = 0x21; // 1980-01-01, the first that there is
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*(\/[A-Za-z0-9][A-Za-z0-9._-]*)*$/;
const END_BYTES = 22, LOCATOR_BYTES = 20, LARGE_END_BYTES = 56, CENTRAL_BYTES = 46;
const CRC = crcTable();

/** The files, if every byte outside of their data is as it must be.
 * @param {Blob} file @returns {Promise<Entry[]>} */
export async function readDirectory(file) {
  const { offset, tail } = await tailOf(file);
  const entries = entriesIn(tail);
  if (entries.length > FILES_MAX || new Set(entries.map(({ name }) => name)).size < entries.length) {
    throw new PackageError("The ZIP has two files of one name, or too many");
  }
  if (!areEqual(directory(entries, offset), tail)) throw new PackageError("The ZIP's directory is not in the form of a package");
  let at = 0;
  for (const entry of entries) {
    if (entry.offset !== at) throw new PackageError(`The ZIP has bytes that belong to no file, before ${entry.name}`);
    const header = localHeader(entry);
    if (!areEqual(await bytesAt(file, at, header.length), header)) throw new PackageError(`The ZIP has two different headers of ${entry.name}`);
    at += header.length + entry.packed;
  }
  if (at !== offset) throw new PackageError("The ZIP has bytes that belong to no file, before its directory");
  return entries;
}

/** A file's content, piece by piece: never more than it says, and in the end exactly that.
 * @param {Blob} file @param {Entry} entry @returns {AsyncGenerator<Uint8Array>} */
export async function* readPieces(file, entry) {
  const begin = entry.offset + localHeader(entry).length;
  const packed = file.slice(begin, begin + entry.packed).stream();
  const inflated = entry.method === DEFLATE ? packed.pipeThrough(new DecompressionStream("deflate-raw")) : packed;
  const reader = /** @type {ReadableStreamDefaultReader<Uint8Array>} */ (inflated.getReader());
  let size = 0, crc = -1;
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw new PackageError(`${entry.name} cannot be inflated`);
      });
      if (done) break;
      size += value.length;
      crc = crcOf(value, crc);
      if (size > entry.size) break;
      yield value;
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
  if (size !== entry.size || (crc ^ -1) >>> 0 !== entry.crc) {
    throw new PackageError(`${entry.name} is not as the ZIP's directory says: its size or its checksum differs`);
  }
}

/** @param {Entry} entry */
function isLarge({ packed, size, offset }) {
  return Math.max(packed, size, offset) >= LARGE;
}

/** @param {Entry} entry */
function localHeader(entry) {
  const name = utf8(entry.name), large = isLarge(entry), extra = large ? numbers([2, 1], [2, 16], [8, entry.size], [8, entry.packed]) : new Uint8Array();
  return joined(
    numbers([4, 0x04034b50], [2, large ? 45 : 20], [2, 0], [2, entry.method], [2, 0], [2, DATE], [4, entry.crc],
      [4, large ? LARGE : entry.packed], [4, large ? LARGE : entry.size], [2, name.length], [2, extra.length]),
    name, extra);
}

/** @param {Entry} entry */
function centralHeader(entry) {
  const name = utf8(entry.name), large = isLarge(entry), version = large ? 45 : 20;
  const extra = large ? numbers([2, 1], [2, 24], [8, entry.size], [8, entry.packed], [8, entry.offset]) : new Uint8Array();
  return joined(
    numbers([4, 0x02014b50], [2, version], [2, version], [2, 0], [2, entry.method], [2, 0], [2, DATE], [4, entry.crc],
      [4, large ? LARGE : entry.packed], [4, large ? LARGE : entry.size], [2, name.length], [2, extra.length],
      [2, 0], [2, 0], [2, 0], [4, 0], [4, large ? LARGE : entry.offset]),
    name, extra);
}

/** All that follows the last file's data.
 * @param {Entry[]} entries @param {number} offset */
function directory(entries, offset) {
  const listed = joined(...entries.map(centralHeader));
  const count = entries.length;
  const isUsual = !entries.some(isLarge) && offset < LARGE;
  const end = numbers([4, 0x06054b50], [2, 0], [2, 0], [2, count], [2, count], [4, listed.length], [4, isUsual ? offset : LARGE], [2, 0]);
  if (isUsual) return joined(listed, end);
  const large = numbers([4, 0x06064b50], [8, 44], [2, 45], [2, 45], [4, 0], [4, 0], [8, count], [8, count], [8, listed.length], [8, offset]);
  return joined(listed, large, numbers([4, 0x07064b50], [4, 0], [8, offset + listed.length], [4, 1]), end);
}

/** Where the directory begins, and all bytes from there on. What they say is compared afterwards.
 * @param {Blob} file */
async function tailOf(file) {
  const end = await bytesAt(file, file.size - END_BYTES, END_BYTES);
  if (end.length !== END_BYTES || numberAt(end, 0, 4) !== 0x06054b50) {
    throw new PackageError("The file does not end as a ZIP: it is cut off, or something else");
  }
  let offset = numberAt(end, 16, 4);
  if (offset === LARGE) {
    const large = await bytesAt(file, file.size - END_BYTES - LOCATOR_BYTES - LARGE_END_BYTES, LARGE_END_BYTES);
    if (large.length !== LARGE_END_BYTES) throw new PackageError("The ZIP is cut off");
    offset = numberAt(large, 48, 8);
  }
  if (offset > file.size || file.size - offset > DIRECTORY_BYTES_MAX) {
    throw new PackageError("The ZIP's directory is not where it says, or larger than any of ours");
  }
  return { offset, tail: await bytesAt(file, offset, file.size - offset) };
}

/** @param {Uint8Array} tail @returns {Entry[]} */
function entriesIn(tail) {
  const entries = [];
  for (let at = 0; at + 4 <= tail.length && numberAt(tail, at, 4) === 0x02014b50; ) {
    if (at + CENTRAL_BYTES > tail.length) throw new PackageError("The ZIP's directory is cut off");
    const nameLength = numberAt(tail, at + 28, 2), extraLength = numberAt(tail, at + 30, 2), extraAt = at + CENTRAL_BYTES + nameLength;
    const name = new TextDecoder().decode(tail.subarray(at + CENTRAL_BYTES, extraAt));
    const method = numberAt(tail, at + 10, 2);
    if (![DEFLATE, STORED].includes(method) || !NAME.test(name)) {
      throw new PackageError("The ZIP has a file with a name or a compression that no package has");
    }
    const large = extraLength === 28 && extraAt + 28 <= tail.length;
    const [size, packed, offset] = large
      ? [4, 12, 20].map((from) => numberAt(tail, extraAt + from, 8))
      : [24, 20, 42].map((from) => numberAt(tail, at + from, 4));
    entries.push({ name, method, crc: numberAt(tail, at + 16, 4), packed, size, offset });
    at = extraAt + extraLength;
  }
  return entries;
}

/** Numbers in little-endian bytes.
 * @param {...[number, number]} all */
function numbers(...all) {
  const bytes = [];
  for (const [length, number] of all) {
    for (let at = 0, rest = number; at < length; at++, rest = Math.floor(rest / 256)) bytes.push(rest % 256);
  }
  return Uint8Array.from(bytes);
}

/** @param {Uint8Array} bytes @param {number} at @param {number} length */
function numberAt(bytes, at, length) {
  let number = 0;
  for (let from = at + length - 1; from >= at; from--) number = number * 256 + bytes[from];
  return number;
}

/** @param {Blob} file @param {number} at @param {number} length */
async function bytesAt(file, at, length) {
  return at < 0 ? new Uint8Array() : new Uint8Array(await file.slice(at, at + length).arrayBuffer());
}

function crcTable() {
  return Int32Array.from({ length: 256 }, (_, byte) => {
    let crc = byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
    return crc;
  });
}

/** @param {Uint8Array} bytes @param {number} crc  of what was before, not yet turned over */
function crcOf(bytes, crc) {
  for (let at = 0; at < bytes.length; at++) crc = CRC[(crc ^ bytes[at]) & 255] ^ (crc >>> 8);
  return crc;
}
