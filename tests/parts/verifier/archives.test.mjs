// Archived months, and Zstandard, without a page. VERIFIER_CASES is a folder that test_verifier_sources.py makes.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { decompressed, ZstdError } from "../../../audit/verifier/sources/basics/zstd.js";
import { Archive } from "../../../audit/verifier/sources/files/archive.js";
import { kindOfFile } from "../../../audit/verifier/sources/files/kind.js";
import { readKeys } from "../../../audit/verifier/sources/proof/keys.js";

const FOLDER = process.env.VERIFIER_CASES;
const read = (name) => readFileSync(path.join(FOLDER, name));
const given = { ring: readKeys(String(read("keys"))).ring, policy: null, authorities: [] };

async function checked(folder, leftOut = []) {
  const names = readdirSync(path.join(FOLDER, folder)).filter((name) => !leftOut.includes(name));
  const files = names.map((name) => new File([read(path.join(folder, name))], name));
  const kinds = await Promise.all(files.map(kindOfFile));
  const archive = new Archive(new Map(files.map((file, at) => [kinds[at], file])), given, { tell: async () => {} });
  await archive.check();
  return archive;
}

test("an archived month is proven", async () => {
  const { verdict, findings, records } = await checked("archive");
  assert.deepEqual([verdict, findings, records.length], ["VALID", [], 13]);
});

test("without its checkpoint or its manifest nothing is proven", async () => {
  assert.equal((await checked("archive", ["checkpoint.note"])).verdict, "CANNOT_TELL");
  assert.equal((await checked("archive", ["manifest.json"])).verdict, "CANNOT_TELL");
});

for (const { folder, name, what, verdict } of JSON.parse(read("archives.json"))) {
  test(`an archive with ${name} is found as ${verdict}`, async () => {
    const { findings } = await checked(folder);
    assert.ok(findings.some((each) => each.what === what && each.verdict === verdict), JSON.stringify(findings, null, 1));
  });
}

test("what Zstandard's own program compressed is decompressed, at every level", () => {
  const files = readdirSync(path.join(FOLDER, "zstd"));
  assert.ok(files.length > 20);
  for (const file of files) {
    const hash = createHash("sha256");
    for (const piece of decompressed(new Uint8Array(read(path.join("zstd", file))))) hash.update(piece);
    assert.equal(hash.digest("hex"), file.split(".")[0], file);
  }
});

test("what is spoiled ends in an error or in other bytes, and never hangs", () => {
  const whole = new Uint8Array(read(path.join("archive", "evidence.jsonl.zst")));
  for (let at = 0; at < whole.length; at += 3) {
    const spoiled = Uint8Array.from(whole);
    spoiled[at] ^= 1 << at % 8;
    try {
      for (const _ of decompressed(spoiled));
    } catch (wrong) {
      assert.ok(wrong instanceof ZstdError, `byte ${at}: ${wrong.stack}`);
    }
  }
});
