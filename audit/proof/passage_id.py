"""The id of a passage: a hash of all that is stored of it, so that a changed passage is known by its id. Pure."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

COVERED = (
    "book_id", "filename", "url", "chapter", "section", "chunk_index", "text", "sentences", "start_sentence",
    "module", "difficulty", "tags",
)  # fmt: skip
DERIVED = ("chunk_id", "parent_document_id", "start_page", "end_page", "end_sentence", "content_hash")

_encode = json.JSONEncoder(ensure_ascii=False).encode


def derived(covered: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the rest of a passage: its id, and the columns that repeat a part of it."""
    content = _digest(covered["chapter"], covered["section"], covered["chunk_index"], covered["text"])
    sentences = covered["sentences"]
    return {
        "chunk_id": _id(covered, content, [_without_usual_kind(sentence) for sentence in sentences]),
        "parent_document_id": _digest(covered["book_id"], covered["filename"]),
        "start_page": sentences[0][4],
        "end_page": sentences[-1][4],
        "end_sentence": covered["start_sentence"] + len(sentences) - 1,
        "content_hash": content,
    }


def is_as_ingested(stored: Mapping[str, Any]) -> bool:
    """Whether the id follows from the passage, and the columns that repeat a part of it do.

    An old id is known by its fit: of before kinds were stored, which equals today's, or with the usual kind written out.
    """
    try:
        wanted = derived(stored)
        if wanted["chunk_id"] != stored["chunk_id"]:
            wanted["chunk_id"] = _id(stored, wanted["content_hash"], stored["sentences"])
    except (KeyError, IndexError, TypeError, ValueError):
        return False  # not even of a passage's form
    return all(stored[name] == value for name, value in wanted.items())


def _id(covered: Mapping[str, Any], content_hash: str, sentences: Sequence[Any]) -> str:
    place = (covered["book_id"], covered["filename"], covered["url"])
    about = (covered["module"], covered["difficulty"], covered["tags"])
    return _digest(*place, content_hash, covered["start_sentence"], sentences, about)


def _without_usual_kind(sentence: Sequence[Any]) -> Sequence[Any]:
    return sentence[:5] if list(sentence[5:]) == ["statement"] else sentence


def _digest(*parts: object) -> str:
    return sha256(_encode(parts).encode()).hexdigest()
