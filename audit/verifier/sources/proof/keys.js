// The keys that the auditor pinned: the log's, one a line, and whatever they delegate. Nothing that was dropped adds a key, but
// for a delegation by a pinned one.
import { ofBase64, ofHex, toBase64, toHex, utf8 } from "../basics/bytes.js";
import { isPoint, isTextSigned } from "../basics/ed25519.js";
import { sha256 } from "../basics/sha2.js";
import { isTime } from "../basics/times.js";

/** @typedef {{begin: string, until: string, parent: string, signature: Uint8Array}} Delegation
 *  @typedef {{name: string, id: string, raw: Uint8Array, text: string, revokedAt: string | null, delegation: Delegation | null}} Key
 *  `id` is the fingerprint in hex */

const ED25519 = 1;
const ID = "affidavit\\+[0-9a-f]{8}";
const LINE = new RegExp(`^(${ID}\\+[A-Za-z0-9+/]{44})(?: revoked (\\S+)| delegated (\\S+) (\\S+) (${ID}) (\\S+))?$`);

/** Keys, and which of them count when. Pinned keys count for everything until they are revoked. A delegated key counts for rows,
 *  receipts and erasures of its time, if a pinned key signed its delegation: for no head, and not for delegating further. */
export class KeyRing {
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
export function readKeys(text) {
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
export function keyOfLine(line) {
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
export function fingerprint(name, kind, raw) {
  return toHex(sha256(utf8(`${name}\n`), Uint8Array.of(kind), raw).subarray(0, 4));
}

/** The id of a signature that begins with four bytes of its key, and the rest.
 * @param {Uint8Array} whole */
export const apart = (whole) => ({ id: toHex(whole.subarray(0, 4)), signature: whole.subarray(4) });

/** @param {string} text */
export const bytesOf = (text) => (text.startsWith("\\x") ? ofHex(text.slice(2)) : null);

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
