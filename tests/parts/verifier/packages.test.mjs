// Whole packages, and proofs of which each byte was changed, without a page. VERIFIER_CASES is a folder that test_verifier_sources.py
// makes: keys, policy, cases.json and the packages that it names.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { Package } from "../../../audit/verifier/sources/files/package.js";
import { checkHeads, checkProof } from "../../../audit/verifier/sources/files/single.js";
import { readPolicy } from "../../../audit/verifier/sources/proof/heads.js";
import { readKeys } from "../../../audit/verifier/sources/proof/keys.js";

const FOLDER = process.env.VERIFIER_CASES;
const read = (name) => readFileSync(path.join(FOLDER, name));
const { ring } = readKeys(String(read("keys")));
const { policy } = readPolicy(String(read("policy")));

async function checked(content, given = { ring, policy, authorities: [] }) {
  const found = new Package(new Blob([content]), given, { tell: async () => {} });
  await found.check();
  return found;
}

test("a package is proven, with an erased record and without, and each rung is judged", async () => {
  const whole = await checked(read("whole.zip"));
  assert.equal(whole.verdict, "ERASED");
  assert.deepEqual(whole.findings.map(({ what, verdict }) => [what, verdict]), [["words", "ERASED"]]);
  const redacted = await checked(read("redacted.zip"));
  assert.deepEqual([redacted.verdict, redacted.findings], ["VALID", []]);
  for (const [rung, verdict] of [["row", "VALID"], ["leaf", "VALID"], ["month", "VALID"], ["checkpoint", "VALID"]]) {
    assert.deepEqual([...redacted.climbed.get(rung)], [[verdict, 18]]);
  }
  assert.deepEqual([...redacted.climbed.get("vault")], [["VALID", 14], ["CANNOT_TELL", 4]]);
  assert.deepEqual([...redacted.climbed.get("witness")], [["VALID", 14], ["CANNOT_TELL", 4]]);
});

test("without a policy the rung of the witnesses cannot be judged, and nothing else gets worse", async () => {
  const { verdict, climbed } = await checked(read("redacted.zip"), { ring, policy: null, authorities: [] });
  assert.equal(verdict, "VALID");
  assert.deepEqual([...climbed.get("witness")], [["CANNOT_TELL", 18]]);
});

test("keys that come with a package are not believed", async () => {
  const { ring: other } = readKeys(String(read("other-keys")));
  assert.equal((await checked(read("redacted.zip"), { ring: other, policy, authorities: [] })).verdict, "TAMPERED");
});

test("an empty package has no verdict of VALID", async () => {
  assert.notEqual((await checked(new Uint8Array())).verdict, "VALID");
});

// Seen red: the comparison of the canonical text left out of readText ("a space in a line", "a passage's spelling").
for (const { file, name, what, verdict, overall } of JSON.parse(read("cases.json"))) {
  test(`found on the rung ${what} as ${verdict}: ${name}`, async () => {
    const { findings, verdict: whole } = await checked(read(file));
    assert.equal(whole, overall ?? whole);
    assert.ok(findings.some((each) => each.what === what && each.verdict === verdict), JSON.stringify(findings, null, 1));
  });
}

test("no changed byte of a proof is accepted", async () => {
  const proof = read("proof.json");
  assert.equal((await checkProof(proof, { ring, policy })).verdict, "VALID");
  for (let at = 0; at < proof.length; at++) {
    const spoiled = Uint8Array.from(proof);
    spoiled[at] ^= 1 << at % 8;
    const { verdict } = await checkProof(spoiled, { ring, policy });
    assert.ok(["TAMPERED", "CANNOT_TELL"].includes(verdict), `byte ${at}: ${verdict}`);
  }
});

test("no changed byte of a package is accepted", async () => {
  const whole = read("redacted.zip");
  for (let at = 3; at < whole.length; at += 61) {
    const spoiled = Uint8Array.from(whole);
    spoiled[at] ^= 1 << at % 8;
    assert.notEqual((await checked(spoiled)).verdict, "VALID", `byte ${at}`);
  }
});

test("a .tlog-proof is proven by the log's key and the witnesses of the policy, and no changed byte of it is", async () => {
  const proof = read("head.tlog-proof"), given = { ring, policy };
  assert.equal((await checkHeads(String(proof), given)).verdict, "VALID");
  assert.equal((await checkHeads(String(proof), { ring, policy: null, authorities: [] })).verdict, "VALID");
  const { policy: demanding } = readPolicy(String(read("policy")).replace("quorum alpha", `${String(read("other-witness"))}group both all alpha beta\nquorum both`));
  assert.equal((await checkHeads(String(proof), { ring, policy: demanding })).verdict, "CANNOT_TELL");
  for (let at = 0; at < proof.length; at++) {
    const spoiled = Uint8Array.from(proof);
    spoiled[at] ^= 1 << at % 7;
    const { verdict } = await checkHeads(Buffer.from(spoiled).toString(), given);
    assert.notEqual(verdict, "VALID", `byte ${at}`);
  }
});
