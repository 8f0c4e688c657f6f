// The files of a package and its signed manifest.
import { ofBase64, utf8 } from "../basics/bytes.js";
import { canonicalText, isObject, readLine } from "../basics/canonical.js";
import { isTextSigned } from "../basics/ed25519.js";
import { isTime } from "../basics/times.js";
import { PackageError } from "./container.js";

/** @typedef {{format: string, origin: string, made_at: string, from: string, to: string, chosen: Record<string, any>, redacted: boolean,
 *    event: string, counts: Record<string, number>, files: Record<string, {sha256: string, size: number}>, key_id: string, signature: string}} Manifest */

export const FORMAT = "affidavit package 1";
const ALWAYS = ["README.md", "auditor.pyz", "keys.pub", "records.csv", "passages.jsonl", "erasures.jsonl", "coverage.json", "queries.json"];
const MANIFEST = "manifest.json";
const FIELDS = ["chosen", "counts", "event", "files", "format", "from", "key_id", "made_at", "origin", "redacted", "signature", "to"];
const CHOICES = ["case", "client", "user", "query"], COUNTS = ["anchors", "erased", "passages", "records", "withheld"];
const MONTH = "[0-9]{4}-(?:0[1-9]|1[0-2])";
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
export const FILE_BYTES_MAX = 256 * 2 ** 20; // of a file that is not read line by line

// In the order in which they stand in the ZIP.
const FORMS = [
  "README\\.md", "verifier\\.html", "auditor\\.pyz", "keys\\.pub", `records/${MONTH}\\.jsonl`, "records\\.csv",
  `checkpoints/${MONTH}\\.note`, `anchors/${MONTH}/[0-9]{12}\\.note`, `consistency/${MONTH}\\.json`, "heads/head\\.note",
  `heads/${MONTH}\\.tlog-proof`, "witnesses\\.policy", "stamps/[0-9a-z-]{1,100}\\.(?:tsr|pem)", "passages\\.jsonl", "erasures\\.jsonl",
  "coverage\\.json", "queries\\.json", "manifest\\.json",
].map((form) => new RegExp(`^${form}$`));

/** @param {Uint8Array} content @returns {Manifest} */
export function openManifest(content) {
  const body = readLine(content);
  if (!body) throw new PackageError("The manifest is not one line of canonical JSON: it was changed, or another program wrote it");
  if (Object.keys(body).join() !== FIELDS.join() || body.format !== FORMAT) {
    throw new PackageError(`The manifest does not have exactly the fields of “${FORMAT}”`);
  }
  if (!isOfItsKinds(body)) throw new PackageError("A field of the manifest does not have a value of its kind");
  return /** @type {Manifest} */ (body);
}

/** Whether a key signed it that counts for heads at its time.
 * @param {Manifest} manifest @param {import("../proof/keys.js").KeyRing} ring */
export async function isManifestSigned({ signature, ...unsigned }, ring) {
  const key = ring.headKeys(unsigned.made_at).find(({ id }) => `affidavit+${id}` === unsigned.key_id);
  const signed = ofBase64(signature);
  return key !== undefined && signed !== null && isTextSigned(key.raw, signed, utf8(`affidavit package\n${canonicalText(unsigned)}\n`));
}

/** What is wrong with the names of the files, their order, or the list of them.
 * @param {import("./container.js").Entry[]} entries @param {Manifest} manifest @returns {{verdict: "TAMPERED" | "MISSING", words: string, file: string}[]} */
export function wrongWithFiles(entries, manifest) {
  const names = entries.map(({ name }) => name).filter((name) => name !== MANIFEST), listed = Object.keys(manifest.files);
  const inOrder = [...names].sort((one, other) => placeOf(one) - placeOf(other) || (one < other ? -1 : 1));
  const months = listed.map((name) => /^checkpoints\/(.{7})\.note$/.exec(name)?.[1]).filter((month) => month !== undefined);
  const needed = months.flatMap((month) => [`records/${month}.jsonl`, `consistency/${month}.json`]);
  return [
    ...told("TAMPERED", "The file is not listed in the manifest", names.filter((name) => !listed.includes(name))),
    ...told("MISSING", "The file is listed in the manifest, but it is not in the package", listed.filter((name) => !names.includes(name))),
    ...told("MISSING", "Every package has this file", [...ALWAYS, ...needed].filter((name) => !names.includes(name) && !listed.includes(name))),
    ...told("TAMPERED", "No package has a file of this name", names.filter((name) => placeOf(name) < 0)),
    ...told("TAMPERED", "The file has another size than the manifest says",
      entries.filter(({ name, size }) => name in manifest.files && manifest.files[name].size !== size).map(({ name }) => name)),
    ...told("TAMPERED", "The file is larger than any of ours",
      entries.filter(({ name, size }) => !/^(records|passages)/.test(name) && size > FILE_BYTES_MAX).map(({ name }) => name)),
    ...told("TAMPERED", "The files are not in the order of a package", inOrder.join() === names.join() ? [] : [MANIFEST]),
  ];
}

/** @param {"TAMPERED" | "MISSING"} verdict @param {string} words @param {string[]} files */
function told(verdict, words, files) {
  return files.map((file) => ({ verdict, words, file }));
}

/** Whether the period alone chose the records. @param {Manifest} manifest */
export const isWhole = ({ chosen }) => !["client", "user", "query"].some((name) => name in chosen);

/** @param {Record<string, any>} body */
function isOfItsKinds(body) {
  const { origin, made_at: madeAt, from, to, chosen, redacted, event, counts, files, key_id: keyId, signature } = body;
  return typeof origin === "string" && [madeAt, from, to].every(isTime) && typeof redacted === "boolean" && typeof event === "string" && ID.test(event)
    && isObject(chosen) && Object.keys(chosen).every((name) => CHOICES.includes(name))
    && isObject(counts) && Object.keys(counts).join() === COUNTS.join() && Object.values(counts).every((number) => Number.isInteger(number) && number >= 0)
    && typeof keyId === "string" && keyId.startsWith("affidavit+") && typeof signature === "string" && isObject(files) && Object.values(files).every(isListed);
}

/** @param {any} file */
function isListed(file) {
  return isObject(file) && Object.keys(file).join() === "sha256,size" && Number.isInteger(file.size) && /^[0-9a-f]{64}$/.test(file.sha256);
}

/** Where in the order of a package a file of this name stands; -1 if none may have it.
 * @param {string} name */
function placeOf(name) {
  return FORMS.findIndex((form) => form.test(name));
}
