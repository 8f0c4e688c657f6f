"""C2SP's tlog-proof: one entry of a log, its path to the root, and the log's head with the witnesses' cosignatures. Pure.

c2sp.org/tlog-proof@v1
extra YWZmaWRhdml0L…         ours: the entry itself, the signed head of a month
index 41
qGzX…=                       the path, the lowest hash first
                             (an empty line)
affidavit/5f0c…              the signed head of the log
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from audit.errors import NoteError
from audit.heads.head import LogHead, entry_leaf, open_head
from audit.proof.checkpoint import Checkpoint, open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import HASH_BYTES, is_included
from audit.proof.note import SignedNote, of_base64, to_base64

FIRST_LINE = "c2sp.org/tlog-proof@v1"
HASHES_MAX = 63  # a tree cannot be higher

_HASH = r"[A-Za-z0-9+/]{43}="
_PROOF = re.compile(
    rf"{re.escape(FIRST_LINE)}\n(?:extra (?P<extra>[A-Za-z0-9+/]+=*)\n)?index (?P<index>0|[1-9][0-9]{{0,17}})\n"
    rf"(?P<hashes>(?:{_HASH}\n){{0,{HASHES_MAX}}})\n(?P<note>.+)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class TlogProof:
    index: int
    hashes: Sequence[bytes]
    note: str
    extra: bytes = b""

    def __str__(self) -> str:
        extra = f"extra {to_base64(self.extra)}\n" if self.extra else ""
        hashes = "".join(f"{to_base64(part)}\n" for part in self.hashes)
        return f"{FIRST_LINE}\n{extra}index {self.index}\n{hashes}\n{self.note}"


@dataclass(frozen=True, slots=True)
class ProvenHead:
    """A month's head that is in the log of heads, under the signed head of that."""

    month_head: Checkpoint
    head: LogHead
    signed: SignedNote


def parse_tlog_proof(text: str) -> TlogProof:
    """A proof of any log, if it is written in the one way that there is. Nothing is verified."""
    found = _PROOF.fullmatch(text)
    if found is None:
        raise NoteError(f"This is not a proof in C2SP's format, which begins with {FIRST_LINE}")
    hashes = [of_base64(line) for line in found["hashes"].splitlines()]
    if any(len(part) != HASH_BYTES for part in hashes):
        raise NoteError(f"A hash of the proof does not have {HASH_BYTES} bytes")
    return TlogProof(int(found["index"]), hashes, found["note"], of_base64(found["extra"] or ""))


def open_tlog_proof(proof: TlogProof, keys: Sequence[PublicKey], entry: bytes | None = None) -> ProvenHead:
    """The month's head that it proves; `NoteError` if it proves none. Without an entry it is the proof's own."""
    entry = proof.extra if entry is None else entry
    if not entry:
        raise NoteError("The proof does not have the entry that it is of: the signed head of a month")
    head, signed = open_head(proof.note, keys)
    if not is_included(entry_leaf(entry), proof.index, head.size, proof.hashes, head.root):
        raise NoteError("The proof does not lead from the month's head to the root of the log of heads")
    month_head = open_note(entry.decode(errors="replace"), keys)
    if month_head.origin != head.origin:
        raise NoteError(f"The month's head is of another log, {month_head.origin}")
    return ProvenHead(month_head, head, signed)
