"""Verifier keys of C2SP's signed notes: a name, how it signs, and an Ed25519 key. Pure.

A log signs a text as it stands. A cosigner, such as a witness, signs it with the time at which it saw it.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audit.errors import NoteError
from audit.proof.note import ID_BYTES, SignatureLine, of_base64, to_base64

LOG, COSIGNER = 1, 4  # the numbers of the two kinds of signature
KEY_BYTES, TIME_BYTES, SIGNATURE_BYTES = 32, 8, 64
SECONDS_MAX = 2**63 - 1

_VKEY = re.compile(r"(?P<name>[^\s+]+)\+(?P<id>[0-9a-f]{8})\+(?P<key>[A-Za-z0-9+/]+=*)")


@dataclass(frozen=True, slots=True)
class VerifierKey:
    name: str
    kind: int
    raw: bytes

    @classmethod
    def of(cls, text: str) -> Self:
        """`NoteError` for anything else than a log's or a cosigner's Ed25519 key, written as it must be."""
        found = _VKEY.fullmatch(text)
        content = of_base64(found["key"]) if found else b""
        key = cls(found["name"] if found else "", content[0] if content else 0, content[1:])
        if key.kind not in {LOG, COSIGNER} or len(key.raw) != KEY_BYTES or str(key) != text:
            raise NoteError(
                f"{text!r} is not an Ed25519 key of a log or a witness: NAME+1a2b3c4d+AQ… or …+BA…"
            )
        return key

    @property
    def fingerprint(self) -> bytes:
        return sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.raw).digest()[:ID_BYTES]

    def verify(self, signature: bytes, message: bytes) -> bool:
        if self.kind == COSIGNER:
            if len(signature) != TIME_BYTES + SIGNATURE_BYTES:
                return False
            seconds, signature = int.from_bytes(signature[:TIME_BYTES]), signature[TIME_BYTES:]
            if seconds > SECONDS_MAX:
                return False
            message = cosigned_text(seconds, message)
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.name}+{self.fingerprint.hex()}+{to_base64(bytes([self.kind]) + self.raw)}"


def cosign(text: str, key: Ed25519PrivateKey, name: str, now: datetime) -> SignatureLine:
    """The signature line of a cosigner: as of now, this is the largest consistent tree of the log that it has seen."""
    seconds = int(now.timestamp())
    public = VerifierKey(name, COSIGNER, key.public_key().public_bytes_raw())
    signature = key.sign(cosigned_text(seconds, text.encode()))
    return SignatureLine(name, public.fingerprint, seconds.to_bytes(TIME_BYTES) + signature)


def cosigned_text(seconds: int, text: bytes) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n".encode() + text


def cosigned_at(line: SignatureLine) -> datetime:
    """When a cosigner says that it signed. The signature must have been verified."""
    return datetime.fromtimestamp(int.from_bytes(line.signature[:TIME_BYTES]), UTC)
