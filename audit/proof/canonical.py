"""Canonical JSON: the JSON Canonicalization Scheme (RFC 8785). Pure.

Every program that hashes a value must get the same bytes, in any language and after any database: keys in order, no spaces,
no needless escapes, and numbers as JavaScript writes them, so that 1, 1.0 and 1e0 are one number.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from audit.errors import FormatError

_EXACT = 2**53  # beyond it a double skips integers, so two of them could get one text
_PLAIN_MIN, _PLAIN_MAX = 1e-4, 1e16  # between these Python and JavaScript write a fraction alike
_POINT_MAX, _POINT_MIN = 21, -6  # outside of these JavaScript writes an exponent

# Python's own writer is many times as fast. It differs in numbers with an exponent, whole fractions and those beyond 2^53,
# and in the order of names, if there are characters above the surrogates.
_UNUSUAL_NUMBER = re.compile(r"[:,\[]-?(?:[0-9]+(?:\.[0-9]+)?[eE]|[0-9]+\.0[,}\]]|[0-9]{16})")
_HIGH = re.compile("[\ue000-\uffff]")
_usual = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


def canonical_json(value: Any) -> bytes:
    """The bytes that are hashed. `ValueError` or `TypeError` if the value has no canonical form."""
    return canonical_text(value).encode()


def read_line(content: bytes, what: str, error: type[FormatError]) -> dict[str, Any]:
    """The object in a file that must be one line of canonical JSON, so that no byte can be changed unnoticed."""
    try:
        text = content.decode()
        body = json.loads(text)
        is_same = isinstance(body, dict) and f"{canonical_text_of_parsed(body)}\n" == text
    except (ValueError, TypeError, RecursionError):
        raise error(f"{what} is not one line of JSON") from None
    if not is_same:
        raise error(f"{what} is not canonical JSON: it was changed, or another program wrote it")
    checked: dict[str, Any] = body
    return checked


def canonical_text_of_parsed(value: Any) -> str:
    """The same as `canonical_text` of a value that a JSON parser gave, in a fraction of its time."""
    return _WRITERS_OF_PARSED[type(value)](value)


def texts_of_parsed(values: Mapping[str, Any]) -> dict[str, str]:
    """Each by itself."""
    writers = _WRITERS_OF_PARSED
    return {name: writers[type(value)](value) for name, value in values.items()}


def canonical_text(value: Any) -> str:
    """The value's one and only text."""
    return _WRITERS[type(value)](value)


def _parsed(value: dict[str, Any] | list[Any]) -> str:
    text = _usual(value)
    return text if _is_usual(text) else canonical_text(value)


def _is_usual(text: str) -> bool:
    """Whether Python's own writer writes this object or array in canonical form."""
    return _UNUSUAL_NUMBER.search(text) is None and (text.isascii() or _HIGH.search(text) is None)


def _object(value: dict[str, Any]) -> str:
    members = [
        f"{encode_basestring(key)}:{_WRITERS[type(value[key])](value[key])}" for key in _ordered(value)
    ]
    return "{" + ",".join(members) + "}"


def _array(value: Sequence[Any]) -> str:
    return "[" + ",".join([_WRITERS[type(item)](item) for item in value]) + "]"


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
    if _PLAIN_MIN <= abs(value) < _PLAIN_MAX and not value.is_integer():
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


class _Writers(dict[type, Callable[[Any], str]]):
    """By the type of the value. Looked up in place: a function call for each value took a tenth of the time."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        raise TypeError(f"{kind.__name__} has no canonical form")


_WRITERS = _Writers(
    {
        str: encode_basestring,
        int: _integer,
        float: _fraction,
        dict: _object,
        list: _array,
        tuple: _array,
        bool: lambda value: "true" if value else "false",
        type(None): lambda _: "null",
    }
)
_WRITERS_OF_PARSED = _Writers(_WRITERS | {dict: _parsed, list: _parsed})
