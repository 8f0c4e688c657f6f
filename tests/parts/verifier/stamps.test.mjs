// Time stamps: stamps.json has responses of `openssl ts` and of a forger who holds every key that an attacker could have, each
// with what the command line says of it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { readCertificates } from "../../../audit/verifier/sources/stamps/certificates.js";
import { StampError } from "../../../audit/verifier/sources/stamps/der.js";
import { verifyStamp } from "../../../audit/verifier/sources/stamps/token.js";

const { certificates, stamps } = JSON.parse(readFileSync(new URL("stamps.json", import.meta.url), "utf8"));
const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));

async function timeOf({ response, text, pinned, others }, spoiled = (content) => content) {
  const [known, linking] = [pinned, others].map((at) => readCertificates(certificates[at]).certificates);
  return verifyStamp(spoiled(bytes(response)), bytes(text), known, linking).then(({ time }) => time, (wrong) => {
    if (!(wrong instanceof StampError)) throw wrong;
    return undefined;
  });
}

for (const [at, stamp] of stamps.entries()) {
  test(`stamp ${at}: ${stamp.error ?? "valid"}`, async () => assert.equal(await timeOf(stamp), stamp.time));
}

// Seen red: the comparison of the imprint left out of verifyStamp ("The time stamp is of another text").
test("a changed byte of a stamp is refused, or does not change the time that is read", async () => {
  const [good] = stamps.filter(({ time }) => time);
  const { length } = bytes(good.response);
  for (let at = 0; at < length; at += 5) {
    const found = await timeOf(good, (content) => (content[at] ^= 1 << at % 8, content));
    assert.ok(found === undefined || found === good.time, `byte ${at}: ${found}`);
  }
});
