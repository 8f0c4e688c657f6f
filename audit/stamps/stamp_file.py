"""The verdict on a time stamp that somebody was handed, with the head that it is of. Pure."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.x509 import Certificate

from audit.errors import NoteError, TimeStampError
from audit.heads.head import open_head
from audit.proof.keys import PublicKey
from audit.proof.verdict import Finding, Report, Verdict
from audit.stamps.token import read_certificates, verify_stamp

WANTED = "A time stamp is checked with the head that it is of and the authority's certificates: give --head and --tsa-certificates"
_LONG_SEQUENCES = (b"\x30\x81", b"\x30\x82", b"\x30\x83")  # no text begins so


def is_stamp(content: bytes) -> bool:
    return content[:2] in _LONG_SEQUENCES


def check_stamp_files(
    response: bytes, head: Path | None, authorities: Path | None, keys: Sequence[PublicKey]
) -> Report:
    """`OSError` if a file cannot be read."""
    if not head or not authorities:
        return _reported(Verdict.CANNOT_TELL, "time stamp", WANTED)
    try:
        pinned = read_certificates(authorities.read_bytes())
    except TimeStampError as unreadable:
        return _reported(Verdict.CANNOT_TELL, "file", str(unreadable))
    return check_stamp(response, head.read_bytes(), keys, pinned)


def check_stamp(
    response: bytes, note: bytes, keys: Sequence[PublicKey], pinned: Sequence[Certificate]
) -> Report:
    try:
        head, signed = open_head(note.decode(), keys)
    except (NoteError, UnicodeDecodeError) as wrong:
        return _reported(Verdict.TAMPERED, "head", f"The head is not one that the log signed: {wrong}")
    try:
        stamp = verify_stamp(response, signed.text.encode(), pinned)
    except TimeStampError as wrong:
        return _reported(Verdict.TAMPERED, "time stamp", str(wrong))
    report = Report(checked=1)
    moment = f"{stamp.time:%Y-%m-%d %H:%M:%S} UTC"
    report.count(f"head of {head.size} entries of {head.origin} existed on {moment}, says {stamp.authority}")
    return report


def _reported(verdict: Verdict, what: str, message: str) -> Report:
    report = Report()
    report.add(Finding(verdict, what, message))
    return report
