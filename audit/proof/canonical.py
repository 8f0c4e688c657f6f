"""Canonical JSON: the JSON Canonicalization Scheme (RFC 8785). Pure.

Every program that hashes a value must get the same bytes, in any language and after any database: keys in order, no spaces,
no needless escapes, and numbers as JavaScript writes them, so that 1, 1.0 and 1e0 are one number.
"""

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from audit.errors import FormatError

_EXACT = 2**53  # beyond it a double skips integers, so two of them could get one text
_PLAIN = (1e-4, 1e16)  # between these Python and JavaScript write a fraction alike
_POINT_MAX, _POINT_MIN = 21, -6  # outside of these JavaScript writes an exponent


def canonical_json(value: Any) -> bytes:
    """The bytes that are hashed. `ValueError` or `TypeError` if the value has no canonical form."""
    return canonical_text(value).encode()


def read_line(content: bytes, what: str, error: type[FormatError]) -> dict[str, Any]:
    """The object in a file that must be one line of canonical JSON, so that no byte can be changed unnoticed."""
    try:
        body = json.loads(content.decode())
        is_same = isinstance(body, dict) and canonical_json(body) + b"\n" == content
    except (ValueError, TypeError, RecursionError):
        raise error(f"{what} is not one line of JSON") from None
    if not is_same:
        raise error(f"{what} is not canonical JSON: it was changed, or another program wrote it")
    checked: dict[str, Any] = body
    return checked


def canonical_text(value: Any) -> str:
    """The value's one and only text."""
    write = _WRITERS.get(type(value))
    if write is None:
        raise TypeError(f"{type(value).__name__} has no canonical form")
    return write(value)


def _object(value: dict[str, Any]) -> str:
    members = [f"{encode_basestring(key)}:{canonical_text(value[key])}" for key in _ordered(value)]
    return "{" + ",".join(members) + "}"


def _array(value: Sequence[Any]) -> str:
    return "[" + ",".join(map(canonical_text, value)) + "]"


def _ordered(keys: dict[str, Any]) -> list[str]:
    if "".join(keys).isascii():
        return sorted(keys)
    return sorted(keys, key=lambda key: key.encode("utf-16-be", "surrogatepass"))


def _integer(value: int) -> str:
    if -_EXACT <= value <= _EXACT:
        return str(value)
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("The number is too large for JSON") from None
    written = int(Decimal(repr(number)))  # PostgreSQL gives 1e23 back as 24 digits; no other digits mean it
    if written != value:
        raise ValueError(f"{value} is beyond 2^53 and would not survive every JSON parser")
    return _as_javascript(number)


def _fraction(value: float) -> str:
    if _PLAIN[0] <= abs(value) < _PLAIN[1] and not value.is_integer():
        return repr(value)
    return _as_javascript(value)


def _as_javascript(number: float) -> str:
    """The shortest digits that give the number back; with an exponent only where it is very large or very small."""
    if number == 0:
        return "0"
    if number - number != 0:
        raise ValueError(f"{number} is not a JSON number")
    sign, figures, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    digits, minus = "".join(map(str, figures)), "-" * sign
    point = len(digits) + exponent
    if len(digits) <= point <= _POINT_MAX:
        return minus + digits.ljust(point, "0")
    if 0 < point <= _POINT_MAX:
        return f"{minus}{digits[:point]}.{digits[point:]}"
    if _POINT_MIN < point <= 0:
        return f"{minus}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if digits[1:] else ""
    return f"{minus}{digits[0]}{fraction}e{point - 1:+d}"


_WRITERS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: _integer,
    float: _fraction,
    dict: _object,
    list: _array,
    tuple: _array,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
}
