// Keys that count by time: delegated in a file of keys or in a bundle, revoked, both. delegations.json has bundles, the keys that an
// auditor pinned, and the verdict of the command line.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { judge } from "../../../audit/verifier/sources/proof/bundle.js";
import { readKeys } from "../../../audit/verifier/sources/proof/keys.js";

for (const { name, keys, content, verdict } of JSON.parse(readFileSync(new URL("delegations.json", import.meta.url), "utf8"))) {
  test(`a key ${name}: ${verdict}`, async () => {
    const { ring, complaint } = readKeys(keys);
    assert.equal(complaint, "");
    assert.equal((await judge(Buffer.from(content), ring)).verdict, verdict);
  });
}

test("a line that is no key is named, and none of the others is used", () => {
  const { ring, complaint } = readKeys("affidavit+00000000+AAAA\n");
  assert.equal(ring.keys.length, 0);
  assert.match(complaint, /not a public key of a log: affidavit\+00000000/);
});
