"""Classifies the pieces of a section: what states something, and what never answers a question. Pure.

The kind is decided once, by the form of the text, by its heading and by its neighbours, and is stored with each sentence.
"""
# ruff: noqa: RUF001 - the patterns look for quotes, dashes and full-width punctuation

import re
from collections.abc import Callable, Sequence

from engine.models import SentenceKind
from engine.words.languages import count_words
from ingest.read.document import Piece

LABEL_WORDS_MAX = 8  # a paragraph of so few words without a stop is a title
NAVIGATION_WORDS_MAX = 15  # a longer sentence that begins like a link says something besides


def kinds(pieces: Sequence[Piece], title: str) -> list[SentenceKind]:
    """The kind of each piece of a section, in order. The title of the page is a heading of all its lists."""
    return [
        _table_kind(pieces, number) if piece.kind == "table" else _kind(piece, title)
        for number, piece in enumerate(pieces)
    ]


_QUESTION = re.compile(r"[?？؟][\"'”’»)\]*_]*\Z")
_CAPTION = re.compile(
    r"(?:figure|fig\.|table|listing|diagram|image)\s*\d+(?:[.-]\d+)*+\s*[:.–—-](?:\s|\Z)", re.IGNORECASE
)
_COMPLETE = re.compile(r"[.!?:;…。！？।۔؟][\"'”’»)\]*_]*\Z")

_NAMED_FACT = re.compile(r"\D{2,40}:\s")  # "Cause: the wrong folder", but not "Step 3: Verify it"

_OBJECTIVE = re.compile(
    r"(?:by the end of|after (?:completing|finishing|reading|working through)) (?:this|the) "
    r"(?:\w+ )?(?:chapter|lesson|module|section|unit|course|tutorial|part|guide|book),? you(?:'ll|’ll| will| should)\b"
    r"|in this (?:chapter|lesson|module|section|unit|course|tutorial|part|guide),? (?:you|we)(?:'ll|’ll| will| are going to)"
    r" (?:learn|be able|explore|discover|look at|cover|study)\b"
    r"|you(?:'ll|’ll| will) (?:learn|be able|explore|discover)\b",
    re.IGNORECASE,
)
_OBJECTIVES_HEADING = re.compile(
    r"\A\W*(?:(?:key |main )?(?:learning|course|lesson|chapter) )?(?:objectives|outcomes|learning goals)\W*\Z"
    r"|\bwhat (?:you|we)(?:'ll|’ll| will) (?:learn|build|cover)\b",
    re.IGNORECASE,
)
_EXERCISE = re.compile(
    r"(?:explain|describe|discuss|justify|reflect on|compare and contrast|summari[sz]e|sketch|derive) (?:the|how|why|what|in|your)\b"
    r"(?!.*\b(?:because|so that|then|with)\b)|(?:list|name) (?:two|three|four|five|at least|the (?:two|three|four|five|main))\b"
    r"|exercise\s*\d+(?:[.-]\d+)*\s*[:.–—-]",
    re.IGNORECASE,
)
_EXERCISES_HEADING = re.compile(
    r"\b(?:exercises?|quiz|(?:review|discussion|practice|comprehension|self-test) questions?|practice problems?|homework"
    r"|extension ideas?|try it yourself|your turn)\b",
    re.IGNORECASE,
)
_NAVIGATION = re.compile(
    r"[←→«»⟵⟶]|(?:next|previous|up next|continue (?:to|with)|back to|see also|related|read more|jump to)\s*:"
    r"|(?:back to (?:top|the top|contents)|click here|read more(?! than)|see also)\b",
    re.IGNORECASE,
)
_NAVIGATION_HEADING = re.compile(
    r"\A\W*(?:(?:table of )?contents|quick (?:navigation|links)|next (?:lesson|chapter|module|section|week)\b.*"
    r"|on this page|see also|related (?:pages|topics|links|lessons))\W*\Z",
    re.IGNORECASE,
)
_REFERENCES_HEADING = re.compile(
    r"\A\W*(?:references|bibliography|works cited|further reading|recommended reading|(?:external |useful )?links"
    r"|(?:additional |external |learning |further )?resources)\W*\Z",
    re.IGNORECASE,
)
_REFERENCE = re.compile(
    r"(?:\[\d{1,3}\]\s*)?(?:https?://\S+\s*\Z|[^\W\d_]\S+,\s+(?:[A-Z]\.[ -]?)+,?.{0,120}\(\d{4}\))"
)


def _table_kind(pieces: Sequence[Piece], number: int) -> SentenceKind:
    """The first of several rows is the header."""
    block = pieces[number].block
    is_first = number == 0 or pieces[number - 1].block != block
    is_last = number + 1 == len(pieces) or pieces[number + 1].block != block
    if is_first and is_last:
        return "statement"  # without columns, and never a row of the table before
    return "header" if is_first else "row"


def _kind(piece: Piece, title: str) -> SentenceKind:
    if piece.kind == "code":
        return "code"
    return _never_an_answer(piece, title) or _statement(piece)


def _never_an_answer(piece: Piece, title: str) -> SentenceKind | None:
    return next((kind for kind, is_of in _RULES if is_of(piece, title)), None)


def _is_question(piece: Piece, _: str) -> bool:
    return _QUESTION.search(piece.text.strip()) is not None


def _is_objective(piece: Piece, _: str) -> bool:
    return bool(_OBJECTIVES_HEADING.search(piece.heading) or _OBJECTIVE.match(piece.text))


def _is_exercise(piece: Piece, _: str) -> bool:
    is_listed = _EXERCISES_HEADING.search(piece.heading) and piece.kind == "list"
    return bool(is_listed or _EXERCISE.match(piece.text))


def _is_navigation(piece: Piece, _: str) -> bool:
    is_short = piece.kind == "prose" and count_words(piece.text) <= NAVIGATION_WORDS_MAX
    return bool(_NAVIGATION_HEADING.match(piece.heading) or (is_short and _NAVIGATION.match(piece.text)))


def _is_reference(piece: Piece, title: str) -> bool:
    is_listed = piece.kind == "list" and any(map(_REFERENCES_HEADING.match, (piece.heading, title)))
    return bool(is_listed or _REFERENCE.match(piece.text))


def _is_caption(piece: Piece, _: str) -> bool:
    return _CAPTION.match(piece.text) is not None


def _is_label(piece: Piece, _: str) -> bool:
    text = piece.text.strip()
    is_title = piece.kind == "prose" and not _COMPLETE.search(text) and not _NAMED_FACT.match(text)
    return is_title and count_words(text) <= LABEL_WORDS_MAX


_RULES: Sequence[tuple[SentenceKind, Callable[[Piece, str], bool]]] = (
    ("question", _is_question),
    ("objective", _is_objective),
    ("exercise", _is_exercise),
    ("navigation", _is_navigation),
    ("reference", _is_reference),
    ("caption", _is_caption),
    ("label", _is_label),
)


def _statement(piece: Piece) -> SentenceKind:
    if piece.text.rstrip().endswith((":", "：")):
        return "lead_in"
    return "item" if piece.kind == "list" else "statement"
