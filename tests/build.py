"""Builders that several tests share: small, valid values whose every detail can be said."""

import zlib
from collections.abc import Iterable
from hashlib import sha256
from itertools import chain, repeat
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from engine.models import Candidate, Citation, Claim, Draft, Passage, RetrievedPassage, Sentence, SentenceKind
from ingest.read.document import Document, Kind, Piece, Section

# The same examples in every run, so that a red test stays red.
steady = settings(deadline=None, database=None, derandomize=True)

# What breaks offsets, word counts and quotations: astral, combining, right-to-left, markup, odd spaces.
HOSTILE = (
    "a", "Z", "0", ".", ",", '"', "“", "”", "'", "`", "*", "_", "[", "]", "(", ")", "#", "|", "\\", "<", "&",
    " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u2003", "\u2028", "\u200b", "\u200d", "\ufeff",
    "\u202e", "e\u0301", "\u0300", "ß", "İ", "مرحبا", "שלום", "机器人", "。", "👩\u200d🚀", "🇩🇪", "\U0001d54f",
    "\x1c", "\x85",
)  # fmt: skip

hostile_text = st.one_of(
    st.lists(st.sampled_from(HOSTILE), max_size=40).map("".join),
    st.text(max_size=40),
    st.lists(st.sampled_from(("word", "机器人", "👩\u200d🚀", "e\u0301")), min_size=45, max_size=60).map(
        " ".join
    ),
)
hostile_sentence = hostile_text.map(str.strip).filter(bool)


def passage(
    *sentences: str,
    joint: str = " ",
    heading: str = "Balance",
    anchor: str = "balance",
    page: str = "walking",
    kinds: Iterable[SentenceKind] = (),
    **about: Any,
) -> Passage:
    """A passage of these sentences, all under one heading. Those without a kind are statements."""
    text = ""
    spans = []
    of_sentences: Iterable[SentenceKind] = chain(kinds, repeat("statement"))
    for number, (sentence, kind) in enumerate(zip(sentences, of_sentences, strict=False)):
        text += joint if number else ""
        spans.append(Sentence(len(text), len(text) + len(sentence), heading, anchor, page, kind))
        text += sentence
    fields: dict[str, Any] = {
        "chunk_id": "chunk", "book_id": "book", "parent_document_id": "document", "filename": "07-walking.md",
        "chapter": "Walking", "section": "Balance", "chunk_index": 0, "start_page": "walking",
        "end_page": "walking", "start_sentence": 0, "end_sentence": len(sentences) - 1,
        "url": "/docs/walking", "content_hash": "hash",
    }  # fmt: skip
    return Passage(text=text, sentences=tuple(spans), **fields | about)


def evidence(*sentences: str, score: float = 0.9, **about: Any) -> RetrievedPassage:
    """A passage of these sentences that was found with this score."""
    found = passage(*sentences, **about)
    return RetrievedPassage(
        found, Candidate(found.chunk_id, score, score, score, score, score, score, score, None)
    )


def citation(found: list[RetrievedPassage], passage: int, start: int, end: int) -> Citation:
    """A true citation of these sentences."""
    cited = found[passage].passage
    return Citation(passage, start, end, "".join(map(cited.sentence_text, range(start, end))))


def claim(*citations: Citation, text: str = "A robot moves.") -> Claim:
    return Claim(text, citations)


def draft(*claims: Claim, complete: bool = True, stop_reason: str | None = None) -> Draft:
    return Draft("tests", list(claims), complete, stop_reason=stop_reason)


def piece(text: str, block: int = 0, kind: Kind = "prose", **about: Any) -> Piece:
    """A sentence of a page."""
    fields = {"heading": "Balance", "anchor": "balance", "page": "walking"}
    return Piece(text, block, kind, **fields | about)


def document(*sections: tuple[str, Iterable[Piece | str]], **about: Any) -> Document:
    """A page of sections, each a heading and its sentences."""
    fields: dict[str, Any] = {
        "filename": "07-walking.md", "title": "Walking", "url": "/docs/walking", "sha256": "0",
    }  # fmt: skip
    made = [
        Section(heading, tuple(piece(item) if isinstance(item, str) else item for item in pieces))
        for heading, pieces in sections
    ]
    return Document(sections=tuple(made), **fields | about)


texts = st.text(st.characters(codec="utf-8"))
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def checksummed(body: str) -> str:
    """What a stranger who read the source can make."""
    return f"{body}{zlib.crc32(body.encode()):08x}"


def head(leaves: list[bytes]) -> bytes:
    """The definition once more, by another road: levels from below, where a node without a neighbour moves up as it is."""
    if not leaves:
        return sha256().digest()
    while len(leaves) > 1:
        paired = [
            sha256(b"\x01" + b"".join(pair)).digest() for pair in zip(leaves[::2], leaves[1::2], strict=False)
        ]
        leaves = paired + leaves[len(paired) * 2 :]
    return leaves[0]


STRANGE = f"aff_0123456789_{'0' * 72}"
