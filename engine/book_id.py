"""The judge of book IDs: each that somebody types, sends or configures is judged here."""

import re

_BOOK_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_RULE = "1 to 63 lower-case letters, digits and hyphens, and no hyphen at its beginning"


def book_id_of(text: str) -> str:
    """The text, if it is a book ID; else `ValueError` with the rule."""
    if not _BOOK_ID.fullmatch(text):
        raise ValueError(f"{text!r} is not a book ID, which is {_RULE}")
    return text
