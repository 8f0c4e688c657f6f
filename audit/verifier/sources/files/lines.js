// Lines of a stream of bytes, each with its end.
import { joined } from "../basics/bytes.js";

export const LINE_BYTES_MAX = 64 * 2 ** 20;
const LINE_END = 10, QUOTATION_MARK = 34;

/** The lines, as many at a time as a piece completes; a last one without an end as it is.
 * @param {AsyncIterable<Uint8Array>} pieces @param {{quoted: boolean}} [form]  whether an end inside of quotation marks is none, as in CSV
 * @returns {AsyncGenerator<Uint8Array[]>} */
export async function* linesOf(pieces, { quoted } = { quoted: false }) {
  /** @type {Uint8Array[]} */
  let begun = [];
  let held = 0, isInside = false;
  for await (const piece of pieces) {
    const lines = [];
    let from = 0;
    for (let at = 0; at < piece.length; at++) {
      if (quoted && piece[at] === QUOTATION_MARK) isInside = !isInside;
      if (piece[at] !== LINE_END || isInside) continue;
      lines.push(begun.length ? joined(...begun, piece.subarray(from, at + 1)) : piece.slice(from, at + 1));
      [begun, held, from] = [[], 0, at + 1];
    }
    if (from < piece.length) begun.push(piece.slice(from));
    held += piece.length - from;
    if (held > LINE_BYTES_MAX) throw new RangeError("A line is longer than any of ours");
    if (lines.length) yield lines;
  }
  if (begun.length) yield [joined(...begun)];
}
