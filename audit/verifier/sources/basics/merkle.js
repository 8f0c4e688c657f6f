// Merkle tree of RFC 6962 over leaf hashes. Sizes and places are whole numbers of any length: a note may name a large one.
import { areEqual } from "../basics/bytes.js";
import { sha256 } from "../basics/sha2.js";

const NODE = Uint8Array.of(1);
export const EMPTY_ROOT = sha256();

/** Whether the proof leads from the leaf to the root and has exactly as many hashes as it must have.
 * @param {Uint8Array} leaf @param {bigint} index @param {bigint} size @param {Uint8Array[]} proof @param {Uint8Array} root */
export function isIncluded(leaf, index, size, proof, root) {
  const found = rootOfPath(leaf, index, size, proof);
  return found !== null && areEqual(found, root);
}

/** The root to which the path leads; null if the path is not of this place.
 * @param {Uint8Array} leaf @param {bigint} index @param {bigint} size @param {Uint8Array[]} proof */
export function rootOfPath(leaf, index, size, proof) {
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
export function isConsistent(old, size, oldRoot, root, proof) {
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
export class Frontier {
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
