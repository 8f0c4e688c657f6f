// Ed25519 in plain JavaScript: the vectors of RFC 8032, what a lenient verifier would accept, and the browser's own beside it.
import assert from "node:assert/strict";
import { createHash, generateKeyPairSync, randomBytes, sign } from "node:crypto";
import { test } from "node:test";
import { isBrowsersOwn, isPoint, isSigned, isSignedPlainly, isTextSigned } from "../../../audit/verifier/sources/basics/ed25519.js";
import { Sha256, sha256, sha512 } from "../../../audit/verifier/sources/basics/sha2.js";

const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const P = 2n ** 255n - 19n;
const hex = (text) => new Uint8Array(Buffer.from(text, "hex"));

const VECTORS = [
  ["d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"],
  ["3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"],
  ["fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"],
  ["ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
    "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704"],
];

test("the vectors of RFC 8032 are valid, and no changed byte of them is", () => {
  for (const [key, message, signature] of VECTORS) {
    assert.ok(isSignedPlainly(hex(key), hex(signature), hex(message)));
    for (let at = 0; at < 64; at += 7) {
      const spoiled = hex(signature);
      spoiled[at] ^= 1 << at % 8;
      assert.ok(!isSignedPlainly(hex(key), spoiled, hex(message)));
    }
    assert.ok(!isSignedPlainly(hex(key), hex(signature), hex(`${message}00`)));
  }
});

// Seen red: `s >= L` left out of isSignedPlainly.
test("a signature of which S is not below the order is not valid, in any program", async () => {
  for (const [key, message, signature] of VECTORS) {
    const larger = added(hex(signature), L);
    assert.ok(!isSignedPlainly(hex(key), larger, hex(message)));
    assert.ok(!(await isSigned(hex(key), larger, hex(message))));
  }
});

test("a key that is no point, or not in its one spelling, is no key", () => {
  assert.ok(isPoint(hex(VECTORS[0][0])));
  assert.ok(!isPoint(littleEndian(P + 1n))); // y = 1, spelt otherwise
  assert.ok(!isPoint(littleEndian(1n | (1n << 255n)))); // x = 0 with a sign
  assert.ok(!isPoint(littleEndian(2n))); // no square
  assert.ok(!isPoint(hex("00")));
});

test("a mix of small points that only a multiplication by the cofactor would accept is not valid", () => {
  // Key and R of small order: 8·S·B = 8·R + 8·h·A for S = 0 always, S·B = R + h·A only by luck.
  const small = hex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"); // of order 8
  const signature = new Uint8Array([...small, ...new Uint8Array(32)]);
  const accepted = Array.from({ length: 32 }, (_, at) => isSignedPlainly(small, signature, Uint8Array.of(at)));
  assert.ok(accepted.filter(Boolean).length < 16);
});

test("the plain program and the browser's own say the same of signatures good and spoiled", async () => {
  assert.ok(await isBrowsersOwn());
  for (let round = 0; round < 40; round++) {
    const { publicKey, privateKey } = generateKeyPairSync("ed25519");
    const key = new Uint8Array(publicKey.export({ format: "der", type: "spki" }).subarray(-32));
    const message = new Uint8Array(randomBytes(round * 7));
    const signature = new Uint8Array(sign(null, message, privateKey));
    if (round % 2) signature[round] ^= 1 << round % 8;
    const found = await isSigned(key, signature, message);
    assert.equal(found, !(round % 2));
    assert.equal(isSignedPlainly(key, signature, message), found);
  }
});

test("SHA-256 and SHA-512 are those of Node, for every length around a block", () => {
  for (let length = 0; length < 300; length++) {
    const bytes = new Uint8Array(randomBytes(length));
    assert.equal(Buffer.from(sha256(bytes)).toString("hex"), createHash("sha256").update(bytes).digest("hex"));
    if (length % 13 === 0) assert.equal(Buffer.from(sha512(bytes)).toString("hex"), createHash("sha512").update(bytes).digest("hex"));
    const parts = new Sha256().update(bytes.subarray(0, length % 71)).update(bytes.subarray(length % 71)).digest();
    assert.deepEqual(parts, sha256(bytes));
  }
});

function added(signature, number) {
  const s = signature.slice(32).reduceRight((sum, byte) => (sum << 8n) | BigInt(byte), 0n) + number;
  signature.set(littleEndian(s), 32);
  return signature;
}

function littleEndian(number) {
  return Uint8Array.from({ length: 32 }, (_, at) => Number((number >> BigInt(8 * at)) & 255n));
}

test("a text of more than 4,096 bytes may be signed by its digest, and no shorter one", async () => {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const key = new Uint8Array(publicKey.export({ type: "spki", format: "der" }).subarray(-32));
  const byDigest = (text) => sign(null, Buffer.from(`affidavit digest\n${createHash("sha256").update(text).digest("hex")}\n`), privateKey);
  const long = new Uint8Array(4097).fill(97);
  assert.ok(await isTextSigned(key, new Uint8Array(byDigest(long)), long));
  assert.ok(await isTextSigned(key, new Uint8Array(sign(null, long, privateKey)), long));
  assert.ok(!(await isTextSigned(key, new Uint8Array(byDigest(long.subarray(1))), long.subarray(1))));
});
