"""Verifier of time stamps (RFC 3161): that an authority signed that this text existed at a time. Pure.

Read from its DER by hand and checked as a whole, so that an auditor needs nothing but `cryptography`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from audit.errors import TimeStampError
from audit.stamps.chain import Chain, check_signer, find_chain
from audit.stamps.cms import SHA256, SignedContent, algorithm_of, require
from audit.stamps.der import (
    BIT_STRING,
    BOOLEAN,
    GENERALIZED_TIME,
    INTEGER,
    OCTET_STRING,
    OID,
    SEQUENCE,
    Element,
    oid,
    only,
)

RESPONSE_BYTES_MAX = 65_536  # with its certificates a token has about 6,000
GRANTED = (0, 1)

# What a certificate raises that is not written as it should be.
_UNREADABLE = (
    ValueError, TypeError, OverflowError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip
_TST_INFO = oid("1.2.840.113549.1.9.16.1.4")
_TIME = re.compile(rb"([0-9]{14})(?:\.([0-9]{0,5}[1-9]))?Z")


@dataclass(frozen=True, slots=True)
class TimeStamp:
    """What an authority has signed: this digest existed at this time."""

    imprint: bytes
    time: datetime
    nonce: int | None
    serial: int
    authority: str
    chain: Chain  # from the signer's certificate to the pinned one


def verify_stamp(
    response: bytes,
    text: bytes,
    pinned: Iterable[x509.Certificate],
    others: Iterable[x509.Certificate] = (),
) -> TimeStamp:
    """The time stamp in an authority's response, if it is one of this text; `TimeStampError` for anything else."""
    try:
        return _verified(response, text, list(pinned), list(others))
    except TimeStampError:
        raise
    except _UNREADABLE as wrong:
        raise TimeStampError(f"The time stamp cannot be read: {wrong}") from None


def read_certificates(pem: bytes) -> list[x509.Certificate]:
    """`TimeStampError` if there is none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as wrong:
        raise TimeStampError(f"These are not certificates in PEM: {wrong}") from None


def _verified(
    response: bytes, text: bytes, pinned: list[x509.Certificate], others: list[x509.Certificate]
) -> TimeStamp:
    signed = SignedContent.read(_token_of(response))
    require(signed.kind == _TST_INFO, "The token is of something else than a time")
    info = _Info.read(signed.content)
    if not compare_digest(info.imprint, sha256(text).digest()):
        raise TimeStampError("The time stamp is of another text")
    signer = signed.signed_by([*others, *pinned])
    check_signer(signer, info.time)
    chain = find_chain(signer, pinned, [*signed.certificates, *others], info.time)
    return TimeStamp(info.imprint, info.time, info.nonce, info.serial, signer.subject.rfc4514_string(), chain)


def _token_of(response: bytes) -> Element:
    if len(response) > RESPONSE_BYTES_MAX:
        raise TimeStampError(f"A time stamp has at most {RESPONSE_BYTES_MAX} bytes")
    items = only(response, SEQUENCE).items()
    told = items.take(SEQUENCE).items()
    status = told.take(INTEGER).number()
    told.optional(SEQUENCE)
    told.optional(BIT_STRING)
    told.end()
    if status not in GRANTED:
        raise TimeStampError(f"The authority refused: status {status}")
    token = items.take(SEQUENCE)
    items.end()
    return token


@dataclass(frozen=True, slots=True)
class _Info:
    """TSTInfo: what the signature says."""

    imprint: bytes
    serial: int
    time: datetime
    nonce: int | None

    @classmethod
    def read(cls, content: bytes) -> "_Info":
        items = only(content, SEQUENCE).items()
        require(items.take(INTEGER).number() == 1, "The version of the time stamp is unknown")
        items.take(OID)  # the authority's policy
        imprint = items.take(SEQUENCE).items()
        require(
            algorithm_of(imprint.take(SEQUENCE).items()) == SHA256,
            "The time stamp is over another digest than SHA-256",
        )
        digest = imprint.take(OCTET_STRING).content
        imprint.end()
        serial, time = items.take(INTEGER).number(), _time(items.take(GENERALIZED_TIME).content)
        items.optional(SEQUENCE)  # accuracy
        items.optional(BOOLEAN)  # ordering
        nonce = items.optional(INTEGER)
        items.optional(0xA0)  # the authority's name; its certificate names it too
        _refuse_critical(items.optional(0xA1))
        items.end()
        return cls(digest, serial, time, nonce.number() if nonce else None)


def _time(content: bytes) -> datetime:
    """GeneralizedTime in UTC, its fraction without a zero at the end."""
    found = _TIME.fullmatch(content)
    if found is None:
        raise TimeStampError("The time is not written as DER demands")
    whole = datetime.strptime(found[1].decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return whole.replace(microsecond=int((found[2] or b"").ljust(6, b"0")))


def _refuse_critical(extensions: Element | None) -> None:
    for each in extensions.items().all(SEQUENCE) if extensions else ():
        items = each.items()
        items.take(OID)
        critical = items.optional(BOOLEAN)
        require(critical is None or critical.content == b"\0", "The time stamp has a critical extension")
