// The page: the keys that the auditor pins, the files that are dropped, and what was found.
import { readPolicy } from "../proof/heads.js";
import { readKeys } from "../proof/keys.js";
import { receiptOf } from "../proof/receipt.js";
import { checkHeads, checkProof, checkReceipt, difference } from "../files/single.js";
import { kindOfFile, PROOF_BYTES_MAX } from "../files/kind.js";
import { Archive } from "../files/archive.js";
import { Package } from "../files/package.js";
import { readCertificates } from "../stamps/certificates.js";
import { byId, element, moment } from "./dom.js";
import { archivePanel, packagePanel } from "./overview.js";
import { headsPanel, proofPanel, receiptPanel, toldPanel } from "./panels.js";

/** @typedef {import("../proof/keys.js").KeyRing} KeyRing
 *  @typedef {import("../files/package.js").Given} Given */

const KEYS_BYTES_MAX = 2 ** 20;
/** @type {import("../files/kind.js").Kind[]} */
const OF_AN_ARCHIVE = ["manifest", "evidence", "checkpoint", "leaves", "keys"];
const PAUSE_MS = 100; // between two pictures of the progress
const keysField = /** @type {HTMLTextAreaElement} */ (byId("keys"));
const policyField = /** @type {HTMLTextAreaElement} */ (byId("policy"));
const authoritiesField = /** @type {HTMLTextAreaElement} */ (byId("authorities"));
const progress = /** @type {HTMLProgressElement} */ (byId("progress"));
/** @type {File[]} */
let dropped = [];
let turn = 0; // what an earlier turn finds is not shown any more

for (const field of [keysField, policyField, authoritiesField]) field.addEventListener("input", () => void again());
listen("keys-file", async ([file]) => {
  keysField.value = file.size > KEYS_BYTES_MAX ? "" : await file.text();
  await again();
});
listen("evidence", async (files) => {
  dropped = files;
  await again();
});
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") void drop(/** @type {DragEvent} */ (event));
  });
}

/** @param {string} id @param {(files: File[]) => Promise<void>} act */
function listen(id, act) {
  const input = /** @type {HTMLInputElement} */ (byId(id));
  input.addEventListener("change", () => {
    const files = [...(input.files ?? [])];
    input.value = ""; // the same file may be chosen again
    if (files.length) void act(files);
  });
}

/** @param {DragEvent} event */
async function drop(event) {
  const files = [...(event.dataTransfer?.files ?? [])];
  if (!files.length) return;
  if (event.target === keysField) keysField.value = await files[0].text();
  else dropped = files;
  await again();
}

/** Checks what was dropped with the keys and the policy as they are now. */
async function again() {
  const mine = ++turn;
  const { ring, complaint } = readKeys(keysField.value);
  const { policy, complaint: policyComplaint } = readPolicy(policyField.value);
  showKeys(ring, complaint);
  const { certificates: authorities, complaint: authoritiesComplaint } = readCertificates(authoritiesField.value);
  const wrongs = [complain(policyField, policyComplaint), complain(authoritiesField, authoritiesComplaint)];
  if (!dropped.length) return;
  byId("result").replaceChildren();
  if (!ring.keys.length) return say("Pin the public keys first: without a key nothing can be verified.");
  if (wrongs.some(Boolean)) return say("Correct or empty the policy and the certificates first: a verdict without them would be another one.");
  say("Checking …");
  const panels = await check(dropped, { ring, policy, authorities }, watchOf(mine)).catch((wrong) => failed(wrong));
  if (mine !== turn) return;
  progress.hidden = true;
  byId("result").replaceChildren(...panels);
  byId("result").focus({ preventScroll: true });
  byId("result").scrollIntoView({ block: "start" });
  say(panels.map((panel) => `${panel.dataset.verdict}: ${panel.dataset.file}`).join(". "));
}

/** Shows how far a turn is, and ends it once another has begun.
 * @param {number} mine @returns {import("../files/package.js").Watch} */
function watchOf(mine) {
  let told = 0;
  return {
    tell: async (done, all) => {
      if (performance.now() - told < PAUSE_MS) return;
      await moment();
      told = performance.now();
      if (mine !== turn) throw new Error("Another check has begun.");
      progress.hidden = false;
      progress.max = all;
      progress.value = done;
    },
  };
}

/** @param {File[]} files @param {Given} given @param {import("../files/package.js").Watch} watch */
async function check(files, given, watch) {
  const kinds = await Promise.all(files.map(kindOfFile));
  const [receipts, heads, proofs] = ["receipt", "tlog-proof", "proof"].map((kind) => files.filter((_, at) => kinds[at] === kind));
  const beside = {
    receipt: receipts.length === 1 && proofs.length === 1 ? receiptOf(await bytesOf(receipts[0])) : null,
    heads: heads.length === 1 && proofs.length === 1 ? await heads[0].text() : undefined,
  };
  const panels = [];
  const archived = new Map(files.flatMap((file, at) => (OF_AN_ARCHIVE.includes(kinds[at]) ? [[kinds[at], file]] : [])));
  if (archived.has("manifest") || archived.has("evidence")) panels.push(await archiveOf(archived, given, watch));
  for (const [at, file] of files.entries()) if (!panels.length || !OF_AN_ARCHIVE.includes(kinds[at])) panels.push(await panelOf(file, kinds[at], given, beside, watch));
  return panels;
}

/** @param {Map<import("../files/kind.js").Kind, File>} files @param {Given} given @param {import("../files/package.js").Watch} watch */
async function archiveOf(files, given, watch) {
  const archive = new Archive(files, given, watch);
  await archive.check();
  return archivePanel([...files.values()].map(({ name }) => name).join(", "), archive);
}

/** @param {File} file @param {import("../files/kind.js").Kind} kind @param {Given} given
 *  @param {{receipt: import("../proof/receipt.js").Receipt | null, heads: string | undefined}} beside @param {import("../files/package.js").Watch} watch */
async function panelOf(file, kind, given, beside, watch) {
  const { ring } = given;
  if (kind === "package") {
    const package_ = new Package(file, given, watch);
    await package_.check();
    return packagePanel(file.name, package_);
  }
  if (kind === "receipt") {
    const receipt = /** @type {import("../proof/receipt.js").Receipt} */ (receiptOf(await bytesOf(file)));
    return receiptPanel(file.name, receipt, await checkReceipt(receipt, ring));
  }
  if (kind === "checkpoint" || kind === "leaves") return toldPanel(file.name, "CANNOT_TELL", "This is a part of an archive. Drop it together with manifest.json and evidence.jsonl.zst.");
  if (kind === "keys") return toldPanel(file.name, "CANNOT_TELL", "This is a file of keys. Pin keys above, if a person whom you trust gave them to you.");
  if (file.size > PROOF_BYTES_MAX) return toldPanel(file.name, "TAMPERED", "The file is larger than any proof");
  if (kind === "tlog-proof") return headsPanel(file.name, await checkHeads(await file.text(), given));
  const judged = await checkProof(await bytesOf(file), given, beside.heads);
  const differs = beside.receipt && judged.verdict !== "TAMPERED" ? await difference(judged, beside.receipt, ring) : "";
  return proofPanel(file.name, judged, differs);
}

/** @param {File} file */
async function bytesOf(file) {
  return new Uint8Array(await file.arrayBuffer());
}

/** @param {KeyRing} ring @param {string} complaint */
function showKeys(ring, complaint) {
  complain(keysField, complaint);
  const names = ring.keys.map(({ id, revokedAt, delegation }) =>
    `affidavit+${id}${revokedAt ? ` (revoked at ${revokedAt})` : delegation ? ` (delegated until ${delegation.until})` : ""}`);
  byId("keys-pinned").textContent = names.length ? `Pinned: ${names.join(", ")}` : "";
}

/** Says what is wrong with a field, unless it is empty; and whether something is.
 * @param {HTMLTextAreaElement} field @param {string} complaint */
function complain(field, complaint) {
  const isWrong = complaint !== "" && field.value.trim() !== "";
  byId(`${field.id}-complaint`).textContent = isWrong ? complaint : "";
  field.setAttribute("aria-invalid", String(isWrong));
  return isWrong;
}

/** @param {unknown} wrong */
function failed(wrong) {
  const why = wrong instanceof Error ? wrong.message : String(wrong);
  return [toldPanel("what was dropped", "CANNOT_TELL", `It could not be read: ${why}`)];
}

/** @param {string} words */
function say(words) {
  byId("status").replaceChildren(element("span", {}, words));
}
