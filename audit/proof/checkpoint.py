"""Signed texts: the head of a month's tree as a C2SP signed note, a break of its history, a receipt, an erasure. Pure.

affidavit/5f0c…/2026-11                            the log and its month
133                                                the tree's size
qGzX…=                                             its root, base64
time 2026-11-18T14:00:00.000000Z                   when it was signed
previous 2026-10 90210 zNq8…=                      the latest earlier month's last head, if there is one
signed 0                                           from this leaf on every row is signed, if any is
break 120 185 9f3c…                                a break of the month's history

— affidavit q83vEg…                                key id and signature over all lines above the empty one
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from uuid import UUID

from audit.errors import NoteError, UnknownKeyError
from audit.proof.keys import NAME, HeadSigner, KeyRing, PublicKey
from audit.proof.merkle import HASH_BYTES
from audit.proof.note import SignatureLine, SignedNote, of_base64, parse_note, to_base64

_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_MONTH = "%Y-%m"

_CHECKPOINT = re.compile(
    r"""
    (?P<origin>[!-~]+)/(?P<month>[0-9]{4}-[0-9]{2})\n
    (?P<size>[1-9][0-9]{0,17})\n
    (?P<root>[A-Za-z0-9+/]+=*)\n
    time[ ](?P<time>[0-9TZ:.-]+)\n
    (?:previous[ ](?P<earlier>[0-9]{4}-[0-9]{2})[ ](?P<earlier_size>[1-9][0-9]{0,17})[ ](?P<earlier_root>[A-Za-z0-9+/]+=*)\n)?
    (?:signed[ ](?P<signed_from>0|[1-9][0-9]{0,17})\n)?
    (?P<breaks>(?:break[ ][0-9]+[ ][0-9]+[ ][0-9a-f]{64}\n)*)""",
    re.VERBOSE,
)


_BREAK = re.compile(
    r"""
    (?P<origin>[!-~]+)/(?P<month>[0-9]{4}-[0-9]{2})/break\n
    (?P<number>[1-9][0-9]{0,3})\n
    kept[ ](?P<kept>[0-9]{1,18})[ ](?P<kept_root>[A-Za-z0-9+/]+=*)\n
    lost[ ](?P<lost>[0-9]{1,18})[ ](?P<lost_root>[A-Za-z0-9+/]+=*)\n
    time[ ](?P<time>[0-9TZ:.-]+)\n
    event[ ](?P<event>[0-9a-f-]{36})\n
    basis[ ](?P<basis>[^\n]+)\n""",
    re.VERBOSE,
)
BASIS_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Link:
    month: date
    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class BreakLine:
    """A break that the month's history had before this head: the leaves from `kept` to before `lost` were lost."""

    kept: int
    lost: int
    digest: str  # SHA-256 of the signed break, in hex

    def __str__(self) -> str:
        return f"break {self.kept} {self.lost} {self.digest}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A month's head at one moment. `previous` is the last head of the latest earlier month that has any.

    From the leaf `signed_from` on, every row is signed by the engine; None: by a version that did not sign rows.
    """

    origin: str
    month: date
    size: int
    root: bytes
    issued_at: datetime
    previous: Link | None = None
    signed_from: int | None = None
    breaks: tuple[BreakLine, ...] = ()

    @property
    def link(self) -> Link:
        return Link(self.month, self.size, self.root)


@dataclass(frozen=True, slots=True)
class HistoryBreak:
    """An operator's statement that a failover or a restore has lost a month's leaves from the kept to before the lost size."""

    origin: str
    month: date
    number: int  # of the month's breaks, from 1
    kept: Link  # the tree that the database still has
    lost: Link  # the largest head in the vault, which the database lacks
    issued_at: datetime
    event: UUID  # the record of the log that documents it
    basis: str

    def line(self, note: str) -> BreakLine:
        """How later heads name it."""
        return BreakLine(self.kept.size, self.lost.size, sha256(note.encode()).hexdigest())


def sign_break(broken: HistoryBreak, key: HeadSigner) -> str:
    return _signed(_break_text(broken), key)


def open_break(note: str, public_keys: Iterable[PublicKey]) -> HistoryBreak:
    """The break, if it is written exactly as `sign_break` does it and one of these keys signed it."""
    signed = parse_note(note)
    broken = _parsed_break(signed.text)
    _require_signer(signed, public_keys, broken.issued_at)
    return broken


def read_break(note: str) -> HistoryBreak:
    """The same without its signature: for finding out what is to be checked."""
    return _parsed_break(parse_note(note).text)


def sign_note(checkpoint: Checkpoint, key: HeadSigner) -> str:
    return _signed(_text(checkpoint), key)


def open_note(note: str, public_keys: Iterable[PublicKey]) -> Checkpoint:
    """The checkpoint, if its text is exactly what `sign_note` writes and one of these keys signed it."""
    signed = parse_note(note)
    checkpoint = _parsed(signed.text)
    _require_signer(signed, public_keys, checkpoint.issued_at)
    return checkpoint


def read_note(note: str) -> Checkpoint:
    """The same without its signature: for saying what differs."""
    return _parsed(parse_note(note).text)


def signer_of(note: str) -> str:
    """The id of the key that claims to have signed it. The signature is not checked."""
    for line in parse_note(note).lines:
        if line.name == NAME:
            return f"{NAME}+{line.key_id.hex()}"
    raise NoteError("None of its signatures is a log's")


def receipt_text(log_id: UUID, leaf_hash: str, issued_at: datetime) -> bytes:
    """The bytes that a receipt's signature covers; the leaf's hash as hexadecimal digits."""
    return f"affidavit receipt\n{log_id}\n{leaf_hash}\n{_time(issued_at)}\n".encode()


def erasure_text(erasure_id: UUID, log_id: UUID, event: UUID, erased_at: datetime) -> bytes:
    """The bytes that an erasure's signature covers: this record was erased, and the record `event` of the log documents it."""
    return f"affidavit erasure\n{erasure_id}\n{log_id}\n{event}\n{_time(erased_at)}\n".encode()


def _text(checkpoint: Checkpoint) -> str:
    lines = [
        f"{checkpoint.origin}/{checkpoint.month:{_MONTH}}",
        str(checkpoint.size),
        to_base64(checkpoint.root),
        f"time {_time(checkpoint.issued_at)}",
    ]
    if previous := checkpoint.previous:
        lines.append(f"previous {previous.month:{_MONTH}} {previous.size} {to_base64(previous.root)}")
    if checkpoint.signed_from is not None:
        lines.append(f"signed {checkpoint.signed_from}")
    lines += map(str, checkpoint.breaks)
    return "".join(f"{line}\n" for line in lines)


def _require_signer(signed: SignedNote, public_keys: Iterable[PublicKey], at: datetime) -> None:
    """`UnknownKeyError` unless a key signed it that counts for heads at its time."""
    ring = KeyRing.of(public_keys)
    if not signed.signers(ring.head_keys(at)):
        line = next((line for line in signed.lines if line.name == NAME), signed.lines[0])
        raise UnknownKeyError(ring.why_not(f"{line.name}+{line.key_id.hex()}", at))


def _signed(text: str, key: HeadSigner) -> str:
    return str(SignedNote(text, (SignatureLine(NAME, key.public.fingerprint, key.sign(text.encode())),)))


def _break_text(broken: HistoryBreak) -> str:
    lines = (
        f"{broken.origin}/{broken.month:{_MONTH}}/break",
        str(broken.number),
        f"kept {broken.kept.size} {to_base64(broken.kept.root)}",
        f"lost {broken.lost.size} {to_base64(broken.lost.root)}",
        f"time {_time(broken.issued_at)}",
        f"event {broken.event}",
        f"basis {broken.basis}",
    )
    return "".join(f"{line}\n" for line in lines)


def _parsed_break(text: str) -> HistoryBreak:
    found = _BREAK.fullmatch(text)
    if found is None:
        raise NoteError("This is not the signed statement of a break")
    month = _month(found["month"])
    broken = HistoryBreak(
        found["origin"], month, int(found["number"]),
        Link(month, int(found["kept"]), _bytes(found["kept_root"], HASH_BYTES)),
        Link(month, int(found["lost"]), _bytes(found["lost_root"], HASH_BYTES)),
        _moment(found["time"]), _uuid(found["event"]), found["basis"],
    )  # fmt: skip
    if broken.kept.size >= broken.lost.size or not is_basis(broken.basis) or _break_text(broken) != text:
        raise NoteError("The statement of a break is not in canonical form")
    return broken


def is_basis(text: str) -> bool:
    """One short line: it stands in the vault for ever."""
    return 0 < len(text) <= BASIS_CHARACTERS_MAX and text.isprintable() and text == text.strip()


def _parsed(text: str) -> Checkpoint:
    found = _CHECKPOINT.fullmatch(text)
    if found is None:
        raise NoteError("This is not a checkpoint in the format of a signed note")
    previous = None
    if found["earlier"]:
        earlier_root = _bytes(found["earlier_root"], HASH_BYTES)
        previous = Link(_month(found["earlier"]), int(found["earlier_size"]), earlier_root)
    month = _month(found["month"])
    if previous and previous.month >= month:
        raise NoteError("The previous month is not earlier than the month")
    issued_at = _moment(found["time"])
    signed_from = int(found["signed_from"]) if found["signed_from"] else None
    size = int(found["size"])
    if signed_from is not None and signed_from > size:
        raise NoteError("Its rows are signed from a leaf on that it does not have")
    root = _bytes(found["root"], HASH_BYTES)
    breaks = tuple(map(_break_line, found["breaks"].splitlines()))
    checkpoint = Checkpoint(found["origin"], month, size, root, issued_at, previous, signed_from, breaks)
    if _text(checkpoint) != text:
        raise NoteError("The checkpoint is not in canonical form")
    return checkpoint


def _break_line(line: str) -> BreakLine:
    _, kept, lost, digest = line.split(" ")
    if int(kept) >= int(lost):
        raise NoteError("A break has lost at least one leaf")
    return BreakLine(int(kept), int(lost), digest)


def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError as wrong:
        raise NoteError(str(wrong)) from None


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as wrong:
        raise NoteError(str(wrong)) from None


def _month(text: str) -> date:
    try:
        return date.fromisoformat(f"{text}-01")
    except ValueError as wrong:
        raise NoteError(str(wrong)) from None


def _bytes(text: str, length: int) -> bytes:
    content = of_base64(text)
    if len(content) != length:
        raise NoteError(f"{text} is not base64 of {length} bytes")
    return content


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_TIME)
