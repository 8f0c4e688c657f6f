// What others have signed of the log: witnesses its log of heads, an authority the time. heads/head.note covers each month's anchored head of which
// heads/<month>.tlog-proof proves that it is an entry.
import { textOf, utf8 } from "../basics/bytes.js";
import { cosigners, lacks, openHead, openTlogProof } from "../proof/heads.js";
import { rung } from "../proof/verdict.js";
import { readCertificates } from "../stamps/certificates.js";
import { StampError } from "../stamps/der.js";
import { verifyStamp } from "../stamps/token.js";

/** @typedef {import("./months.js").Months} Months
 *  @typedef {import("./months.js").Told} Told
 *  @typedef {import("../stamps/certificates.js").Certificate} Certificate
 *  @typedef {import("../proof/heads.js").Policy} Policy
 *  @typedef {{policy: Policy | null, authorities: Certificate[]}} Trusted  whom the auditor believes besides the log's keys */

const HEAD = "heads/head.note";
const NO_HEAD = "The package has no head of a log of heads.", NO_STAMP = "The package has no time stamp.";

export class Elsewhere {
  constructor() {
    /** @type {Told} */
    this.witness = { verdict: "CANNOT_TELL", words: NO_HEAD };
    /** @type {Told} */
    this.stamp = { verdict: "CANNOT_TELL", words: NO_HEAD };
    /** @type {Map<string, bigint>} the leaves of each month under the head of heads */
    this.covered = new Map();
  }

  /** @param {Months} months @param {Trusted} trusted */
  async check(months, { policy, authorities }) {
    const { files, ring } = months, content = await files.read(HEAD), note = textOf(content) ?? "";
    if (!content.length) {
      if (policy) this.witness = tell(months, "witness", { verdict: "CANNOT_TELL", words: `A policy was given. ${NO_HEAD}` });
      if (authorities.length) this.stamp = tell(months, "time stamp", { verdict: "CANNOT_TELL", words: `Certificates were given. ${NO_HEAD}` });
      return;
    }
    let head;
    try {
      head = await openHead(note, ring);
      if (head.origin !== files.origin) throw new Error(`It is of another log, ${head.origin}`);
    } catch (wrong) {
      this.stamp = { verdict: "CANNOT_TELL", words: "The head of heads is not genuine." };
      this.witness = tell(months, "witness", { verdict: "TAMPERED", words: `The head of heads is not genuine: ${messageOf(wrong)}` });
      return;
    }
    this.witness = await this.witnessed(months, head, policy);
    for (const month of months.all.values()) await this.checkProof(months, month, note);
    this.stamp = await this.stamped(months, head.signed.text, authorities);
  }

  /** What is wrong with the head is wrong for all records. @param {string} month @param {number} index */
  rungs(month, index) {
    const isCovered = BigInt(index) < (this.covered.get(month) ?? 0n), beyond = "Sealed after the head of heads of the package.";
    return (/** @type {const} */ ([["witness", this.witness], ["time stamp", this.stamp]])).map(([name, { verdict, words }]) =>
      verdict !== "VALID" || isCovered ? rung(name, verdict, words) : rung(name, "CANNOT_TELL", beyond));
  }

  /** @param {Months} months @param {string} text @param {Certificate[]} authorities @returns {Promise<Told>} */
  async stamped(months, text, authorities) {
    const names = months.files.names.filter((name) => name.startsWith("stamps/"));
    const stamps = names.filter((name) => name.endsWith(".tsr")), others = [];
    if (!stamps.length && authorities.length) return tell(months, "time stamp", { verdict: "CANNOT_TELL", words: `Certificates were given. ${NO_STAMP}` });
    if (!stamps.length || !authorities.length) return { verdict: "CANNOT_TELL", words: stamps.length ? "No certificates of an authority were given." : NO_STAMP };
    for (const name of names.filter((each) => each.endsWith(".pem"))) {
      const { certificates, complaint } = readCertificates(textOf(await months.files.read(name)) ?? ""); // they only link: what is believed, the auditor gave
      if (complaint) tell(months, "time stamp", { verdict: "TAMPERED", words: complaint }, name);
      others.push(...certificates);
    }
    if (!globalThis.crypto?.subtle) return { verdict: "CANNOT_TELL", words: "This browser checks no signatures of authorities here. Open the page from a file." };
    const wrongs = [];
    for (const name of stamps) {
      try {
        const { time, authority } = await verifyStamp(await months.files.read(name), utf8(text), authorities, others);
        return { verdict: "VALID", words: `The head of heads existed at ${time}, says ${authority}.` };
      } catch (wrong) {
        if (!(wrong instanceof StampError)) throw wrong;
        wrongs.push(`${name}: ${wrong.message}`);
      }
    }
    return tell(months, "time stamp", { verdict: "TAMPERED", words: wrongs.join("; ") }, stamps[0]);
  }

  /** @param {Months} months @param {import("../proof/heads.js").Head} head @param {Policy | null} policy @returns {Promise<Told>} */
  async witnessed(months, head, policy) {
    if (!policy) return { verdict: "CANNOT_TELL", words: "No policy of witnesses was given." };
    try {
      const found = await cosigners(head.signed, policy), words = lacks(policy, head, months.ring, found);
      if (words) return tell(months, "witness", { verdict: "CANNOT_TELL", words });
      return { verdict: "VALID", words: `Cosigned by ${found.join(", ") || "none, which the policy allows"}, in a log of ${head.size} heads.` };
    } catch (wrong) {
      return tell(months, "witness", { verdict: "TAMPERED", words: messageOf(wrong) });
    }
  }

  /** @param {Months} months @param {import("./months.js").Month} month @param {string} note */
  async checkProof(months, month, note) {
    const name = `heads/${month.month}.tlog-proof`, content = await months.files.read(name);
    if (!content.length) return;
    try {
      const proven = await openTlogProof(textOf(content) ?? "", months.ring), { size } = proven.monthHead;
      if (proven.note !== note) throw new Error(`It is not under ${HEAD}`);
      if (month.anchors.get(size) !== proven.entry || proven.monthHead.month !== month.month) {
        throw new Error("It is not of an anchored head of this month in the package");
      }
      this.covered.set(month.month, size);
    } catch (wrong) {
      const words = `The proof that the month's head is in the log of heads: ${messageOf(wrong)}`;
      months.red(month, "witness", { verdict: "TAMPERED", words }, name);
    }
  }
}

/** @param {Months} months @param {string} what @param {Told} told @param {string} [file] @returns {Told} */
function tell(months, what, told, file = HEAD) {
  months.add({ ...told, what, file });
  return told;
}

/** @param {unknown} wrong */
const messageOf = (wrong) => (wrong instanceof Error ? wrong.message : String(wrong));
