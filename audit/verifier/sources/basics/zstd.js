// Zstandard (RFC 8878), decompression alone, a block at a time. The checksums of frames are not compared: whoever reads an archive
// compares the SHA-256 of the compressed file.
import { joined } from "./bytes.js";

export class ZstdError extends Error {}

/** @typedef {{log: number, symbols: Uint8Array, bits: Uint8Array, bases: Uint16Array}} Table
 *  @typedef {{bits: number, symbols: Uint8Array, lengths: Uint8Array}} Tree
 *  @typedef {{tree: Tree | null, tables: (Table | null)[], repeats: number[]}} Kept  what a block keeps for those after it */

const MAGIC = 0xfd2fb528, SKIPPABLE = 0x184d2a50;
const WINDOW_BYTES_MAX = 2 ** 27, BLOCK_BYTES_MAX = 2 ** 17;
const LITERALS = 0, OFFSETS = 1, MATCHES = 2;
const LOGS_MAX = [9, 8, 9], SYMBOLS_MAX = [35, 31, 52];
const USUAL = [
  [6, [4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1]],
  [5, [1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1]],
  [6, [1, 4, 3, 2, 2, 2, 2, 2, 2, ...Array(37).fill(1), -1, -1, -1, -1, -1, -1, -1]],
].map(([log, counts]) => tableOf(/** @type {number[]} */ (counts), /** @type {number} */ (log)));
const LITERAL_BITS = [...Array(16).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const MATCH_BITS = [...Array(32).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const LITERAL_BASES = basesOf(LITERAL_BITS, 0), MATCH_BASES = basesOf(MATCH_BITS, 3);

/** The content, piece by piece.
 * @param {Uint8Array} bytes @returns {Generator<Uint8Array>} */
export function* decompressed(bytes) {
  let at = 0;
  while (at < bytes.length) {
    const magic = littleEndian(bytes, at, 4);
    if ((magic & 0xfffffff0) >>> 0 === SKIPPABLE) at += 8 + littleEndian(bytes, at + 4, 4);
    else if (magic === MAGIC) at = yield* frame(bytes, at + 4);
    else throw new ZstdError("The file is not compressed with Zstandard");
  }
}

/** @param {Uint8Array} bytes @param {number} from @returns {Generator<Uint8Array, number>} */
function* frame(bytes, from) {
  const header = headerOf(bytes, from);
  const window = new Uint8Array(header.window * 2 + BLOCK_BYTES_MAX);
  /** @type {Kept} */
  const kept = { tree: null, tables: [null, null, null], repeats: [1, 4, 8] };
  let at = header.end, filled = 0, size = 0, isLast = false;
  while (!isLast) {
    const head = littleEndian(bytes, at, 3), kind = (head >> 1) & 3, length = head >> 3;
    isLast = (head & 1) === 1;
    at += 3;
    if (filled + BLOCK_BYTES_MAX > window.length) {
      window.copyWithin(0, filled - header.window, filled);
      filled = header.window;
    }
    const packed = kind === 1 ? 1 : length;
    if (kind === 3 || length > BLOCK_BYTES_MAX || at + packed > bytes.length) throw new ZstdError("A block is cut off");
    const begun = filled;
    if (kind === 0) window.set(bytes.subarray(at, at + length), filled);
    if (kind === 1) window.fill(bytes[at], filled, filled + length);
    filled = kind === 2 ? block(bytes.subarray(at, at + length), window, filled, kept) : filled + length;
    at += packed;
    size += filled - begun;
    yield window.slice(begun, filled);
  }
  if (header.size !== null && header.size !== size) throw new ZstdError("A frame has another size than it says");
  return at + (header.hasChecksum ? 4 : 0);
}

/** @param {Uint8Array} bytes @param {number} at */
function headerOf(bytes, at) {
  const about = bytes[at], isSingle = (about & 32) !== 0, sizeFlag = about >> 6;
  if (about === undefined || about & 8 || about & 3) throw new ZstdError("A frame has a form that no archive has");
  at += 1;
  let window = 0;
  if (!isSingle) {
    const base = 2 ** (10 + (bytes[at] >> 3));
    window = base + (base / 8) * (bytes[at] & 7);
    at += 1;
  }
  const length = [isSingle ? 1 : 0, 2, 4, 8][sizeFlag];
  const size = length ? littleEndian(bytes, at, length) + (length === 2 ? 256 : 0) : null;
  if (isSingle) window = size ?? 0;
  if (!(window <= WINDOW_BYTES_MAX)) throw new ZstdError("A frame needs more memory than any archive");
  return { window, size, end: at + length, hasChecksum: (about & 4) !== 0 };
}

/** @param {Uint8Array} bytes @param {Uint8Array} window @param {number} filled @param {Kept} kept */
function block(bytes, window, filled, kept) {
  const { literals, end } = literalsOf(bytes, kept);
  const { count, at, modes } = sequenceHeader(bytes, end);
  if (!count) return copied(literals, 0, literals.length, window, filled);
  const from = readTables(bytes, at, modes, kept);
  return sequences(new Backward(bytes, from, bytes.length), count, literals, window, filled, kept);
}

/** @param {Uint8Array} bytes @param {Kept} kept */
function literalsOf(bytes, kept) {
  const kind = bytes[0] & 3, form = (bytes[0] >> 2) & 3;
  if (kind < 2) {
    const length = [1, 2, 1, 3][form], size = Math.floor(littleEndian(bytes, 0, length) / (form % 2 ? 16 : 8));
    const end = length + (kind === 1 ? 1 : size);
    if (size > BLOCK_BYTES_MAX || end > bytes.length) throw new ZstdError("The literals of a block are cut off");
    return { literals: kind === 1 ? new Uint8Array(size).fill(bytes[length]) : bytes.subarray(length, end), end };
  }
  const length = [3, 3, 4, 5][form], digits = 2 ** [10, 10, 14, 18][form], whole = Math.floor(littleEndian(bytes, 0, length) / 16);
  const size = whole % digits, end = length + Math.floor(whole / digits);
  if (size > BLOCK_BYTES_MAX || end > bytes.length) throw new ZstdError("The literals of a block are cut off");
  let at = length;
  if (kind === 2) [kept.tree, at] = treeOf(bytes, at);
  if (!kept.tree) throw new ZstdError("A block has no tree for its literals");
  return { literals: huffman(bytes, at, end, size, form === 0 ? 1 : 4, kept.tree), end };
}

/** @param {Uint8Array} bytes @param {number} at @param {number} end @param {number} size @param {number} streams @param {Tree} tree */
function huffman(bytes, at, end, size, streams, tree) {
  if (streams === 1) return stream(bytes, at, end, size, tree);
  const ends = [0, 2, 4].map((place) => littleEndian(bytes, at + place, 2)), part = Math.floor((size + 3) / 4);
  const parts = [];
  let from = at + 6;
  for (const [place, length] of [...ends, end - from - ends[0] - ends[1] - ends[2]].entries()) {
    parts.push(stream(bytes, from, from + length, place < 3 ? part : size - 3 * part, tree));
    from += length;
  }
  return joined(...parts);
}

/** @param {Uint8Array} bytes @param {number} from @param {number} to @param {number} size @param {Tree} tree */
function stream(bytes, from, to, size, { bits, symbols, lengths }) {
  if (size < 0) throw new ZstdError("The literals of a block are cut off");
  const source = new Backward(bytes, from, to), out = new Uint8Array(size), mask = (1 << bits) - 1;
  let state = source.read(bits);
  for (let at = 0; at < size; at++) {
    out[at] = symbols[state];
    state = ((state << lengths[state]) & mask) + source.read(lengths[state]);
  }
  if (source.at !== -bits) throw new ZstdError("The literals of a block do not end where they should");
  return out;
}

/** @param {Uint8Array} bytes @param {number} at @returns {[Tree, number]} */
function treeOf(bytes, at) {
  const head = bytes[at];
  const weights = [];
  let end = at + 1 + head;
  if (head >= 128) {
    end = at + 1 + Math.ceil((head - 127) / 2);
    for (let place = 0; place < head - 127; place++) weights.push((bytes[at + 1 + (place >> 1)] >> (place % 2 ? 0 : 4)) & 15);
  } else {
    weights.push(...compressedWeights(bytes, at + 1, end));
  }
  const sum = weights.reduce((all, weight) => all + (weight ? 1 << (weight - 1) : 0), 0);
  const bits = highest(sum) + 1, left = (1 << bits) - sum;
  if (!sum || bits > 11 || 1 << highest(left) !== left) throw new ZstdError("A tree for literals is wrong");
  return [treeOfLengths([...weights, highest(left) + 1].map((weight) => (weight ? bits + 1 - weight : 0)), bits), end];
}

/** @param {Uint8Array} bytes @param {number} at @param {number} end */
function compressedWeights(bytes, at, end) {
  const [table, from] = readTable(bytes, at, 6, 255);
  const source = new Backward(bytes, from, end), weights = [];
  const states = [source.read(table.log), source.read(table.log)];
  for (let turn = 0; weights.length < 255; turn = 1 - turn) {
    const state = states[turn];
    weights.push(table.symbols[state]);
    states[turn] = table.bases[state] + source.read(table.bits[state]);
    if (source.at < 0) return [...weights, table.symbols[states[1 - turn]]];
  }
  throw new ZstdError("A tree for literals is wrong");
}

/** @param {number[]} lengths @param {number} bits @returns {Tree} */
function treeOfLengths(lengths, bits) {
  const tree = { bits, symbols: new Uint8Array(1 << bits), lengths: new Uint8Array(1 << bits) };
  let at = 0;
  for (let length = bits; length >= 1; length--) {
    for (const [symbol, own] of lengths.entries()) {
      if (own !== length) continue;
      const next = at + (1 << (bits - length));
      tree.symbols.fill(symbol, at, next);
      tree.lengths.fill(length, at, next);
      at = next;
    }
  }
  return tree;
}

/** @param {Uint8Array} bytes @param {number} at */
function sequenceHeader(bytes, at) {
  const first = bytes[at];
  if (first === 0) return { count: 0, at: at + 1, modes: 0 };
  const [count, length] = first < 128 ? [first, 1] : first < 255 ? [((first - 128) << 8) + bytes[at + 1], 2] : [littleEndian(bytes, at + 1, 2) + 0x7f00, 3];
  return { count, at: at + length + 1, modes: bytes[at + length] };
}

/** @param {Uint8Array} bytes @param {number} at @param {number} modes @param {Kept} kept */
function readTables(bytes, at, modes, kept) {
  for (const kind of [LITERALS, OFFSETS, MATCHES]) {
    const mode = (modes >> (6 - 2 * kind)) & 3;
    if (mode === 0) kept.tables[kind] = USUAL[kind];
    if (mode === 1) {
      kept.tables[kind] = { log: 0, symbols: Uint8Array.of(bytes[at]), bits: new Uint8Array(1), bases: new Uint16Array(1) };
      at += 1;
    }
    if (mode === 2) [kept.tables[kind], at] = readTable(bytes, at, LOGS_MAX[kind], SYMBOLS_MAX[kind]);
    if (!kept.tables[kind]) throw new ZstdError("A block repeats a table that there is not");
  }
  return at;
}

/** @param {Backward} source @param {number} count @param {Uint8Array} literals @param {Uint8Array} window @param {number} filled @param {Kept} kept */
function sequences(source, count, literals, window, filled, { tables, repeats }) {
  const [ofLiterals, ofOffsets, ofMatches] = /** @type {Table[]} */ (tables);
  let literal = source.read(ofLiterals.log), offset = source.read(ofOffsets.log), match = source.read(ofMatches.log), taken = 0;
  const end = filled + BLOCK_BYTES_MAX;
  for (let left = count; left > 0; left--) {
    const offsetCode = ofOffsets.symbols[offset], matchCode = ofMatches.symbols[match], literalCode = ofLiterals.symbols[literal];
    const value = 2 ** offsetCode + source.read(offsetCode);
    const length = MATCH_BASES[matchCode] + source.read(MATCH_BITS[matchCode]);
    const plain = LITERAL_BASES[literalCode] + source.read(LITERAL_BITS[literalCode]);
    const back = offsetOf(value, plain, repeats);
    if (!(taken + plain <= literals.length) || !(filled + plain + length <= end)) throw new ZstdError("A block is longer than it may be");
    filled = copied(literals, taken, taken + plain, window, filled);
    taken += plain;
    if (!(back > 0) || back > filled) throw new ZstdError("A block repeats what is not there");
    for (const to = filled + length; filled < to; filled++) window[filled] = window[filled - back];
    if (left === 1) break;
    literal = ofLiterals.bases[literal] + source.read(ofLiterals.bits[literal]);
    match = ofMatches.bases[match] + source.read(ofMatches.bits[match]);
    offset = ofOffsets.bases[offset] + source.read(ofOffsets.bits[offset]);
  }
  if (source.at !== 0 || filled + literals.length - taken > end) throw new ZstdError("A block does not end where it should");
  return copied(literals, taken, literals.length, window, filled);
}

/** How far back a match begins; the last three are remembered.
 * @param {number} value @param {number} plain @param {number[]} repeats */
function offsetOf(value, plain, repeats) {
  if (value > 3) {
    repeats.unshift(value - 3);
    repeats.pop();
    return value - 3;
  }
  const place = value - 1 + (plain === 0 ? 1 : 0);
  const back = place === 3 ? repeats[0] - 1 : repeats[place];
  if (place > 0) {
    repeats.splice(Math.min(place, 2), 1);
    repeats.unshift(back);
  }
  return back;
}

/** @param {Uint8Array} from @param {number} begin @param {number} end @param {Uint8Array} to @param {number} at */
function copied(from, begin, end, to, at) {
  to.set(from.subarray(begin, end), at);
  return at + end - begin;
}

/** @param {Uint8Array} bytes @param {number} from @param {number} logMax @param {number} symbolsMax @returns {[Table, number]} */
function readTable(bytes, from, logMax, symbolsMax) {
  let at = from * 8;
  /** @param {number} count */
  const read = (count) => {
    const value = (littleEndian(bytes, at >> 3, 4) >>> (at & 7)) & ((1 << count) - 1);
    at += count;
    return value;
  };
  const log = read(4) + 5, counts = [];
  let left = 1 << log;
  if (log > logMax) throw new ZstdError("A table is larger than it may be");
  while (left > 0 && counts.length <= symbolsMax) {
    const bits = highest(left + 1) + 1, low = (1 << (bits - 1)) - 1, threshold = (1 << bits) - 1 - (left + 1);
    let value = read(bits);
    if ((value & low) < threshold) {
      at -= 1;
      value &= low;
    } else if (value > low) {
      value -= threshold;
    }
    const count = value - 1;
    left -= Math.abs(count);
    counts.push(count);
    for (let more = count === 0 ? 3 : 0; more === 3; ) {
      more = read(2);
      for (let skipped = 0; skipped < more; skipped++) counts.push(0);
    }
  }
  const end = (at + 7) >> 3;
  if (left !== 0 || counts.length > symbolsMax + 1 || end > bytes.length) throw new ZstdError("A table is wrong");
  return [tableOf(counts, log), end];
}

/** @param {number[]} counts @param {number} log @returns {Table} */
function tableOf(counts, log) {
  const size = 1 << log, table = { log, symbols: new Uint8Array(size), bits: new Uint8Array(size), bases: new Uint16Array(size) };
  const next = counts.map((count) => Math.abs(count));
  let high = size, at = 0;
  for (const [symbol, count] of counts.entries()) if (count === -1) table.symbols[--high] = symbol;
  const step = (size >> 1) + (size >> 3) + 3;
  for (const [symbol, count] of counts.entries()) {
    for (let place = 0; place < count; place++) {
      table.symbols[at] = symbol;
      do at = (at + step) & (size - 1); while (at >= high);
    }
  }
  for (let state = 0; state < size; state++) {
    const number = next[table.symbols[state]]++;
    table.bits[state] = log - highest(number);
    table.bases[state] = (number << table.bits[state]) - size;
  }
  return table;
}

/** Bits that are read from the end. Those before the beginning are 0. */
class Backward {
  /** @param {Uint8Array} bytes @param {number} from @param {number} to */
  constructor(bytes, from, to) {
    if (!(from < to) || to > bytes.length || !bytes[to - 1]) throw new ZstdError("A stream of bits is cut off");
    this.bytes = bytes.subarray(from, to);
    this.at = (to - from) * 8 - (8 - highest(bytes[to - 1]));
  }

  /** @param {number} count @returns {number} */
  read(count) {
    if (count > 16) return this.read(count - 16) * 65536 + this.read(16);
    this.at -= count;
    const { bytes, at } = this;
    if (at < 0) return at + count <= 0 ? 0 : (((bytes[0] | (bytes[1] << 8) | (bytes[2] << 16)) & ((1 << (at + count)) - 1)) << -at) >>> 0;
    const place = at >> 3;
    return ((bytes[place] | (bytes[place + 1] << 8) | (bytes[place + 2] << 16)) >>> (at & 7)) & ((1 << count) - 1);
  }
}

/** @param {number[]} bits @param {number} first */
function basesOf(bits, first) {
  let base = first;
  return bits.map((count) => (base += 2 ** count) - 2 ** count);
}

/** The place of the highest bit that is set. @param {number} number */
function highest(number) {
  return 31 - Math.clz32(number);
}

/** @param {Uint8Array} bytes @param {number} at @param {number} length */
function littleEndian(bytes, at, length) {
  let number = 0;
  for (let from = at + length - 1; from >= at; from--) number = number * 256 + (bytes[from] ?? 0);
  return number;
}
