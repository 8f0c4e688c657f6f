// The log of heads: its signed head, C2SP's tlog-proof, and the witnesses that must have cosigned.
import { areEqual, joined, ofBase64, toBase64, toHex, utf8 } from "../basics/bytes.js";
import { isPoint, isSigned } from "../basics/ed25519.js";
import { fingerprint } from "./keys.js";
import { isIncluded } from "../basics/merkle.js";
import { hashOf, NoteError, openCheckpoint, parseNote, signersOf } from "./note.js";
import { sha256 } from "../basics/sha2.js";

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
export async function openHead(note, ring) {
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
export function parseTlogProof(text) {
  const [, extra, index, lines, note] = PROOF.exec(text) ?? [];
  if (!note) throw new NoteError("This is not a proof in C2SP's format, which begins with c2sp.org/tlog-proof@v1");
  const entry = ofBase64(extra ?? "");
  if (!entry) throw new NoteError(`${extra} is not canonical base64`);
  return { index: BigInt(index), hashes: lines.split("\n").slice(0, -1).map(hashOf), note, extra: entry };
}

/** The month's head that it proves, under the head of heads. Without an entry it is the proof's own.
 * @param {string} text @param {KeyRing} ring @param {string} [other] */
export async function openTlogProof(text, ring, other) {
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
export async function cosigners(note, policy) {
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
export function lacks(policy, { origin }, ring, cosigned) {
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
export function readPolicy(text) {
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
