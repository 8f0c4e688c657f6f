// The heads of a package's months: signed, linked, and consistent with those that are anchored in the vault.
import { areEqual, ofHex, textOf, toBase64 } from "../basics/bytes.js";
import { headOf } from "../proof/bundle.js";
import { isObject, readLine } from "../basics/canonical.js";
import { isConsistent } from "../basics/merkle.js";
import { openCheckpoint } from "../proof/note.js";

/** @typedef {import("../proof/keys.js").KeyRing} KeyRing
 *  @typedef {import("../proof/note.js").Checkpoint} Checkpoint
 *  @typedef {import("../proof/note.js").Link} Link
 *  @typedef {import("../proof/verdict.js").Finding} Finding
 *  @typedef {import("../proof/verdict.js").RungName} RungName
 *  @typedef {import("../proof/verdict.js").Verdict} Verdict
 *  @typedef {{verdict: Verdict, words: string, expected?: string, found?: string}} Told
 *  @typedef {{month: string, head: import("../proof/bundle.js").Head, proofs: Map<string, Uint8Array[]>, anchors: Map<bigint, string>,
 *    red: Map<RungName, Told>}} Month */

const ANCHORS_MAX = 64;

export class Months {
  /** @param {{read: (name: string) => Promise<Uint8Array>, names: string[], origin: string}} files @param {KeyRing} ring
   *  @param {(finding: Finding) => void} add */
  constructor(files, ring, add) {
    this.files = files;
    this.ring = ring;
    this.add = add;
    /** @type {Map<string, Month>} */
    this.all = new Map();
  }

  /** @param {string[]} months */
  async check(months) {
    for (const month of months) await this.checkMonth(month);
    for (const month of this.all.values()) this.checkLink(month);
  }

  /** @param {string} month */
  async checkMonth(month) {
    const name = `checkpoints/${month}.note`;
    const head = { ...(await headOf(new TextDecoder().decode(await this.files.read(name)), this.ring)) };
    const wrong = head.wrong || this.wrongWith(head.checkpoint, month);
    /** @type {Month} */
    const found = { month, head: { ...head, month, wrong }, proofs: new Map(), anchors: new Map(), red: new Map() };
    this.all.set(month, found);
    if (wrong) this.red(found, "checkpoint", { verdict: "TAMPERED", words: wrong }, name);
    found.proofs = await this.proofs(found);
    const anchors = this.files.names.filter((each) => each.startsWith(`anchors/${month}/`)).sort();
    if (anchors.length > ANCHORS_MAX) this.red(found, "vault", { verdict: "TAMPERED", words: `There are more than ${ANCHORS_MAX} anchored heads` }, anchors[0]);
    for (const anchor of anchors.slice(-ANCHORS_MAX)) await this.checkAnchor(found, anchor);
  }

  /** @param {Checkpoint | null} checkpoint @param {string} month */
  wrongWith(checkpoint, month) {
    if (checkpoint && checkpoint.month !== month) return `The checkpoint is of ${checkpoint.month}`;
    if (checkpoint && checkpoint.origin !== this.files.origin) return `The checkpoint is of another log, ${checkpoint.origin}`;
    return "";
  }

  /** @param {Month} month @returns {Promise<Map<string, Uint8Array[]>>} */
  async proofs(month) {
    const name = `consistency/${month.month}.json`, body = readLine(await this.files.read(name)), { checkpoint } = month.head;
    const isOne = body && Object.keys(body).join() === "month,proofs,size" && isObject(body.proofs) && Object.values(body.proofs).every(areHashes);
    const words = !isOne ? "The file is not one of consistency proofs"
      : body.month !== month.month || (checkpoint && BigInt(checkpoint.size) !== BigInt(body.size)) ? "The file is not of this month and this checkpoint" : "";
    if (!body || words) this.red(month, "vault", { verdict: "TAMPERED", words }, name);
    if (!body || words) return new Map();
    return new Map(Object.entries(body.proofs).map(([old, proof]) => [old, proof.map((/** @type {string} */ part) => ofHex(part))]));
  }

  /** @param {Month} month @param {string} name */
  async checkAnchor(month, name) {
    const note = textOf(await this.files.read(name)), { checkpoint } = month.head, size = BigInt(name.slice(-17, -5));
    const anchored = await openCheckpoint(note ?? "", this.ring).catch((wrong) => `The anchored head is not genuine: ${wrong.message}`);
    const told = typeof anchored === "string" ? tampered(anchored) : this.wrongWithAnchor(anchored, month, size);
    if (told) this.red(month, "vault", told, name);
    else if (checkpoint) month.anchors.set(size, note ?? "");
  }

  /** @param {Checkpoint} anchored @param {Month} month @param {bigint} size @returns {Told | null} */
  wrongWithAnchor(anchored, { month, head: { checkpoint }, proofs }, size) {
    if (anchored.origin !== this.files.origin || anchored.month !== month || anchored.size !== size) {
      return tampered("The anchored head is of another log, month or size");
    }
    if (!checkpoint) return null;
    if (size > checkpoint.size) {
      const words = `The vault has a head of ${size} leaves, and the checkpoint only ${checkpoint.size}: the log was set back`;
      return { verdict: "MISSING", words, expected: `${size} leaves or more`, found: `${checkpoint.size}` };
    }
    if (isBeginningOf(anchored, checkpoint, proofs)) return null;
    return { ...tampered("The checkpoint's tree does not begin with the anchored one: the log was rewritten, or there are two"),
      expected: `a tree that begins with ${size} leaves under ${toBase64(anchored.root)}`, found: `the root ${toBase64(checkpoint.root)}` };
  }

  /** Whether the earlier month's checkpoint is that on top of which this one was signed.
   * @param {Month} later */
  checkLink({ month: laterMonth, head: { checkpoint: later } }) {
    const link = later?.previous, earlier = link ? this.all.get(link.month) : undefined, head = earlier?.head.checkpoint;
    if (!link || !earlier || !head) return;
    const expected = `${link.size} leaves under ${toBase64(link.root)}`, found = `${head.size} under ${toBase64(head.root)}`;
    const name = `checkpoints/${earlier.month}.note`;
    if (link.size > head.size) {
      const words = `${laterMonth} was signed on top of ${link.size} leaves, and this checkpoint has only ${head.size}`;
      this.red(earlier, "month", { verdict: "MISSING", words, expected, found }, name);
    } else if (!isBeginningOf(link, head, earlier.proofs)) {
      this.red(earlier, "month", { ...tampered(`${laterMonth} was signed on top of another tree than this checkpoint's`), expected, found }, name);
    }
  }

  /** @param {Month} month @param {RungName} rung @param {Told} told @param {string} file */
  red(month, rung, told, file) {
    if (!month.red.has(rung)) month.red.set(rung, told);
    this.add({ verdict: told.verdict, what: rung, words: told.words, month: month.month, file, expected: told.expected, found: told.found });
  }
}

/** @param {string} words @returns {Told} */
const tampered = (words) => ({ verdict: "TAMPERED", words });

/** @param {Link | Checkpoint} old @param {Checkpoint} head @param {Map<string, Uint8Array[]>} proofs */
function isBeginningOf(old, head, proofs) {
  if (old.size === head.size) return areEqual(old.root, head.root);
  return isConsistent(old.size, head.size, old.root, head.root, proofs.get(String(old.size)) ?? []);
}

/** @param {unknown} proof */
function areHashes(proof) {
  return Array.isArray(proof) && proof.every((part) => typeof part === "string" && /^[0-9a-f]{64}$/.test(part));
}
