"""Did you mean: the nearest of the known words (pure)."""

import difflib
import re
import unicodedata
from collections.abc import Iterable

LISTED_MAX = 20  # more than that nobody reads
NEAR_MIN = 0.65


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known word and a space at its end, or nothing if none is near."""
    by_folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_folded, n=1, cutoff=NEAR_MIN)
    return f"Did you mean {by_folded[near[0]]}? " if near else ""


def listed(known: Iterable[str]) -> str:
    names = list(known)
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return ", ".join(names[:LISTED_MAX]) + more


def book_id_like(text: str) -> str:
    """The book ID that a title suggests; empty if it has no Latin letter or digit."""
    letters = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", letters.lower()).strip("-")[:63]
