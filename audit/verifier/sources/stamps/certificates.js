// Certificates (X.509), and the chain of a signer's to a pinned one: path validation (RFC 5280) for this one purpose. What is not
// known here is refused.
import { areEqual, ofBase64, toHex } from "../basics/bytes.js";
import { BIT_STRING, BOOLEAN, bytesOfHex, endOfAlgorithm, GENERALIZED_TIME, INTEGER, Items, itemsOf, NULL, numberOf, OCTET_STRING, oid, OID, only, require, SEQUENCE, SET, StampError, takeOid, UTC_TIME } from "./der.js";

/** @typedef {import("./der.js").Element} Element
 *  @typedef {{critical: boolean, content: Uint8Array}} Extension
 *  @typedef {{whole: Uint8Array, signed: Uint8Array, serial: Element, issuer: Element, subject: Element, notBefore: string, notAfter: string,
 *    spki: Uint8Array, extensions: Map<string, Extension>, algorithm: Uint8Array, signature: Uint8Array}} Certificate
 *  @typedef {{kind: "RSA" | "EC" | "Ed25519", bits: number, curve: string}} PublicKey */

export const HASHES = new Map([["2.16.840.1.101.3.4.2.1", "SHA-256"], ["2.16.840.1.101.3.4.2.2", "SHA-384"], ["2.16.840.1.101.3.4.2.3", "SHA-512"]]
  .map(([dotted, name]) => [oid(dotted), name]));
const CHAIN_MAX = 8, RSA_BITS_MIN = 2048;
const CONSTRAINTS = oid("2.5.29.19"), USAGE = oid("2.5.29.15"), PURPOSES = oid("2.5.29.37"), POLICIES = oid("2.5.29.32");
export const KEY_IDENTIFIER = oid("2.5.29.14");
const TIME_STAMPING = oid("1.3.6.1.5.5.7.3.8"), ANY_PURPOSE = oid("2.5.29.37.0"), COMMON_NAME = oid("2.5.4.3");
const RSA = oid("1.2.840.113549.1.1.1"), EC = oid("1.2.840.10045.2.1"), ED25519 = oid("1.3.101.112");
const CURVES = new Map([["1.2.840.10045.3.1.7", "P-256"], ["1.3.132.0.34", "P-384"], ["1.3.132.0.35", "P-521"]].map(([dotted, name]) => [oid(dotted), name]));
const DIGITAL_SIGNATURE = 0, CONTENT_COMMITMENT = 1, KEY_CERT_SIGN = 5;
export const RSA_WITH = new Map(["SHA-256", "SHA-384", "SHA-512"].map((hash, at) => [hash, oid(`1.2.840.113549.1.1.${11 + at}`)]));
export const ECDSA_WITH = new Map(["SHA-256", "SHA-384", "SHA-512"].map((hash, at) => [hash, oid(`1.2.840.10045.4.3.${2 + at}`)]));

/** The certificates of a text in PEM, or what is wrong with it.
 * @param {string} text @returns {{certificates: Certificate[], complaint: string}} */
export function readCertificates(text) {
  const found = [...text.matchAll(/-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----/g)];
  try {
    const certificates = found.map(([, coded]) => {
      const content = ofBase64(coded.replace(/\s+/g, ""));
      require(content, "A certificate is not in base64");
      return readCertificate(only(content, SEQUENCE));
    });
    return { certificates, complaint: certificates.length ? "" : "There is no certificate in PEM." };
  } catch (wrong) {
    return { certificates: [], complaint: `A certificate cannot be read: ${wrong instanceof Error ? wrong.message : wrong}` };
  }
}

/** @param {Element} element @returns {Certificate} */
export function readCertificate(element) {
  const items = itemsOf(element), inner = items.take(SEQUENCE), algorithm = items.take(SEQUENCE), signature = bitsOf(items.take(BIT_STRING));
  items.end();
  const fields = itemsOf(inner), version = fields.optional(0xa0);
  require(!version || [0n, 1n, 2n].includes(numberOf(only(version.content, INTEGER))), "The version of a certificate is unknown");
  const serial = fields.take(INTEGER);
  require(numberOf(serial) > 0n, "The serial number of a certificate is not positive");
  const own = fields.take(SEQUENCE), issuer = fields.take(SEQUENCE), validity = itemsOf(fields.take(SEQUENCE)), subject = fields.take(SEQUENCE), key = fields.take(SEQUENCE);
  require(areEqual(own.whole, algorithm.whole), "A certificate names two algorithms");
  const notBefore = timeOf(validity), notAfter = timeOf(validity);
  validity.end();
  fields.optional(0x81);
  fields.optional(0x82);
  const extensions = fields.optional(0xa3);
  fields.end();
  return { whole: element.whole, signed: inner.whole, serial, issuer, subject, notBefore, notAfter, spki: key.whole, extensions: extensionsOf(extensions), algorithm: algorithm.content, signature };
}

/** From the signer's certificate to a pinned one, all valid at this time. The others may only link the two.
 * @param {Certificate} signer @param {Certificate[]} pinned @param {Certificate[]} others @param {string} at */
export async function requireChain(signer, pinned, others, at) {
  const seen = [signer], paths = [[signer]];
  for (let path = paths.shift(); path; path = paths.shift()) {
    const last = path[path.length - 1];
    if (pinned.some((each) => isSame(each, last))) return;
    for (const issuer of path.length < CHAIN_MAX ? [...pinned, ...others] : []) {
      if (seen.some((each) => isSame(each, issuer)) || !(await hasIssued(issuer, path, at))) continue;
      seen.push(issuer);
      paths.push([...path, issuer]);
    }
  }
  throw new StampError("None of the given authorities signed it, or a certificate was not valid at its time");
}

/** RFC 3161, 2.3: the key signs time stamps and nothing else.
 * @param {Certificate} certificate @param {string} at */
export function checkSigner(certificate, at) {
  const purposes = certificate.extensions.get(PURPOSES), usage = usageOf(certificate);
  require(purposes, "The signer's certificate does not say what its key is for");
  const isReserved = purposes.critical && purposesOf(certificate)?.join() === TIME_STAMPING;
  require(isReserved && (!usage || usage.has(DIGITAL_SIGNATURE) || usage.has(CONTENT_COMMITMENT)), "The signer's certificate is not one that signs time stamps only");
  require(isSound(certificate, at), "The signer's certificate was not valid at the time of the stamp");
}

/** @param {Certificate} certificate @returns {PublicKey} */
export function publicKeyOf({ spki }) {
  const items = itemsOf(only(spki, SEQUENCE)), algorithm = itemsOf(items.take(SEQUENCE)), key = bitsOf(items.take(BIT_STRING)), kind = takeOid(algorithm);
  items.end();
  if (kind === ED25519) return { kind: "Ed25519", bits: 256, curve: "" };
  if (kind === EC) {
    const curve = CURVES.get(takeOid(algorithm));
    require(curve, "A certificate has a key of an unknown curve");
    return { kind: "EC", bits: 0, curve };
  }
  require(kind === RSA, "A certificate has a key of an unknown kind");
  algorithm.optional(NULL);
  const modulus = numberOf(itemsOf(only(key, SEQUENCE)).take(INTEGER));
  return { kind: "RSA", bits: modulus.toString(2).length, curve: "" };
}

/** Whether this certificate's key signed the message.
 * @param {Certificate} certificate @param {string} hash @param {Uint8Array} signature @param {Uint8Array} message @param {number | null} [salt]  of RSA-PSS */
export async function isSignedBy(certificate, hash, signature, message, salt = null) {
  const { kind, curve } = publicKeyOf(certificate);
  const name = kind === "RSA" ? (salt === null ? "RSASSA-PKCS1-v1_5" : "RSA-PSS") : kind === "EC" ? "ECDSA" : "Ed25519";
  const raw = kind === "EC" ? fixedSize(signature, curve) : signature;
  if (!raw) return false;
  const known = await crypto.subtle.importKey("spki", owned(certificate.spki), { name, hash, namedCurve: curve }, false, ["verify"])
    .catch(() => { throw new StampError("This browser cannot use the key of a certificate"); });
  return crypto.subtle.verify({ name, hash, saltLength: salt ?? 0 }, known, owned(raw), owned(message));
}

/** The common name in the certificate's subject. @param {Certificate} certificate */
export function nameOf({ subject }) {
  for (const set of itemsOf(subject).all(SET)) {
    for (const pair of itemsOf(set).all(SEQUENCE)) {
      const items = itemsOf(pair), value = takeOid(items) === COMMON_NAME ? items.next() : null;
      if (value) return new TextDecoder().decode(value.content);
    }
  }
  return "an authority without a name";
}

/** @param {Certificate} issuer @param {Certificate[]} path @param {string} at */
async function hasIssued(issuer, path, at) {
  const below = path[path.length - 1];
  if (!areEqual(below.issuer.whole, issuer.subject.whole)) return false;
  try {
    const constraints = issuer.extensions.get(CONSTRAINTS), usage = usageOf(issuer), purposes = purposesOf(issuer);
    if (!constraints || (usage && !usage.has(KEY_CERT_SIGN)) || (purposes && !purposes.some((each) => each === TIME_STAMPING || each === ANY_PURPOSE))) return false;
    const items = itemsOf(only(constraints.content, SEQUENCE)), isAuthority = items.optional(BOOLEAN)?.content[0] === 255, length = items.optional(INTEGER);
    items.end();
    if (!isAuthority || (length && numberOf(length) < BigInt(path.length - 1)) || !isSound(issuer, at)) return false;
    return await isIssuedBy(below, issuer);
  } catch (wrong) {
    if (wrong instanceof StampError) return false;
    throw wrong;
  }
}

/** @param {Certificate} below @param {Certificate} issuer */
async function isIssuedBy(below, issuer) {
  const items = new Items(below.algorithm), kind = takeOid(items), own = publicKeyOf(issuer).kind;
  endOfAlgorithm(items);
  const [hash] = [...(own === "RSA" ? RSA_WITH : own === "EC" ? ECDSA_WITH : [])].find(([, each]) => each === kind) ?? (own === "Ed25519" && kind === ED25519 ? ["SHA-512"] : []);
  return hash !== undefined && isSignedBy(issuer, hash, below.signature, below.signed);
}

/** Valid at this time, its key strong enough, and no extension restricts it in a way unknown here.
 * @param {Certificate} certificate @param {string} at */
function isSound(certificate, at) {
  const { kind, bits } = publicKeyOf(certificate);
  const isUnknown = [...certificate.extensions].some(([name, { critical }]) => critical && ![CONSTRAINTS, USAGE, PURPOSES, POLICIES].includes(name));
  return (kind !== "RSA" || bits >= RSA_BITS_MIN) && !isUnknown && certificate.notBefore <= at && at <= certificate.notAfter;
}

/** @param {Certificate} certificate @returns {Set<number> | null} */
function usageOf({ extensions }) {
  const found = extensions.get(USAGE);
  if (!found) return null;
  const [, ...bytes] = only(found.content, BIT_STRING).content;
  return new Set(bytes.flatMap((byte, at) => [0, 1, 2, 3, 4, 5, 6, 7].filter((bit) => byte & (128 >> bit)).map((bit) => at * 8 + bit)));
}

/** @param {Certificate} certificate */
function purposesOf({ extensions }) {
  const found = extensions.get(PURPOSES);
  return found ? itemsOf(only(found.content, SEQUENCE)).all(OID).map(({ content }) => toHex(content)) : null;
}

/** @param {Element | null} wrapped @returns {Map<string, Extension>} */
function extensionsOf(wrapped) {
  const found = new Map();
  for (const each of wrapped ? itemsOf(only(wrapped.content, SEQUENCE)).all(SEQUENCE) : []) {
    const items = itemsOf(each), name = takeOid(items), critical = items.optional(BOOLEAN), { content } = items.take(OCTET_STRING);
    items.end();
    require(!found.has(name), "A certificate has an extension twice");
    found.set(name, { critical: critical !== null && critical.content[0] === 255, content });
  }
  return found;
}

/** A time of a certificate, as text that compares with the time of a stamp. @param {Items} items */
function timeOf(items) {
  const short = items.optional(UTC_TIME), { content } = short ?? items.take(GENERALIZED_TIME), text = new TextDecoder().decode(content);
  const [, year, month, day, hour, minute, second] = (short ? /^([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})Z$/ : /^([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})Z$/).exec(text) ?? [];
  require(year, "A time of a certificate is not written as DER demands");
  return `${short ? (Number(year) < 50 ? "20" : "19") : ""}${year}-${month}-${day}T${hour}:${minute}:${second}.000000Z`;
}

/** r and s, each in as many bytes as the curve has. @param {Uint8Array} signature @param {string} curve */
function fixedSize(signature, curve) {
  const size = /** @type {Record<string, number>} */ ({ "P-256": 32, "P-384": 48, "P-521": 66 })[curve], items = itemsOf(only(signature, SEQUENCE));
  const numbers = [numberOf(items.take(INTEGER)), numberOf(items.take(INTEGER))];
  items.end();
  if (numbers.some((number) => number <= 0n || number >= 1n << BigInt(8 * size))) return null;
  return bytesOfHex(numbers.map((number) => number.toString(16).padStart(2 * size, "0")).join(""));
}

/** @param {Element} element */
function bitsOf({ content }) {
  require(content[0] === 0, "A string of bits does not end at a byte");
  return content.subarray(1);
}

/** @param {Certificate} one @param {Certificate} other */
const isSame = (one, other) => areEqual(one.whole, other.whole);

/** @param {Uint8Array} bytes @returns {Uint8Array<ArrayBuffer>} */
const owned = (bytes) => /** @type {Uint8Array<ArrayBuffer>} */ (bytes);

