"""The prose of a page: its headings, paragraphs and cells, without code, addresses and file names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

CODE = "¶"  # what stands for code in a line, so that a sentence keeps its length


@dataclass(frozen=True)
class Prose:
    """One block of text."""

    kind: str  # heading, paragraph or cell
    text: str


def prose(page: str) -> Iterator[Prose]:
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    for before, token in pairwise(tokens):
        if token.type == "inline":
            kind = {"heading_open": "heading", "paragraph_open": "paragraph"}.get(before.type, "cell")
            yield Prose(kind, "".join(map(_words, token.children or ())))


def _words(token: Token) -> str:
    match token.type:
        case "code_inline":
            return CODE
        case "softbreak" | "hardbreak":
            return " "
        case _:  # the address of a link is no child; its text is
            return re.sub(
                r"\S*[/_@]\S*|\"[a-z]+\"|\S+\.(?:py|md|toml|json|sql|html|lock)\b", CODE, token.content
            )
