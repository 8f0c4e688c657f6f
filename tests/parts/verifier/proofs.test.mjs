// The page's own programs, without a page: `node --test`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { judge } from "../../../audit/verifier/sources/proof/bundle.js";
import { readKeys } from "../../../audit/verifier/sources/proof/keys.js";
import { isGenuine, receiptOf } from "../../../audit/verifier/sources/proof/receipt.js";

const { public_keys, proofs } = JSON.parse(readFileSync(new URL("../../data/proofs.json", import.meta.url), "utf8"));

async function verdict(content, ring) {
  const receipt = receiptOf(content);
  if (receipt) return (await isGenuine(receipt, ring)) ? "UNSEALED" : "TAMPERED";
  return (await judge(content, ring)).verdict;
}

test("every example of a proof has the verdict of the command line", async () => {
  const { ring } = readKeys(public_keys.join("\n"));
  assert.equal(ring.keys.length, 2);
  const found = [];
  for (const { name, base64 } of proofs) found.push([name, await verdict(Buffer.from(base64, "base64"), ring)]);
  assert.deepEqual(found, proofs.map((each) => [each.name, each.verdict]));
});
