// Signed notes of C2SP, and what the log signs in them: a month's head, and a break of its history. The errors' words are those
// of the command line.
import { ofBase64, utf8 } from "../basics/bytes.js";
import { apart } from "./keys.js";
import { isTextSigned } from "../basics/ed25519.js";
import { isMonth, isTime } from "../basics/times.js";

/** @typedef {import("./keys.js").Key} Key
 *  @typedef {import("./keys.js").KeyRing} KeyRing
 *  @typedef {{name: string, id: string, signature: Uint8Array}} SignatureLine
 *  @typedef {{text: string, lines: SignatureLine[]}} SignedNote
 *  @typedef {{month: string, size: bigint, root: Uint8Array}} Link
 *  @typedef {{kept: bigint, lost: bigint, digest: string}} BreakLine
 *  @typedef {{origin: string, month: string, size: bigint, root: Uint8Array, time: string, previous: Link | null,
 *    signedFrom: bigint | null, breaks: BreakLine[]}} Checkpoint */

export class NoteError extends Error {}

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
export function parseNote(note) {
  const end = note.lastIndexOf("\n\n");
  if (end < 1 || note[end - 1] === "\n" || !note.endsWith("\n")) throw new NoteError("This is not a signed note");
  const lines = note.slice(end + 2, -1).split("\n");
  if (lines.length > SIGNATURES_MAX) throw new NoteError(`These are not 1 to ${SIGNATURES_MAX} signature lines`);
  return { text: note.slice(0, end + 1), lines: lines.map(signatureLine) };
}

/** Those of these keys that signed the text; an error if one of their signatures does not fit it.
 * @param {SignedNote} note @param {{name: string, id: string, raw: Uint8Array}[]} keys */
export async function signersOf(note, keys) {
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
export async function openCheckpoint(note, ring) {
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
export function readCheckpoint(text) {
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
export function hashOf(text) {
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
