"""Where quotations are in a text (pure)."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple


class MarkedPiece(NamedTuple):
    text: str
    is_marked: bool


def marked(text: str, spans: Iterable[tuple[int, int]]) -> list[MarkedPiece]:
    """The text in pieces. Spans may overlap, or be outside of it."""
    inside = bytearray(len(text))
    for begin, end in spans:
        within = range(len(text))[max(begin, 0) : max(end, 0)]
        inside[within.start : within.stop] = b"\x01" * len(within)
    places = groupby(range(len(text)), key=inside.__getitem__)
    groups = [(is_marked, list(group)) for is_marked, group in places]
    return [MarkedPiece(text[group[0] : group[-1] + 1], bool(is_marked)) for is_marked, group in groups]


def spans_of(text: str, excerpts: Iterable[str]) -> list[tuple[int, int]]:
    """Wherever one of them stands in the text, word for word."""
    found = []
    for excerpt in filter(None, excerpts):
        at = text.find(excerpt)
        while at >= 0:
            found.append((at, at + len(excerpt)))
            at = text.find(excerpt, at + 1)
    return found


def spans_cited(citations: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Of citations of one passage. What is no citation marks nothing."""
    places = ((cited.get("start"), cited.get("end")) for cited in citations)
    return [(begin, end) for begin, end in places if isinstance(begin, int) and isinstance(end, int)]
