"""Signed notes of C2SP: a text, an empty line, and signature lines, of which a reader ignores those of unknown keys. Pure.

    affidavit/5f0c…
    7
    qGzX…=

    — affidavit/5f0c… q83vEg…          the log's
    — witness.example 9Rk2aQ…          a witness's, who saw that the log only grows

So a note can be signed again by others, and whoever gave only the log's key can still read it.
"""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from audit.errors import NoteError, UnknownKeyError

ID_BYTES = 4
SIGNATURES_MAX = 100  # far more than a log has witnesses

_LINE = r"— [^\s+]+ [A-Za-z0-9+/]+=*\n"
_NOTE = re.compile(rf"(?P<text>(?:[^\n]*\n)*?[^\n]+\n)\n(?P<lines>(?:{_LINE})+)")


class NoteKey(Protocol):
    """A public key under the name that its signature lines bear."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> bytes: ...

    def verify(self, signature: bytes, message: bytes) -> bool: ...


class SignatureLine(NamedTuple):
    name: str
    key_id: bytes
    signature: bytes

    def __str__(self) -> str:
        return f"— {self.name} {to_base64(self.key_id + self.signature)}\n"


@dataclass(frozen=True, slots=True)
class SignedNote:
    text: str
    lines: tuple[SignatureLine, ...]

    def signers(self, keys: Iterable[NoteKey]) -> list[NoteKey]:
        """Those of these keys that signed the text. `NoteError` if one of their signatures does not fit it."""
        known = {(key.name, key.fingerprint): key for key in keys}
        found = []
        for line in self.lines:
            key = known.get((line.name, line.key_id))
            if key is None:
                continue
            if not key.verify(line.signature, self.text.encode()):
                raise NoteError(f"The signature of the key {_named(line)} does not fit the text")
            found.append(key)
        return found

    def require_signer(self, keys: Iterable[NoteKey]) -> None:
        """`UnknownKeyError` if none of these keys signed it."""
        if not self.signers(keys):
            raise UnknownKeyError(f"The signing key {_named(self.lines[0])} is not among the given ones")

    def __str__(self) -> str:
        return f"{self.text}\n{''.join(map(str, self.lines))}"


def parse_note(note: str) -> SignedNote:
    """The note, if it is written in the one way that there is. Nothing is verified."""
    found = _NOTE.fullmatch(note)
    if found is None:
        raise NoteError("This is not a signed note")
    return SignedNote(found["text"], parse_signatures(found["lines"]))


def parse_signatures(lines: str) -> tuple[SignatureLine, ...]:
    """Signature lines, as a witness returns them."""
    if re.fullmatch(f"(?:{_LINE})+", lines) is None or lines.count("\n") > SIGNATURES_MAX:
        raise NoteError(f"These are not 1 to {SIGNATURES_MAX} signature lines")
    return tuple(map(_signature, lines.splitlines()))


def of_base64(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError as wrong:
        raise NoteError(str(wrong)) from None
    if to_base64(content) != text:
        raise NoteError(f"{text} is not canonical base64")
    return content


def to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _signature(line: str) -> SignatureLine:
    _, name, coded = line.split(" ")
    content = of_base64(coded)
    if len(content) <= ID_BYTES:
        raise NoteError(f"The signature of {name} is cut off")
    return SignatureLine(name, content[:ID_BYTES], content[ID_BYTES:])


def _named(line: SignatureLine) -> str:
    return f"{line.name}+{line.key_id.hex()}"
