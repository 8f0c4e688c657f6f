// A file that stands for one record: a proof, a receipt, an answer with its receipt.
import { judge } from "../proof/bundle.js";
import { cosigners, lacks, openTlogProof } from "../proof/heads.js";
import { FORGED, GENUINE, isGenuine } from "../proof/receipt.js";
import { RUNGS, rung } from "../proof/verdict.js";

/** @typedef {import("../proof/keys.js").KeyRing} KeyRing
 *  @typedef {{ring: KeyRing, policy: import("../proof/heads.js").Policy | null}} Given
 *  @typedef {import("../proof/receipt.js").Receipt} Receipt
 *  @typedef {import("../proof/verdict.js").Rung} Rung
 *  @typedef {import("../proof/verdict.js").Verdict} Verdict
 *  @typedef {import("../proof/bundle.js").Judged} Judged */

/** @type {Partial<Record<import("../proof/verdict.js").RungName, string>>} */
const NOT_HERE = {
  vault: "A proof has no anchors of the vault. A package has them.",
  witness: "A proof has no head of heads. Drop the .tlog-proof of its checkpoint with it.",
  "time stamp": "A proof has no time stamp. A package has it.",
};

/** With a proof of the log of heads beside it, also whether the record's checkpoint is in that.
 * @param {Uint8Array} content @param {Given} given @param {string} [heads] @returns {Promise<Judged>} */
export async function checkProof(content, { ring, policy }, heads) {
  const judged = await judge(content, ring);
  if (!judged.bundle) return judged;
  const words = judged.bundle.commitments
    ? rung("words", "ERASED", "The personal data was erased or withheld. Its commitments stay, and the record is proven by them.")
    : rung("words", "VALID", "What is shown below is written from the very bytes that were checked.");
  const witness = heads === undefined ? [] : [(await checkHeads(heads, { ring, policy }, judged.bundle.note)).witness];
  const verdict = witness.some((each) => each.verdict === "TAMPERED") ? "TAMPERED" : judged.verdict;
  return { ...judged, verdict, rungs: withRest([words, ...judged.rungs, ...witness]) };
}

/** A `.tlog-proof`: that a month's head is in the log of heads, and that its witnesses are those of the policy.
 * @param {string} text @param {Given} given @param {string} [entry] @returns {Promise<{verdict: Verdict, rungs: Rung[], witness: Rung}>} */
export async function checkHeads(text, { ring, policy }, entry) {
  try {
    const { head, monthHead, index } = await openTlogProof(text, ring, entry);
    const month = rung("month", "VALID", `The head of ${monthHead.month} with ${monthHead.size} records, of the log ${monthHead.origin}.`);
    const checkpoint = rung("checkpoint", "VALID", `Signed at ${monthHead.time} with the pinned key ${monthHead.keyId}.`);
    const place = `It is entry ${index} of ${head.size} in the log of heads.`;
    const found = policy ? await cosigners(head.signed, policy) : [];
    const wanting = policy ? lacks(policy, head, ring, found) : "No policy of witnesses was given, so only the log itself vouches for it.";
    const witness = wanting ? rung("witness", "CANNOT_TELL", `${place} ${wanting}`) : rung("witness", "VALID", `${place} Cosigned by ${found.join(", ") || "none, which the policy allows"}.`);
    return { verdict: policy && wanting ? "CANNOT_TELL" : "VALID", rungs: [month, checkpoint, witness], witness };
  } catch (wrong) {
    const witness = rung("witness", "TAMPERED", wrong instanceof Error ? wrong.message : String(wrong));
    return { verdict: "TAMPERED", rungs: [witness], witness };
  }
}

/** @param {Receipt} receipt @param {KeyRing} ring @returns {Promise<{verdict: Verdict, words: string}>} */
export async function checkReceipt(receipt, ring) {
  return (await isGenuine(receipt, ring)) ? { verdict: "UNSEALED", words: GENUINE } : { verdict: "TAMPERED", words: FORGED };
}

/** What is wrong between a proof and the receipt that was dropped with it; "" if they are of one record.
 * @param {Judged} judged @param {Receipt} receipt @param {KeyRing} ring */
export async function difference(judged, receipt, ring) {
  if (!(await isGenuine(receipt, ring))) return FORGED;
  const isSame = receipt.log_id === judged.bundle?.row.log_id && receipt.leaf_hash === judged.leaf;
  return isSame ? "" : `The proof is not of the receipt's record, ${receipt.log_id}`;
}

/** @param {Rung[]} rungs */
function withRest(rungs) {
  const missing = RUNGS.filter((name) => !rungs.some((each) => each.rung === name));
  return [...rungs, ...missing.map((name) => rung(name, "CANNOT_TELL", NOT_HERE[name] ?? ""))];
}

