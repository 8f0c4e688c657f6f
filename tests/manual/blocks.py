"""Reads the blocks of code of a page, with what an invisible comment before a block says of it.

`<!-- not run: why -->` is not played. `<!-- exit code 1: why -->` ends so. A block of `text` after one of `sh` is what it shows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from textwrap import dedent

from tests.manual.documented import PAGES

PLAYED = [
    page for page in PAGES if page == "README.md" or page.startswith(("docs/tutorials/", "docs/how-to/"))
]

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<remark>[^\n]+) -->\n)?^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Example:
    """A block: where it stands, what is typed, how that ends, and what it shows."""

    page: str
    line: int
    language: str
    text: str
    not_run: str = ""
    exit_code: int = 0
    shown: str = ""
    follows: bool = False  # directly after another block


def examples(page: str) -> list[Example]:
    found: list[Example] = []
    for example in _all(page):
        if example.language in {"sh", "sql"}:
            found.append(example)
        elif example.language == "text" and example.follows:
            found[-1] = replace(found[-1], shown=example.text)
    return found


def languages(page: str) -> list[str]:
    return [example.language for example in _all(page)]


def is_shown(shown: str, said: str) -> bool:
    """Whether these lines were said in this order: `…` may be anything, a number any number, a hash any hash."""
    pattern = r"[\s\S]*".join(_loosely(line.strip()) for line in shown.splitlines())
    return re.search(pattern, said) is not None


def _all(page: str) -> Iterator[Example]:
    end = -1
    for found in _BLOCK.finditer(PAGES[page]):
        kind, _, words = (found["remark"] or "").partition(": ")
        line = PAGES[page].count("\n", 0, found.start()) + 1
        yield Example(
            page, line, found["language"], dedent(found["text"]),
            not_run=words if kind == "not run" else "",
            exit_code=int(kind.removeprefix("exit code ")) if kind.startswith("exit code ") else 0,
            follows=end >= 0 and PAGES[page][end : found.start()].isspace(),
        )  # fmt: skip
        end = found.end()


def _loosely(line: str) -> str:
    words = re.split(r"(…|\b(?=\w*\d)[0-9a-f]{8,}\b|\d+(?:[.,]\d+)*|\s+)", line)
    return "".join(_any(word) for word in words)


def _any(word: str) -> str:
    if word == "…":
        return ".*"
    if word.isspace():
        return r"\s+"
    if re.fullmatch(r"\d+(?:[.,]\d+)*", word):
        return r"[\d.,]+"
    if re.fullmatch(r"(?=\w*\d)[0-9a-f]{8,}", word):
        return r"[0-9a-f]+"
    return re.escape(word)
