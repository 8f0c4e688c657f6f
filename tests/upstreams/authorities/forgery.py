"""A time stamp, written by hand, of which every part can be wrong and the signature is right all the same."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from audit.stamps.der import Items, oid
from tests.upstreams.authorities.certificates import Identity

SHA256_OID, SHA1_OID = "2.16.840.1.101.3.4.2.1", "1.3.14.3.2.26"
TST_INFO = "1.2.840.113549.1.9.16.1.4"
AT = datetime(2026, 6, 1, 12, tzinfo=UTC)


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    coded = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 + len(coded)]) + coded + content


def sequence(*parts: bytes) -> bytes:
    return der(0x30, *parts)


def number(value: int) -> bytes:
    return der(0x02, value.to_bytes(value.bit_length() // 8 + 1, signed=True))


def named(dotted: str, *parameters: bytes) -> bytes:
    """An AlgorithmIdentifier."""
    return sequence(der(0x06, oid(dotted)), *parameters)


def attribute(kind: str, *values: bytes) -> bytes:
    return sequence(der(0x06, oid(kind)), der(0x31, *values))


def tst_info(text: bytes, **other: Any) -> bytes:
    time = other.get("time", AT)
    return sequence(
        number(other.get("version", 1)),
        der(0x06, oid("1.2.3.4.1")),
        sequence(
            named(other.get("imprint_algorithm", SHA256_OID)),
            der(0x04, other.get("imprint", sha256(text).digest())),
        ),
        number(7),
        der(0x18, other.get("written", f"{time:%Y%m%d%H%M%S}Z".encode())),
        *([number(other["nonce"])] if "nonce" in other else []),
        other.get("extensions", b""),
    )


def forged(text: bytes, signer: Identity, chain: Sequence[Identity] = (), **other: Any) -> bytes:
    """A TimeStampResp. What is given differs from a right one."""
    info = other.get("info") or tst_info(text, **other)
    signed_info = other.get("signed_info", info)
    infos = [_signer_info(signed_info, signer, **other), *other.get("more_signers", [])]
    certificates = b"".join(each.certificate.public_bytes(Encoding.DER) for each in (signer, *chain))
    signed = sequence(
        number(3),
        der(0x31, *other.get("digests", [named(SHA256_OID)])),
        sequence(der(0x06, oid(other.get("content_kind", TST_INFO))), der(0xA0, der(0x04, info))),
        der(0xA0, other.get("certificates", certificates)),
        other.get("revocations", b""),
        der(0x31, *infos),
    )
    status = sequence(number(other.get("status", 0)))
    return sequence(status, sequence(der(0x06, oid("1.2.840.113549.1.7.2")), der(0xA0, signed)))


def signer_info(text: bytes, signer: Identity, **other: Any) -> bytes:
    return _signer_info(tst_info(text, **other), signer, **other)


def _signer_info(info: bytes, signer: Identity, **other: Any) -> bytes:
    """SignerInfo."""
    attested = other.get("attested", signer)
    encoded = attested.certificate.public_bytes(Encoding.DER)
    attributes = other.get("attributes") or [
        attribute("1.2.840.113549.1.9.3", der(0x06, oid(other.get("attribute_kind", TST_INFO)))),
        attribute("1.2.840.113549.1.9.4", der(0x04, sha256(info).digest())),
        attribute(
            "1.2.840.113549.1.9.16.2.47", sequence(sequence(sequence(der(0x04, sha256(encoded).digest()))))
        ),
    ]
    listed = b"".join(other.get("arranged", sorted)(attributes))
    sign: Callable[[bytes], tuple[bytes, bytes]] = other.get("sign", _sign_by(signer))
    algorithm, signature = sign(der(0x31, listed))
    return sequence(
        number(1),
        sequence(_issuer_and_serial(other.get("named", signer))),
        named(SHA256_OID),
        der(0xA0, listed) if not other.get("unsigned_only") else b"",
        algorithm,
        der(0x04, signature),
        other.get("unsigned", b""),
    )


def _sign_by(signer: Identity) -> Callable[[bytes], tuple[bytes, bytes]]:
    key = signer.key
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return lambda content: (named("1.2.840.10045.4.3.2"), key.sign(content, ec.ECDSA(hashes.SHA256())))
    return lambda content: (
        named("1.2.840.113549.1.1.11", b"\5\0"),
        key.sign(content, padding.PKCS1v15(), hashes.SHA256()),
    )


def by_pss(
    key: rsa.RSAPrivateKey, salt: int = 32, mask: str = SHA256_OID
) -> Callable[[bytes], tuple[bytes, bytes]]:
    """RSASSA-PSS, which `openssl ts` cannot choose."""
    parameters = sequence(
        der(0xA0, named(SHA256_OID)),
        der(0xA1, named("1.2.840.113549.1.1.8", named(mask))),
        der(0xA2, number(salt)),
    )
    scheme = padding.PSS(padding.MGF1(hashes.SHA256()), salt)
    return lambda content: (
        named("1.2.840.113549.1.1.10", parameters),
        key.sign(content, scheme, hashes.SHA256()),
    )


def _issuer_and_serial(signer: Identity) -> bytes:
    items = Items(Items(signer.certificate.tbs_certificate_bytes).take(0x30).content)
    items.take(0xA0)
    serial = items.take(0x02)
    items.take(0x30)
    return items.take(0x30).whole + serial.whole
