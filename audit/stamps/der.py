"""A strict reader of ASN.1's DER: each value is written in one way, and nothing may be left over. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from audit.errors import TimeStampError

BOOLEAN, INTEGER, BIT_STRING, OCTET_STRING, NULL, OID = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
GENERALIZED_TIME, SEQUENCE, SET = 0x18, 0x30, 0x31

_LONG_TAG, _LONG_LENGTH = 0x1F, 0x80
_LENGTH_BYTES_MAX = 4


class Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes  # with its tag and its length

    def items(self) -> "Items":
        return Items(self.content)

    def number(self) -> int:
        """Of an INTEGER: as few bytes as it needs."""
        value = int.from_bytes(self.content, signed=True)
        if len(self.content) != (value if value >= 0 else ~value).bit_length() // 8 + 1:
            raise TimeStampError("A whole number is not written as DER demands")
        return value


@dataclass(slots=True)
class Items:
    """The elements of a constructed value, one after the other."""

    content: bytes
    at: int = 0

    def take(self, tag: int) -> Element:
        found = self._next()
        if found is None or found.tag != tag:
            raise TimeStampError(f"A value of type {tag:#x} is missing")
        return self._past(found)

    def optional(self, tag: int) -> Element | None:
        found = self._next()
        return self._past(found) if found and found.tag == tag else None

    def all(self, tag: int) -> list[Element]:
        """The rest, each of this type."""
        found = []
        while self.at < len(self.content):
            found.append(self.take(tag))
        return found

    def end(self) -> None:
        if self.at < len(self.content):
            raise TimeStampError("There is more than belongs there")

    def _past(self, found: Element) -> Element:
        self.at += len(found.whole)
        return found

    def _next(self) -> Element | None:
        if self.at >= len(self.content):
            return None
        head = self.content[self.at : self.at + 2]
        if len(head) != 2 or head[0] & _LONG_TAG == _LONG_TAG:  # noqa: PLR2004  a tag and a length
            raise TimeStampError("This is not DER, or it is cut off")
        begin, size = self.at + 2, head[1]
        if size >= _LONG_LENGTH:
            begin, size = self._long_length(begin, size - _LONG_LENGTH)
        content = self.content[begin : begin + size]
        if len(content) != size:
            raise TimeStampError("This is not DER, or it is cut off")
        return Element(head[0], content, self.content[self.at : begin + size])

    def _long_length(self, begin: int, count: int) -> tuple[int, int]:
        coded = self.content[begin : begin + count]
        size = int.from_bytes(coded)
        is_shortest = len(coded) == count and coded[:1] != b"\0" and size >= _LONG_LENGTH
        if not 0 < count <= _LENGTH_BYTES_MAX or not is_shortest:
            raise TimeStampError("A length is not written as DER demands")
        return begin + count, size


def only(content: bytes, tag: int) -> Element:
    """The one element that is all of the content."""
    items = Items(content)
    found = items.take(tag)
    items.end()
    return found


def oid(dotted: str) -> bytes:
    """The content of an OBJECT IDENTIFIER."""
    first, second, *rest = map(int, dotted.split("."))
    coded = bytearray()
    for number in (40 * first + second, *rest):
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(number & 0x7F | 0x80)
        coded += bytes(reversed(digits))
    return bytes(coded)
