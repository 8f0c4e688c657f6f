// A strict reader of ASN.1's DER: each value is written in one way, and nothing may be left over.
import { ofHex, toHex } from "../basics/bytes.js";

/** @typedef {{tag: number, content: Uint8Array, whole: Uint8Array}} Element  `whole` with its tag and its length */

export class StampError extends Error {}

export const BOOLEAN = 1, INTEGER = 2, BIT_STRING = 3, OCTET_STRING = 4, NULL = 5, OID = 6, GENERALIZED_TIME = 0x18, UTC_TIME = 0x17, SEQUENCE = 0x30, SET = 0x31;
const LONG_TAG = 0x1f, LONG_LENGTH = 0x80, LENGTH_BYTES_MAX = 4;

/** The elements of a constructed value, one after the other. */
export class Items {
  /** @param {Uint8Array} content */
  constructor(content) {
    this.content = content;
    this.at = 0;
  }

  /** @param {number} tag @returns {Element} */
  take(tag) {
    const found = this.optional(tag);
    if (!found) throw new StampError(`A value of type 0x${tag.toString(16)} is missing`);
    return found;
  }

  /** @param {number} tag @returns {Element | null} */
  optional(tag) {
    const found = this.next();
    if (!found || found.tag !== tag) return null;
    this.at += found.whole.length;
    return found;
  }

  /** The rest, each of this type. @param {number} tag */
  all(tag) {
    const found = [];
    while (this.at < this.content.length) found.push(this.take(tag));
    return found;
  }

  end() {
    require(this.at === this.content.length, "There is more than belongs there");
  }

  /** @returns {Element | null} */
  next() {
    const { content, at } = this;
    if (at >= content.length) return null;
    require(at + 2 <= content.length && (content[at] & LONG_TAG) !== LONG_TAG, "This is not DER, or it is cut off");
    let begin = at + 2, size = content[at + 1];
    if (size >= LONG_LENGTH) {
      const coded = content.subarray(begin, begin + size - LONG_LENGTH), count = size - LONG_LENGTH;
      size = coded.reduce((sum, byte) => sum * 256 + byte, 0);
      const isShortest = coded.length === count && count > 0 && count <= LENGTH_BYTES_MAX && coded[0] !== 0 && size >= LONG_LENGTH;
      require(isShortest, "A length is not written as DER demands");
      begin += count;
    }
    require(begin + size <= content.length, "This is not DER, or it is cut off");
    return { tag: content[at], content: content.subarray(begin, begin + size), whole: content.subarray(at, begin + size) };
  }
}

/** @param {Element} element */
export const itemsOf = ({ content }) => new Items(content);

/** The one element that is all of the content. @param {Uint8Array} content @param {number} tag */
export function only(content, tag) {
  const items = new Items(content), found = items.take(tag);
  items.end();
  return found;
}

/** An INTEGER, in as few bytes as it needs. @param {Element} element */
export function numberOf({ content }) {
  const isShortest = content.length === 1 || (content.length > 1 && !((content[0] === 0 && content[1] < 128) || (content[0] === 255 && content[1] >= 128)));
  require(isShortest, "A whole number is not written as DER demands");
  return BigInt.asIntN(content.length * 8, BigInt(`0x${toHex(content)}`));
}

/** The content of an OBJECT IDENTIFIER, in hex. @param {string} dotted */
export function oid(dotted) {
  const [first, second, ...rest] = dotted.split(".").map(Number);
  const bytes = [40 * first + second, ...rest].flatMap((number) => {
    const digits = [number % 128];
    for (let left = Math.floor(number / 128); left; left = Math.floor(left / 128)) digits.unshift((left % 128) + 128);
    return digits;
  });
  return toHex(Uint8Array.from(bytes));
}

/** The content of the next element, an OBJECT IDENTIFIER, in hex. @param {Items} items */
export const takeOid = (items) => toHex(items.take(OID).content);

/** An AlgorithmIdentifier without parameters, in hex. @param {Items} items */
export function algorithmOf(items) {
  const kind = takeOid(items);
  endOfAlgorithm(items);
  return kind;
}

/** @param {Items} items */
export function endOfAlgorithm(items) {
  const nothing = items.optional(NULL);
  require(!nothing || !nothing.content.length, OTHER_ALGORITHM);
  items.end();
}

export const OTHER_ALGORITHM = "The time stamp uses another algorithm than RSA or ECDSA with SHA-2";

/** @param {unknown} condition @param {string} message @returns {asserts condition} */
export function require(condition, message) {
  if (!condition) throw new StampError(message);
}

/** @param {string} hex */
export const bytesOfHex = (hex) => /** @type {Uint8Array} */ (ofHex(hex));
