"""URL and slug rules of Docusaurus: the address of a page and the anchor of a heading. Pure.

A citation links to the page that the site serves, so these must be exactly its rules.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from unicodedata import category

ROUTE = "/docs"  # Docusaurus' default route for its docs

_NUMBER_PREFIX = re.compile(r"[0-9]+\s*[-_.]+\s*(?=[^-_.\s])")
_VERSION_OR_DATE = re.compile(r"[0-9]+[-_.][0-9]+")
_SLASHES = re.compile(r"/{2,}")
_PAGES = {".md", ".mdx"}
_INDEXES = {"index", "readme"}
_WORD_CATEGORIES = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"}
# Symbols that Unicode calls alphabetic: letters in a circle or a square.
_LETTERS_IN_SHAPES = "\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189"
_LETTER_IN_SHAPE = re.compile(f"[{_LETTERS_IN_SHAPES}]")
_PLAIN = re.compile(r"[a-z0-9_\- ]*")


def permalink(path: PurePosixPath, front: Mapping[str, Any]) -> str:
    """The page's address, not percent-encoded. `path` is relative to the docs folder."""
    return _SLASHES.sub("/", f"{ROUTE}/{_slug(path, front)}")


def base_id(path: PurePosixPath, front: Mapping[str, Any]) -> str:
    """The id in the front matter, or the file's name without its number prefix."""
    given = front.get("id")
    return without_prefix(path.stem, front) if given is None else str(given)


def without_prefix(name: str, front: Mapping[str, Any]) -> str:
    """`07-walking` becomes `walking`; a date (`2026-01-news`) and a version (`1.2-notes`) stay as they are."""
    if front.get("parse_number_prefixes") is False or _VERSION_OR_DATE.match(name):
        return name
    return _NUMBER_PREFIX.sub("", name, count=1) if _NUMBER_PREFIX.match(name) else name


def is_page(path: PurePosixPath) -> bool:
    """Whether a file is a page, by its name alone: Docusaurus skips hidden names, names with `_`, tests, and other suffixes (case-sensitive)."""
    is_skipped = any(part.startswith(("_", ".")) or part == "__tests__" for part in path.parts)
    return path.suffix in _PAGES and not is_skipped


def _slug(path: PurePosixPath, front: Mapping[str, Any]) -> str:
    """The slug if there is one, else the id, else the file's name; an index page has the address of its folder."""
    folder = "".join(f"{without_prefix(part, front)}/" for part in path.parent.parts)
    given = front.get("slug")
    slug = "" if given is None else str(given)
    if slug.startswith("/"):
        return slug
    if not slug and path.stem.lower() in {*_INDEXES, path.parent.name.lower()}:
        return folder
    return _resolved(folder + (slug or base_id(path, front)))


def _resolved(address: str) -> str:
    """Resolves `.` and `..`; an address that ends in one of them is a folder."""
    parts: list[str] = []
    steps = address.split("/")
    for step in steps:
        if step == "..":
            del parts[-1:]
        elif step != ".":
            parts.append(step)
    return "/".join([*parts, ""] if steps[-1] in {".", ".."} else parts)


class Anchors:
    """Unique anchors of one page, as github-slugger 1.5.0 makes them: the second `Setup` is `setup-1`."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def add(self, heading: str) -> str:
        wanted = found = slug(heading)
        while found in self._seen:
            self._seen[wanted] += 1
            found = f"{wanted}-{self._seen[wanted]}"
        self._seen[found] = 0
        return found


def slug(heading: str) -> str:
    lower = heading.lower()
    if not _PLAIN.fullmatch(lower):
        lower = "".join(
            sign for sign in lower
            if sign in "- " or category(sign) in _WORD_CATEGORIES or _LETTER_IN_SHAPE.match(sign)
        )  # fmt: skip
    return lower.replace(" ", "-")


def custom_id(heading: str) -> tuple[str, str | None]:
    """A heading's text and the id written after it: `Why robots fall {#why}`."""
    text = heading.rstrip()
    start = text.rfind("{#")
    given = text[start + 2 : -1]
    if start < 0 or not text.endswith("}") or not given or "}" in given or "\n" in given:
        return heading, None
    return text[:start].rstrip(), given
