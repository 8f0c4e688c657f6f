"""The vault's time stamps, and whether each is one of a head of the log of heads. Pure but for the port.

    stamps/000000000042-5f0c9a3e1b7d2846.tsr   an authority's response over the head of this size, named by its SHA-256
    stamps/chain-<64 digits of hex>.pem        certificates from the signer's to a pinned one, named by their SHA-256

The head's text is that of `heads/<size>.note`. A chain of the vault only links certificates; what is believed, is pinned.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import groupby

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from audit.errors import NoteError, TimeStampError
from audit.heads.head import open_head
from audit.heads.vaulted import HeadSource, list_heads, note_key
from audit.proof.keys import PublicKey
from audit.proof.note import parse_note
from audit.stamps.chain import Chain
from audit.stamps.token import TimeStamp, read_certificates, verify_stamp

PREFIX = "stamps/"
NAME_DIGITS = 16
_STAMP = re.compile(r"stamps/(?P<size>[0-9]{12})-(?P<name>[0-9a-f]{16})\.tsr")
_CHAIN = re.compile(r"stamps/chain-(?P<name>[0-9a-f]{64})\.pem")


@dataclass(frozen=True, slots=True)
class StoredStamp:
    key: str
    size: int  # of the head that it is of
    name: str


@dataclass(frozen=True, slots=True)
class StampedHead:
    size: int
    time: datetime


def stamp_key(size: int, response: bytes) -> str:
    return f"{PREFIX}{size:012d}-{sha256(response).hexdigest()[:NAME_DIGITS]}.tsr"


def chain_key(pem: bytes) -> str:
    return f"{PREFIX}chain-{sha256(pem).hexdigest()}.pem"


def encode_chain(chain: Chain) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)


def list_stamps(vault: HeadSource) -> list[StoredStamp]:
    """In the order of their heads."""
    found = filter(None, map(_STAMP.fullmatch, vault.keys(PREFIX)))
    return sorted(
        (StoredStamp(each[0], int(each["size"]), each["name"]) for each in found), key=lambda each: each.size
    )


def read_chains(vault: HeadSource) -> tuple[list[x509.Certificate], list[str]]:
    """The certificates of all chains, and the keys of those that are not what was stored; these link nothing."""
    found, damaged = dict[x509.Certificate, None](), list[str]()
    for key in filter(_CHAIN.fullmatch, vault.keys(f"{PREFIX}chain-")):
        pem = vault.get(key)
        try:
            found |= dict.fromkeys(read_certificates(pem))
        except TimeStampError:
            damaged.append(key)
            continue
        if chain_key(pem) != key:
            damaged.append(key)
    return list(found), damaged


def read_stamp(
    vault: HeadSource,
    stored: StoredStamp,
    pinned: Iterable[x509.Certificate],
    others: Iterable[x509.Certificate],
) -> TimeStamp:
    """`FileNotFoundError` if the vault has no such head any more; `TimeStampError` if the stamp is not of it."""
    text = head_text(vault, stored.size)
    response = vault.get(stored.key)
    if stamp_key(stored.size, response) != stored.key:
        raise TimeStampError("The file is not the one that was stored")
    return verify_stamp(response, text, pinned, others)


def head_text(vault: HeadSource, size: int) -> bytes:
    """What a stamp of this head is over: the text without signatures, which are not judged here."""
    try:
        return parse_note(vault.get(note_key(size)).decode()).text.encode()
    except (NoteError, UnicodeDecodeError):
        raise TimeStampError("The head in the vault cannot be read") from None


def newest_head(vault: HeadSource, keys: Sequence[PublicKey]) -> tuple[int, bytes] | None:
    """Size and text of the newest head in the vault; `NoteError` if none of the keys signed it."""
    sizes = list_heads(vault).sizes
    if not sizes:
        return None
    head, signed = open_head(vault.get(note_key(sizes[-1])).decode(errors="replace"), keys)
    if head.size != sizes[-1]:
        raise NoteError(f"{note_key(sizes[-1])} in the vault is a head of another size")
    return head.size, signed.text.encode()


def last_stamp(vault: HeadSource, pinned: Sequence[x509.Certificate]) -> StampedHead | None:
    """The newest stamp of the largest head that has one. One that does not fit counts as none: `verify` reports it."""
    others, _ = read_chains(vault)
    for size, stamps in groupby(reversed(list_stamps(vault)), key=lambda each: each.size):
        times = []
        for stored in stamps:
            try:
                times.append(read_stamp(vault, stored, pinned, others).time)
            except (TimeStampError, FileNotFoundError):
                continue
        if times:
            return StampedHead(size, max(times))
    return None
