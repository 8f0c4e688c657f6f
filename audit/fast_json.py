"""Canonical JSON of parsed rows, by a library in C: the same text as `audit.proof.canonical` gives, in a fifth of its time. Pure.

For whoever reads whole months. What is verified alone, and the verifier in one file, use the reference and need no library.
The library writes some values differently than canonical JSON has them. They are recognised, and left to the reference.
"""

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from audit.errors import AuditError
from audit.proof.canonical import canonical_text
from audit.proof.record import PERSONAL, UNHASHED, Row, bytes_of, commitments_of

_EXACT = 2**53  # the library reads an integer that is far beyond as a fraction, and so forgets its digits
_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
_written = orjson.dumps
_EXPONENT = re.compile(rb"e[-+]?[0-9]{1,3}[,\]}]")
_WHOLE = re.compile(rb"\.0[,\]}]")
# UTF-16 orders the characters from U+E000 to U+FFFF behind all that have four bytes in UTF-8, and the library before them.
_HIGH, _HIGHEST = (b"\xee", b"\xef"), (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")

_NO_OBJECT = "Only an object has members"


_NOT_PLAIN = PERSONAL | UNHASHED


class UnusualJsonError(AuditError):
    """The reference must read and write this."""


class ParsedRow(NamedTuple):
    """A row with what its leaf is made of. What is not personal is written by one call: one for each column took half of the time."""

    row: Row
    personal: Mapping[str, str]  # the canonical text of each
    plain: Row
    plain_text: str
    write: Callable[[Row], str]  # the canonical text of `plain` with commitments

    def commitments(self) -> dict[str, str]:
        if self.row["salt"] is None:
            raise ValueError("The row has no salt")
        return commitments_of(self.personal, bytes_of(self.row["salt"]))

    def leaf(self, committed: Mapping[str, str]) -> bytes:
        """As `audit.proof.record.leaf_hash` has it."""
        return sha256(b"\x00" + self.write({**self.plain, **committed}).encode()).digest()


def read_row(text: str) -> ParsedRow:
    """A row as PostgreSQL has it as JSON. `ValueError` or `TypeError` if it has no canonical form."""
    try:
        return _parsed(orjson.loads(text), _text, _text, _again)
    except (ValueError, TypeError, AttributeError, UnusualJsonError):
        return _parsed(json.loads(text), canonical_text, canonical_text, canonical_text)


def _parsed(
    row: Any, text: Callable[[Any], str], first: Callable[[Row], str], again: Callable[[Row], str]
) -> ParsedRow:
    if not isinstance(row, dict):
        raise TypeError(_NO_OBJECT)
    personal = {name: text(row[name]) for name in PERSONAL if row.get(name) is not None}
    plain = {name: value for name, value in row.items() if value is not None and name not in _NOT_PLAIN}
    return ParsedRow(row, personal, plain, first(plain), again)


def _again(row: Row) -> str:
    """Nothing unusual was found in its values, and commitments are hexadecimal digits."""
    return _written(row, None, _SORTED).decode()


def read_members(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A JSON object, and the canonical text of each member that is not null. `ValueError` or `TypeError` if it has none."""
    try:
        values = orjson.loads(text)
        return values, _texts(values)
    except (ValueError, TypeError, AttributeError, UnusualJsonError):
        values = json.loads(text)
        return values, _slow_texts(values)


def read_nested(text: str, name: str) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The same, with this member's members apart: it must be an object."""
    try:
        values = orjson.loads(text)
        return values, _texts(_without(values, name)), _texts(values[name])
    except (ValueError, TypeError, AttributeError, KeyError, UnusualJsonError):
        values = json.loads(text)
        return values, _slow_texts(_without(values, name)), _slow_texts(values.get(name))


def canonical(text: str) -> str:
    """The canonical text of any JSON."""
    try:
        return _text(orjson.loads(text))
    except (ValueError, TypeError, UnusualJsonError):
        return canonical_text(json.loads(text))


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Most are texts, and a function call for each took a tenth of the time."""
    return {
        name: _written(value).decode() if type(value) is str else _text(value)
        for name, value in values.items()
        if value is not None
    }


def _slow_texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise TypeError(_NO_OBJECT)
    return {name: canonical_text(value) for name, value in values.items() if value is not None}


def _without(values: Any, name: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise TypeError(_NO_OBJECT)
    return {each: value for each, value in values.items() if each != name}


def _text(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return _written(value).decode()
    if kind is dict or kind is list:
        return _container(_written(value, None, _SORTED))
    if kind is float and not -_EXACT < value < _EXACT:
        raise UnusualJsonError
    return canonical_text(value)


def _container(text: bytes) -> str:
    if _EXPONENT.search(text) or (b".0" in text and _WHOLE.search(text)):
        raise UnusualJsonError
    if not text.isascii() and _is_ordered_differently(text):
        raise UnusualJsonError
    return text.decode()


def _is_ordered_differently(text: bytes) -> bool:
    return any(lead in text for lead in _HIGH) and any(lead in text for lead in _HIGHEST)
