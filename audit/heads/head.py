"""The head of a log in C2SP's form: origin, size and root, and what a log may add in further lines. Pure.

Our log of heads has exactly these three lines, and signs them under its origin as the key's name.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from audit.errors import NoteError
from audit.heads.vkey import LOG, VerifierKey
from audit.proof.keys import HeadSigner, KeyRing, PublicKey
from audit.proof.merkle import HASH_BYTES
from audit.proof.note import SignatureLine, SignedNote, of_base64, parse_note, to_base64

_HEAD = re.compile(
    r"(?P<origin>[^\n]+)\n(?P<size>0|[1-9][0-9]{0,17})\n(?P<root>[A-Za-z0-9+/]+=*)\n(?:[^\n]+\n)*"
)


@dataclass(frozen=True, slots=True)
class LogHead:
    origin: str
    size: int
    root: bytes

    def __str__(self) -> str:
        return f"{self.origin}\n{self.size}\n{to_base64(self.root)}\n"


def parse_head(text: str) -> LogHead:
    """Of any log: further lines are its own, and nothing is said about them."""
    found = _HEAD.fullmatch(text)
    root = of_base64(found["root"]) if found else b""
    if found is None or len(root) != HASH_BYTES:
        raise NoteError("This is not the head of a log: origin, size and root, a line each")
    return LogHead(found["origin"], int(found["size"]), root)


def entry_leaf(entry: bytes) -> bytes:
    """The leaf of an entry of a log: of ours, the signed head of a month."""
    return sha256(b"\x00" + entry).digest()


def log_keys(origin: str, keys: Iterable[PublicKey]) -> list[VerifierKey]:
    """The log's pinned keys under the name under which they sign its log of heads. Its head has no time, so a revoked key counts."""
    return [VerifierKey(origin, LOG, key.raw) for key in KeyRing.of(keys).pinned]


def sign_head(head: LogHead, key: HeadSigner) -> str:
    (signer,) = log_keys(head.origin, [key.public])
    signature = key.sign(str(head).encode())
    return str(SignedNote(str(head), (SignatureLine(signer.name, signer.fingerprint, signature),)))


def open_head(note: str, keys: Sequence[PublicKey]) -> tuple[LogHead, SignedNote]:
    """The head of a log of heads, signed by one of these keys; others may have signed it too."""
    signed = parse_note(note)
    head = parse_head(signed.text)
    if str(head) != signed.text:
        raise NoteError("The head of a log of heads has three lines and no more")
    signed.require_signer(log_keys(head.origin, keys))
    return head, signed
