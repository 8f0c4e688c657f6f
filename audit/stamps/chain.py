"""Whether an authority's certificate may sign time stamps, and its chain to a pinned one. Pure.

This is X.509's path validation (RFC 5280) for this one purpose: what it does not know, it refuses.
"""

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from audit.errors import TimeStampError

CHAIN_MAX = 8  # certificates: no public authority has more than five
RSA_BITS_MIN = 2048
HASHES = (SHA256, SHA384, SHA512)

Chain = tuple[x509.Certificate, ...]
Extension = TypeVar("Extension", bound=x509.ExtensionType)

# What is looked at here, and policies, which nobody asked for. Another critical extension restricts what we do not understand.
_KNOWN = {
    ExtensionOID.BASIC_CONSTRAINTS,
    ExtensionOID.KEY_USAGE,
    ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.CERTIFICATE_POLICIES,
}
_FOR_STAMPS = {ExtendedKeyUsageOID.TIME_STAMPING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}


def find_chain(
    signer: x509.Certificate,
    pinned: Iterable[x509.Certificate],
    others: Iterable[x509.Certificate],
    at: datetime,
) -> Chain:
    """From the signer's certificate to a pinned one, all valid at this time. The others may only link the two."""
    trusted = frozenset(pinned)
    candidates, seen = [*trusted, *others], {signer}
    paths = deque[Chain]([(signer,)])
    while paths:
        path = paths.popleft()
        if path[-1] in trusted:
            return path
        for issuer in candidates if len(path) < CHAIN_MAX else ():
            if issuer not in seen and _has_issued(issuer, path, at):
                seen.add(issuer)
                paths.append((*path, issuer))
    raise TimeStampError(
        "None of the given authorities signed it, or a certificate was not valid at its time"
    )


def check_signer(certificate: x509.Certificate, at: datetime) -> None:
    """RFC 3161, 2.3: the key signs time stamps and nothing else."""
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        is_reserved = purposes.critical and list(purposes.value) == [ExtendedKeyUsageOID.TIME_STAMPING]
        usage = _value(certificate, x509.KeyUsage)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        raise TimeStampError("The signer's certificate does not say what its key is for") from None
    if not is_reserved or (usage and not (usage.digital_signature or usage.content_commitment)):
        raise TimeStampError("The signer's certificate is not one that signs time stamps only")
    if not _is_sound(certificate, at):
        raise TimeStampError("The signer's certificate was not valid at the time of the stamp")


def _has_issued(issuer: x509.Certificate, path: Chain, at: datetime) -> bool:
    below = path[-1]
    if below.issuer != issuer.subject:
        return False
    try:
        constraints = _value(issuer, x509.BasicConstraints)
        usage, purposes = _value(issuer, x509.KeyUsage), _value(issuer, x509.ExtendedKeyUsage)
        below.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.DuplicateExtension):
        return False
    return (
        constraints is not None
        and constraints.ca
        and (constraints.path_length is None or constraints.path_length >= len(path) - 1)
        and (usage is None or usage.key_cert_sign)
        and (purposes is None or bool(_FOR_STAMPS.intersection(purposes)))
        and _is_sound(issuer, at)
        and _is_strongly_signed(below)
    )


def _is_sound(certificate: x509.Certificate, at: datetime) -> bool:
    """Valid at this time, its key is strong enough, and no extension restricts it in a way unknown here."""
    key = certificate.public_key()
    is_strong = key.key_size >= RSA_BITS_MIN if isinstance(key, rsa.RSAPublicKey) else isinstance(
        key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
    )  # fmt: skip
    unknown = any(each.critical and each.oid not in _KNOWN for each in certificate.extensions)
    is_valid = certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc
    return is_strong and not unknown and is_valid


def _is_strongly_signed(certificate: x509.Certificate) -> bool:
    """Not by SHA-1 or MD5. Ed25519 names no hash."""
    algorithm = certificate.signature_hash_algorithm
    return algorithm is None or isinstance(algorithm, HASHES)


def _value(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
