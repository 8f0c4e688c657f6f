"""A message of CMS (RFC 5652) with exactly one signer, who signed attributes and by them the content. Pure.

Only what the signature covers is believed. What else a message may have (unsigned attributes, revocation lists, further
signers) is refused, because anybody could have added it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha1, sha256, sha384, sha512
from hmac import compare_digest

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from audit.errors import TimeStampError
from audit.stamps.der import INTEGER, NULL, OCTET_STRING, OID, SEQUENCE, SET, Element, Items, oid, only

_OTHER_ALGORITHM = "The time stamp uses another algorithm than RSA or ECDSA with SHA-2"

_SIGNED_DATA = oid("1.2.840.113549.1.7.2")
_CONTENT_TYPE, _MESSAGE_DIGEST = oid("1.2.840.113549.1.9.3"), oid("1.2.840.113549.1.9.4")
_CERTIFICATE_V1, _CERTIFICATE_V2 = oid("1.2.840.113549.1.9.16.2.12"), oid("1.2.840.113549.1.9.16.2.47")
SHA256 = oid("2.16.840.1.101.3.4.2.1")
_HASHES = {
    SHA256: hashes.SHA256(),
    oid("2.16.840.1.101.3.4.2.2"): hashes.SHA384(),
    oid("2.16.840.1.101.3.4.2.3"): hashes.SHA512(),
}
_DIGESTS = {"sha256": sha256, "sha384": sha384, "sha512": sha512}
_RSA, _RSA_PSS, _MGF1 = (oid(f"1.2.840.113549.1.1.{last}") for last in (1, 10, 8))
_RSA_WITH = {
    "sha256": oid("1.2.840.113549.1.1.11"),
    "sha384": oid("1.2.840.113549.1.1.12"),
    "sha512": oid("1.2.840.113549.1.1.13"),
}
_ECDSA_WITH = {
    "sha256": oid("1.2.840.10045.4.3.2"),
    "sha384": oid("1.2.840.10045.4.3.3"),
    "sha512": oid("1.2.840.10045.4.3.4"),
}


@dataclass(frozen=True, slots=True)
class _Signer:
    """SignerInfo, with its signed attributes by their types."""

    named: Element
    digest: hashes.HashAlgorithm
    attributes: dict[bytes, Element]
    signed: bytes  # what the signature is over
    algorithm: Items
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedContent:
    """Nothing of it is to be believed before `signed_by` has returned."""

    kind: bytes
    content: bytes
    certificates: Sequence[x509.Certificate]
    signer: _Signer

    @classmethod
    def read(cls, message: Element) -> "SignedContent":
        items = message.items()
        require(items.take(OID).content == _SIGNED_DATA, "The token is not signed data")
        inner = only(items.take(0xA0).content, SEQUENCE).items()
        items.end()
        require(inner.take(INTEGER).number() == 3, "The version of the token is unknown")  # noqa: PLR2004  RFC 5652, 5.1
        digests = [_hash(each.items()).name for each in inner.take(SET).items().all(SEQUENCE)]
        wrapped = inner.take(SEQUENCE).items()
        kind, content = wrapped.take(OID).content, only(wrapped.take(0xA0).content, OCTET_STRING).content
        wrapped.end()
        held = inner.optional(0xA0)
        encoded = held.items().all(SEQUENCE) if held else []
        signer = _read_signer(only(inner.take(SET).content, SEQUENCE).items())  # exactly one
        inner.end()
        require(digests == [signer.digest.name], "The token names other digests than it uses")
        return cls(kind, content, [_certificate(each) for each in encoded], signer)

    def signed_by(self, others: Iterable[x509.Certificate]) -> x509.Certificate:
        """The certificate of its signer, from the message or among the others, if the signature is right."""
        certificate = _signer_among([*self.certificates, *others], self.signer)
        _check_attributes(self.signer, self.kind, self.content)
        _check_signature(self.signer, certificate)
        return certificate


def _read_signer(items: Items) -> _Signer:
    version = items.take(INTEGER).number()
    named = items.take(SEQUENCE if version == 1 else 0x80)
    require(version in {1, 3}, "The version of the signer is unknown")
    digest = _hash(items.take(SEQUENCE).items())
    attributes = items.take(0xA0)  # a signature without them could be of another kind of message
    algorithm, signature = items.take(SEQUENCE).items(), items.take(OCTET_STRING).content
    items.end()  # unsigned attributes would follow
    signed = bytes([SET]) + attributes.whole[1:]
    return _Signer(named, digest, _attributes(attributes.items()), signed, algorithm, signature)


def _attributes(items: Items) -> dict[bytes, Element]:
    found = {}
    for each in items.all(SEQUENCE):
        pair = each.items()
        kind, values = pair.take(OID).content, pair.take(SET)
        pair.end()
        require(kind not in found, "A signed attribute stands there twice")
        found[kind] = values
    return found


def _signer_among(certificates: Iterable[x509.Certificate], signer: _Signer) -> x509.Certificate:
    """The one that the signer names and, by its hash, the signed attribute too."""
    for certificate in certificates:
        if _is_named(certificate, signer.named) and _is_attested(certificate, signer.attributes):
            return certificate
    raise TimeStampError("The certificate of the signer is missing, or the signature names another one")


def _is_named(certificate: x509.Certificate, named: Element) -> bool:
    if named.tag == SEQUENCE:
        return _issuer_and_serial(certificate) == named.content
    try:
        held = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return False
    return held.value.digest == named.content


def _issuer_and_serial(certificate: x509.Certificate) -> bytes:
    """As the certificate itself has them, byte for byte."""
    serial, issuer = _serial_and_issuer(certificate.tbs_certificate_bytes)
    return issuer.whole + serial.whole


def _serial_and_issuer(signed: bytes) -> tuple[Element, Element]:
    items = only(signed, SEQUENCE).items()
    items.optional(0xA0)
    serial = items.take(INTEGER)
    items.take(SEQUENCE)
    return serial, items.take(SEQUENCE)


def _certificate(encoded: Element) -> x509.Certificate:
    serial, _ = _serial_and_issuer(encoded.items().take(SEQUENCE).whole)
    require(serial.number() > 0, "The serial number of a certificate is not positive")
    return x509.load_der_x509_certificate(encoded.whole)


def _is_attested(certificate: x509.Certificate, attributes: dict[bytes, Element]) -> bool:
    """By signing-certificate or its second version, and by both if both are there."""
    encoded = certificate.public_bytes(Encoding.DER)
    checks = []
    if values := attributes.get(_CERTIFICATE_V1):
        checks.append(_first_identifier(values).take(OCTET_STRING).content == sha1(encoded).digest())  # noqa: S324  as the standard has it
    if values := attributes.get(_CERTIFICATE_V2):
        identifier = _first_identifier(values)
        algorithm = identifier.optional(SEQUENCE)
        digest = _hash(algorithm.items()) if algorithm else hashes.SHA256()
        checks.append(identifier.take(OCTET_STRING).content == _DIGESTS[digest.name](encoded).digest())
    return bool(checks) and all(checks)


def _first_identifier(values: Element) -> Items:
    """Of the signer's certificate; further ones are of its chain."""
    certificates = only(values.content, SEQUENCE).items().take(SEQUENCE)
    return certificates.items().take(SEQUENCE).items()


def _check_attributes(signer: _Signer, kind: bytes, content: bytes) -> None:
    """The signature covers the attributes, and these cover the content."""
    named = only(_of(signer, _CONTENT_TYPE).content, OID).content
    digest = only(_of(signer, _MESSAGE_DIGEST).content, OCTET_STRING).content
    require(named == kind, "The signature is over another kind of content")
    is_same = compare_digest(digest, _DIGESTS[signer.digest.name](content).digest())
    require(is_same, "The signature is of another time stamp")


def _of(signer: _Signer, kind: bytes) -> Element:
    if kind not in signer.attributes:
        raise TimeStampError("A signed attribute is missing")
    return signer.attributes[kind]


def _check_signature(signer: _Signer, certificate: x509.Certificate) -> None:
    key = certificate.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signer.signature, signer.signed, _padding(signer), signer.digest)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            require(algorithm_of(signer.algorithm) == _ECDSA_WITH[signer.digest.name], _OTHER_ALGORITHM)
            key.verify(signer.signature, signer.signed, ec.ECDSA(signer.digest))
        else:
            raise TimeStampError(_OTHER_ALGORITHM)
    except InvalidSignature:
        raise TimeStampError("The signature of the time stamp is not valid") from None


def _padding(signer: _Signer) -> padding.PKCS1v15 | padding.PSS:
    kind = signer.algorithm.take(OID).content
    if kind != _RSA_PSS:
        _end_of_algorithm(signer.algorithm)
        require(kind in {_RSA, _RSA_WITH[signer.digest.name]}, _OTHER_ALGORITHM)
        return padding.PKCS1v15()
    named = only(signer.algorithm.content[signer.algorithm.at :], SEQUENCE).items()
    digest = _hash(only(named.take(0xA0).content, SEQUENCE).items())
    mask = only(named.take(0xA1).content, SEQUENCE).items()
    require(mask.take(OID).content == _MGF1, _OTHER_ALGORITHM)
    of_mask = _hash(mask.take(SEQUENCE).items())
    mask.end()
    salt = only(named.take(0xA2).content, INTEGER).number()
    named.end()
    require(digest.name == of_mask.name == signer.digest.name and salt >= 0, _OTHER_ALGORITHM)
    return padding.PSS(padding.MGF1(digest), salt)


def _hash(items: Items) -> hashes.HashAlgorithm:
    algorithm = algorithm_of(items)
    if algorithm not in _HASHES:
        raise TimeStampError(_OTHER_ALGORITHM)
    return _HASHES[algorithm]


def algorithm_of(items: Items) -> bytes:
    """An AlgorithmIdentifier without parameters."""
    kind = items.take(OID).content
    _end_of_algorithm(items)
    return kind


def _end_of_algorithm(items: Items) -> None:
    nothing = items.optional(NULL)
    require(nothing is None or not nothing.content, _OTHER_ALGORITHM)
    items.end()


def require(condition: bool, message: str) -> None:  # noqa: FBT001  a check, read as a sentence
    if not condition:
        raise TimeStampError(message)
