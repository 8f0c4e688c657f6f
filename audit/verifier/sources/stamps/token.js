// Time stamps (RFC 3161): that an authority signed that this text existed at a time. A message of CMS (RFC 5652) with exactly one
// signer, who signed attributes and by them the content. What the signature does not cover is refused, or not believed.
import { areEqual, joined, toHex } from "../basics/bytes.js";
import { sha256 } from "../basics/sha2.js";
import { isTime } from "../basics/times.js";
import { checkSigner, ECDSA_WITH, HASHES, isSignedBy, KEY_IDENTIFIER, nameOf, publicKeyOf, readCertificate, requireChain, RSA_WITH } from "./certificates.js";
import { algorithmOf, BIT_STRING, BOOLEAN, endOfAlgorithm, GENERALIZED_TIME, INTEGER, Items, itemsOf, numberOf, OCTET_STRING, OID, oid, only, OTHER_ALGORITHM, require, SEQUENCE, SET, StampError, takeOid } from "./der.js";

/** @typedef {import("./der.js").Element} Element
 *  @typedef {import("./certificates.js").Certificate} Certificate
 *  @typedef {{named: Element, digest: string, attributes: Map<string, Element>, signed: Uint8Array, algorithm: Items, signature: Uint8Array}} Signer */

const RESPONSE_BYTES_MAX = 65_536;
const SIGNED_DATA = oid("1.2.840.113549.1.7.2"), TST_INFO = oid("1.2.840.113549.1.9.16.1.4"), SHA256 = oid("2.16.840.1.101.3.4.2.1");
const CONTENT_TYPE = oid("1.2.840.113549.1.9.3"), MESSAGE_DIGEST = oid("1.2.840.113549.1.9.4");
const CERTIFICATE_V1 = oid("1.2.840.113549.1.9.16.2.12"), CERTIFICATE_V2 = oid("1.2.840.113549.1.9.16.2.47");
const RSA = oid("1.2.840.113549.1.1.1"), RSA_PSS = oid("1.2.840.113549.1.1.10"), MGF1 = oid("1.2.840.113549.1.1.8");
const TIME = /^([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})(?:\.([0-9]{0,5}[1-9]))?Z$/;

/** The time in an authority's response, if it is one of this text. Throws a StampError for anything else.
 * @param {Uint8Array} response @param {Uint8Array} text @param {Certificate[]} pinned @param {Certificate[]} others */
export async function verifyStamp(response, text, pinned, others) {
  const { kind, content, certificates, signer } = readMessage(tokenOf(response));
  require(kind === TST_INFO, "The token is of something else than a time");
  const { imprint, time } = readInfo(content);
  require(areEqual(imprint, sha256(text)), "The time stamp is of another text");
  const certificate = await signerAmong([...certificates, ...others, ...pinned], signer);
  await checkAttributes(signer, kind, content);
  require(await isSigned(signer, certificate), "The signature of the time stamp is not valid");
  checkSigner(certificate, time);
  await requireChain(certificate, pinned, [...certificates, ...others], time);
  return { time, authority: nameOf(certificate) };
}

/** @param {Uint8Array} response */
function tokenOf(response) {
  require(response.length <= RESPONSE_BYTES_MAX, `A time stamp has at most ${RESPONSE_BYTES_MAX} bytes`);
  const items = itemsOf(only(response, SEQUENCE)), told = itemsOf(items.take(SEQUENCE)), status = numberOf(told.take(INTEGER));
  told.optional(SEQUENCE);
  told.optional(BIT_STRING);
  told.end();
  require(status === 0n || status === 1n, `The authority refused: status ${status}`);
  const token = items.take(SEQUENCE);
  items.end();
  return token;
}

/** @param {Element} message */
function readMessage(message) {
  const items = itemsOf(message);
  require(takeOid(items) === SIGNED_DATA, "The token is not signed data");
  const inner = itemsOf(only(items.take(0xa0).content, SEQUENCE));
  items.end();
  require(numberOf(inner.take(INTEGER)) === 3n, "The version of the token is unknown");
  const digests = itemsOf(inner.take(SET)).all(SEQUENCE).map((each) => hashOf(itemsOf(each)));
  const wrapped = itemsOf(inner.take(SEQUENCE)), kind = takeOid(wrapped), { content } = only(wrapped.take(0xa0).content, OCTET_STRING);
  wrapped.end();
  const held = inner.optional(0xa0), certificates = held ? itemsOf(held).all(SEQUENCE).map(readCertificate) : [];
  const signer = readSigner(itemsOf(only(inner.take(SET).content, SEQUENCE))); // exactly one
  inner.end();
  require(digests.join() === signer.digest, "The token names other digests than it uses");
  return { kind, content, certificates, signer };
}

/** @param {Items} items @returns {Signer} */
function readSigner(items) {
  const version = numberOf(items.take(INTEGER)), named = items.take(version === 1n ? SEQUENCE : 0x80);
  require(version === 1n || version === 3n, "The version of the signer is unknown");
  const digest = hashOf(itemsOf(items.take(SEQUENCE))), attributes = items.take(0xa0); // a signature without them could be of another kind of message
  const algorithm = itemsOf(items.take(SEQUENCE)), signature = items.take(OCTET_STRING).content;
  items.end(); // unsigned attributes would follow
  const signed = joined(Uint8Array.of(SET), attributes.whole.subarray(1));
  return { named, digest, attributes: attributesOf(itemsOf(attributes)), signed, algorithm, signature };
}

/** @param {Items} items @returns {Map<string, Element>} */
function attributesOf(items) {
  const found = new Map();
  for (const each of items.all(SEQUENCE)) {
    const pair = itemsOf(each), kind = takeOid(pair), values = pair.take(SET);
    pair.end();
    require(!found.has(kind), "A signed attribute stands there twice");
    found.set(kind, values);
  }
  return found;
}

/** The certificate that the signer names and, by its hash, the signed attribute too.
 * @param {Certificate[]} certificates @param {Signer} signer */
async function signerAmong(certificates, { named, attributes }) {
  for (const certificate of certificates) {
    if (isNamed(certificate, named) && (await isAttested(certificate, attributes))) return certificate;
  }
  throw new StampError("The certificate of the signer is missing, or the signature names another one");
}

/** @param {Certificate} certificate @param {Element} named */
function isNamed({ issuer, serial, extensions }, named) {
  if (named.tag === SEQUENCE) return areEqual(named.content, joined(issuer.whole, serial.whole));
  const held = extensions.get(KEY_IDENTIFIER);
  return held !== undefined && areEqual(only(held.content, OCTET_STRING).content, named.content);
}

/** By signing-certificate or its second version, and by both if both are there.
 * @param {Certificate} certificate @param {Map<string, Element>} attributes */
async function isAttested({ whole }, attributes) {
  const first = attributes.get(CERTIFICATE_V1), second = attributes.get(CERTIFICATE_V2);
  const checks = [];
  if (first) checks.push(areEqual(identifierOf(first).take(OCTET_STRING).content, await digestOf("SHA-1", whole)));
  if (second) {
    const identifier = identifierOf(second), algorithm = identifier.optional(SEQUENCE);
    const name = algorithm ? hashOf(itemsOf(algorithm)) : "SHA-256";
    checks.push(areEqual(identifier.take(OCTET_STRING).content, await digestOf(name, whole)));
  }
  return checks.length > 0 && checks.every(Boolean);
}

/** Of the signer's certificate; further ones are of its chain. @param {Element} values */
function identifierOf(values) {
  return itemsOf(itemsOf(itemsOf(only(values.content, SEQUENCE)).take(SEQUENCE)).take(SEQUENCE));
}

/** The signature covers the attributes, and these cover the content.
 * @param {Signer} signer @param {string} kind @param {Uint8Array} content */
async function checkAttributes({ attributes, digest }, kind, content) {
  const named = attributes.get(CONTENT_TYPE), said = attributes.get(MESSAGE_DIGEST);
  require(named && said, "A signed attribute is missing");
  require(toHex(only(named.content, OID).content) === kind, "The signature is over another kind of content");
  require(areEqual(only(said.content, OCTET_STRING).content, await digestOf(digest, content)), "The signature is of another time stamp");
}

/** @param {Signer} signer @param {Certificate} certificate */
async function isSigned({ algorithm, digest, signature, signed }, certificate) {
  const { kind } = publicKeyOf(certificate), named = takeOid(algorithm);
  if (kind === "RSA" && named === RSA_PSS) return isSignedBy(certificate, digest, signature, signed, saltOf(algorithm, digest));
  endOfAlgorithm(algorithm);
  const isKnown = kind === "RSA" ? named === RSA || named === RSA_WITH.get(digest) : kind === "EC" && named === ECDSA_WITH.get(digest);
  require(isKnown, OTHER_ALGORITHM);
  return isSignedBy(certificate, digest, signature, signed);
}

/** @param {Items} algorithm @param {string} digest */
function saltOf(algorithm, digest) {
  const named = itemsOf(algorithm.take(SEQUENCE));
  algorithm.end();
  const own = hashOf(itemsOf(only(named.take(0xa0).content, SEQUENCE))), mask = itemsOf(only(named.take(0xa1).content, SEQUENCE));
  require(takeOid(mask) === MGF1, OTHER_ALGORITHM);
  const ofMask = hashOf(itemsOf(mask.take(SEQUENCE)));
  mask.end();
  const salt = numberOf(only(named.take(0xa2).content, INTEGER));
  named.end();
  require(own === digest && ofMask === digest && salt >= 0n && salt < 1024n, OTHER_ALGORITHM);
  return Number(salt);
}

/** TSTInfo: what the signature says. @param {Uint8Array} content */
function readInfo(content) {
  const items = itemsOf(only(content, SEQUENCE));
  require(numberOf(items.take(INTEGER)) === 1n, "The version of the time stamp is unknown");
  items.take(OID); // the authority's policy
  const imprint = itemsOf(items.take(SEQUENCE));
  require(algorithmOf(itemsOf(imprint.take(SEQUENCE))) === SHA256, "The time stamp is over another digest than SHA-256");
  const digest = imprint.take(OCTET_STRING).content;
  imprint.end();
  numberOf(items.take(INTEGER)); // its serial number
  const time = timeOf(items.take(GENERALIZED_TIME).content);
  items.optional(SEQUENCE); // accuracy
  items.optional(BOOLEAN); // ordering
  const nonce = items.optional(INTEGER);
  if (nonce) numberOf(nonce);
  items.optional(0xa0); // the authority's name; its certificate names it too
  refuseCritical(items.optional(0xa1));
  items.end();
  return { imprint: digest, time };
}

/** @param {Uint8Array} content */
function timeOf(content) {
  const [, year, month, day, hour, minute, second, fraction = ""] = TIME.exec(new TextDecoder().decode(content)) ?? [];
  const time = `${year}-${month}-${day}T${hour}:${minute}:${second}.${fraction.padEnd(6, "0")}Z`;
  require(isTime(time), "The time is not written as DER demands");
  return time;
}

/** @param {Element | null} extensions */
function refuseCritical(extensions) {
  for (const each of extensions ? itemsOf(extensions).all(SEQUENCE) : []) {
    const items = itemsOf(each);
    items.take(OID);
    const critical = items.optional(BOOLEAN);
    require(!critical || (critical.content.length === 1 && critical.content[0] === 0), "The time stamp has a critical extension");
  }
}

/** @param {Items} items */
function hashOf(items) {
  const name = HASHES.get(algorithmOf(items));
  require(name, OTHER_ALGORITHM);
  return name;
}

/** @param {string} name @param {Uint8Array} bytes */
async function digestOf(name, bytes) {
  return new Uint8Array(await crypto.subtle.digest(name, /** @type {Uint8Array<ArrayBuffer>} */ (bytes)));
}
