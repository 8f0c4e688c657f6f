"""Sentence splitter: a chain of rules around the Punkt algorithm, deterministic for ever. Pure.

Punkt's parameters are fixed here, because trained parameters would change with their corpus, and a sentence that changes
breaks every citation of it. The rules replace the training: the first with an answer decides, and Punkt decides the rest.
"""
# ruff: noqa: RUF001 - the patterns look for quotes, dashes and full-width punctuation

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

from ingest import word_lists

_OPENING = r"""["'“”„‚‘’«»‹›()\[{<*_`#¿¡「『（【《]"""
_EMOJI = r"[\u203c\u2049\u2600-\u2604\u2611-\u26a0\u26a2-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
_BEFORE_TEXT = "⚠ℹ👉➡💡📝📌🚨⛔🚫🔒🔧🛠📦📢📣❗❓"  # these emoji belong to the text after them

_STOP = re.compile(
    rf"""
    (?P<mark>\.(?:[ \u00a0]\.){{2,}}+|[.!?…‼⁇⁈⁉؟۔।॥։።။．。！？｡]++)
    (?P<closing>(?:["'”’“»«›‹)\]}}」』）】》〉*_~\u200b\ufeff]|[ \u00a0\u202f][»›](?=[\s.,;:)]|\Z))*+)
    (?:                                                        # footnote marks and references
        \[\^?\d{{1,4}}(?:[,–-][ ]?\d{{1,4}})*\]
      | [⁰¹²³⁴⁵⁶⁷⁸⁹†‡]
      | [ ]\[\d{{1,4}}(?:[,–-][ ]?\d{{1,4}})*\](?=\s{{1,3}}[^\W\d_a-z]|\s?\Z)
    )*+
    (?P<cheer>(?:\s{{0,2}}(?:
        (?![{_BEFORE_TEXT}]){_EMOJI}[\ufe0e\ufe0f\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*+
      | [:;]-?[()DP](?!\w)|<3(?!\w)
    ))*+)
    """,
    re.VERBOSE,
)
_VISIBLE = re.compile(r"\S")
_LETTER = re.compile(r"[^\W_]")
_UP_TO_LAST_LETTER = re.compile(r".*[^\W_]", re.DOTALL)
_BULLET = re.compile(_EMOJI)
_BETWEEN_WORDS = re.compile(r"""[\s—–/(\[{"“”„«»‘*_`<>#]+""")
_FOLLOWING = re.compile(rf"(?:{_OPENING}\s?)*+(?P<token>\S*)")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_NO_SPACE_NEEDED = "。！？｡।॥۔"

_SINGLE = re.compile(r"[^\W\d_]")
_DOTTED = re.compile(r"(?:[^\W\d_]\.-?)+[^\W\d_]")
_INITIAL = re.compile(r"[^\W\d_]\.")
_NAME = re.compile(r"[^\W\d_][^\W\d_'’.-]*(?:['’.-][^\W\d_]+)*")
_COUNTER = re.compile(r"\d{1,3}(?:\.\d{1,3})*|[^\W\d_]|[ivx]{1,5}|[IVX]{1,5}")
_FIRST_COUNTER = re.compile(r"[1aAiI]")
_LATER_COUNTER = re.compile(r"\d{1,2}|[a-zA-Z]|[ivx]{1,4}")
_NUMBER = re.compile(r"[A-Z]?\.?\d|[A-Z]\b|[IVXLC]+\b|[a-z]\b")
_DIGIT = re.compile(r"[A-Z]?\d")
_QUANTITY = re.compile(r"[~<>≈±+-]?\d[\d.,]*")
_UNPRONOUNCEABLE = re.compile(r"[b-df-hj-np-tv-xz]{2,5}", re.IGNORECASE)
_IDENTIFIER = re.compile(r".*(?:[A-Z0-9_(@]|[./:=]\w).*")

_WINDOW = 80  # characters of context on each side of a stop: the limit keeps the time linear
_INSET_CHARACTERS_MAX = 300  # a bracket or quotation that closes later was probably left open by mistake


@dataclass(frozen=True, slots=True)
class _Stop:
    """One place where a sentence may end, and its context."""

    mark: str
    closing: str
    word: str
    previous: str
    is_first: bool
    is_inset: bool
    starts_in_bracket: bool
    following: str
    token: str

    @property
    def key(self) -> str:
        """The word as it is in the word lists, which do not mean acronyms such as EST and SEC."""
        is_acronym = self.word.isupper() and self.word.isalpha() and len(self.word) > 1
        return self.word if is_acronym else self.word.lower()

    @property
    def is_before_starter(self) -> bool:
        return self.token[:1].isupper() and self.token.lower() in word_lists.STARTERS

    @property
    def is_before_lowercase(self) -> bool:
        """Whether a lower-case word follows that is not an identifier such as iOS, ros2_control or f(x)."""
        return self.token[:1].islower() and not _IDENTIFIER.fullmatch(self.token)

    @property
    def is_quantity(self) -> bool:
        return _QUANTITY.fullmatch(self.previous) is not None


def spans(text: str) -> Iterator[tuple[int, int]]:
    """The start and end of each sentence of a paragraph, without surrounding white space."""
    visible = _VISIBLE.search(text)
    if visible is None:
        return
    start, insets = visible.start(), _Insets(text)
    letter, rest = _position(_LETTER, text, start), _UP_TO_LAST_LETTER.match(text)
    last_letter = rest.end() - 1 if rest else -1
    for match in _STOP.finditer(text):
        end = _end(text, match, start)
        following = _position(_VISIBLE, text, end)
        if match.start() < letter or following > last_letter or not _may_end(text, match, end, following):
            continue  # a sentence has a letter or a digit
        if not insets.contain(match, letter) and _ends(_stop(text, match, start, following)):
            yield start, end
            start, letter = following, _position(_LETTER, text, following)
    yield start, len(text.rstrip())


def _end(text: str, match: re.Match[str], start: int) -> int:
    """An emoji belongs to the sentence before it, unless it is the bullet of the next item."""
    is_bullet = match["cheer"][:1].isspace() and _BULLET.match(text, start)
    return match.start("cheer") if is_bullet else match.end()


def _position(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.search(text, start)
    return found.start() if found else len(text)


def _may_end(text: str, match: re.Match[str], end: int, following: int) -> bool:
    """A stop inside a word, number or address ends no sentence. Only stops of scripts without capitals need no space after it."""
    if following > end:
        return True
    if match["mark"][-1] in _NO_SPACE_NEEDED:
        return True
    return match["mark"][-1] in "!?" and _WIDE.match(text, following) is not None


def _stop(text: str, match: re.Match[str], start: int, following: int) -> _Stop:
    begin = max(start, match.start() - _WINDOW)
    before = text[begin : match.start()]
    words = _BETWEEN_WORDS.split(before)
    word, previous = words[-1].strip("'’,"), words[-2] if len(words) > 1 else ""
    if _INITIAL.fullmatch(previous) and (
        _SINGLE.fullmatch(word) or previous + word in word_lists.INTRODUCING
    ):
        word = previous + word  # "z. B." is "z.B."
    after = text[following : following + _WINDOW]
    token = _FOLLOWING.match(after)
    return _Stop(
        mark=match["mark"],
        closing=match["closing"],
        word=word,
        previous=previous,
        is_first=begin == start and not previous,
        is_inset=before[-1:] in "([{" and match["closing"][:1] in tuple(")]}"),
        starts_in_bracket=text[start] in "([{",
        following=after,
        token=token["token"].rstrip(".,;:!?)]}\"'”’*_") if token else "",
    )


class _Insets:
    """Brackets, quotations and code inside a sentence: a stop inside them does not end the sentence."""

    def __init__(self, text: str) -> None:
        self._pairs = sorted(_pairs(text))
        self._next = 0
        self._end = 0
        self._code_end = 0

    def contain(self, match: re.Match[str], letter: int) -> bool:
        """Whether an inset after the first letter of the sentence contains the stop. Call it with rising stops."""
        while self._next < len(self._pairs) and self._pairs[self._next][0] < match.start():
            begin, end, is_code = self._pairs[self._next]
            self._next += 1
            if is_code:
                self._code_end = max(self._code_end, end)
            elif begin > letter:
                self._end = max(self._end, end)
        return match.start() < self._code_end or match.end() <= self._end


_EDGE = re.compile(r"""`+|[()\[\]{}“”„«»「」『』（）《》【】]|(?:(?<=[\s(\[—–])|(?<!.))"(?=\S)|\"""")
_CLOSES = {
    ")": "(", "]": "[", "}": "{", "”": "“", "»": "«", "」": "「", "』": "『", "）": "（", "》": "《", "】": "【",
}  # fmt: skip


def _pairs(text: str) -> Iterator[tuple[int, int, bool]]:
    """The positions where brackets, quotations and code open and close, and whether it is code."""
    opened: dict[str, list[int]] = {}
    for match in _EDGE.finditer(text):
        edge, position = match[0], match.start()
        opening = _opening(edge, opened)
        waiting = opened.get(opening)
        if waiting and (edge in _CLOSES or edge in {opening, "“"}):
            begin = waiting.pop()
            if position - begin <= _INSET_CHARACTERS_MAX:
                yield begin, position, edge[0] == "`"
        else:
            opened.setdefault(edge, []).append(position)


def _opening(edge: str, opened: dict[str, list[int]]) -> str:
    """The sign that this one closes, if any. A German quotation ends with the sign that opens an English one."""
    if edge in "“”" and opened.get("„"):
        return "„"
    if edge == "«" and opened.get("»"):
        return "»"
    if edge == '"' or edge[0] == "`":
        return edge
    return _CLOSES.get(edge, "")


def _ends(stop: _Stop) -> bool:
    for rule in _RULES:
        answer = rule(stop)
        if answer is not None:
            return answer
    word = "u.s" if _DOTTED.fullmatch(stop.word) else stop.word
    return _punkt_ends(word[-_WINDOW:], re.split(r"\W", stop.token, maxsplit=1)[0] or stop.following[:1])


def _continuation(stop: _Stop) -> bool | None:
    """A comma, a closing bracket or an equals sign never begins a sentence; a mark alone in brackets, "(!)", ends none."""
    smiles = re.match(r"[:;]-?[()DP]", stop.following)
    return False if stop.is_inset or (stop.following[0] in ",;:)]}=≤≥≈≠，、；：" and not smiles) else None


def _cjk_stop(stop: _Stop) -> bool | None:
    """Chinese, Japanese, Hindi and Urdu stops belong to no abbreviation; a quoting particle continues the sentence."""
    if stop.mark[-1] not in _NO_SPACE_NEEDED:
        return None
    return not (stop.closing and stop.following[0] in "とっ")


def _ellipsis(stop: _Stop) -> bool | None:
    """An ellipsis ends a sentence before a capital, but not inside an enumeration ("x1, ..., Xn")."""
    if not re.fullmatch(r"…+|\.[. \u00a0]*\.", stop.mark):
        return None
    return not (stop.token[:1].islower() or stop.token[:1].isdigit() or stop.previous.endswith(","))


def _question_or_exclamation(stop: _Stop) -> bool | None:
    """After "?" or "!" a lower-case letter may begin a sentence ("numpy does."), but not after a quotation ("Stop!" she
    said), with a word that needs something before it (Yahoo! is), or after a factorial (n! grows)."""
    if stop.mark[-1] == ".":
        return None
    is_factorial = stop.mark == "!" and not _LETTER.search(stop.word[1:])
    return not (
        stop.is_before_lowercase and (stop.closing or stop.token in word_lists.NEEDS_MORE or is_factorial)
    )


def _list_number(stop: _Stop) -> bool | None:
    """ "1. Open it. 2. Close it." and "Steps: 1. Open it; 2. Close it." """
    is_counter = (
        (stop.is_first and _COUNTER.fullmatch(stop.word))
        or (stop.previous.endswith(":") and _FIRST_COUNTER.fullmatch(stop.word))
        or (stop.previous.endswith(";") and _LATER_COUNTER.fullmatch(stop.word))
    )
    return False if is_counter and not stop.closing else None


def _introduction(stop: _Stop) -> bool | None:
    if stop.key in word_lists.INTRODUCING:
        return False
    is_at_end = stop.is_before_starter and len(stop.token) > 1  # "in Ocean Dr. They"
    return False if stop.word in word_lists.TITLES and not is_at_end else None


def _reference_number(stop: _Stop) -> bool | None:
    if stop.is_quantity:
        return None  # "5 sec. 3 robots"
    key = stop.word.lower()
    if key in word_lists.NUMBERED or stop.word in word_lists.NUMBERED_IF_CAPITAL:
        return False if _NUMBER.match(stop.token) else None
    if key in word_lists.REVISIONS and re.fullmatch(r"[B-Z]", stop.token):
        return False  # "rev. B", but "the rev. A new one"
    return False if key in word_lists.NUMBERED_BY_DIGIT and _DIGIT.match(stop.token) else None


def _single_letter(stop: _Stop) -> bool | None:
    """A single letter is either the initial of a name, "J. Smith", or a label, "the matrix A. Robots"."""
    if not _SINGLE.fullmatch(stop.word):
        return None
    if re.match(r"(?:[^\W\d_]|[a-zà-ÿ]{2,3})\.(?:[\s-]|\Z)", stop.following):
        return False  # "J. R. Smith", "p. ex. Linux"
    if stop.is_before_lowercase:  # "J. von Neumann"
        return False if stop.word.isupper() and stop.token in word_lists.PARTICLES else None
    is_label = stop.word.islower() or stop.is_quantity or stop.previous.lower() in word_lists.LABELLED
    is_name = _NAME.fullmatch(stop.token) and (
        not stop.is_before_starter or stop.token.lower() in word_lists.PARTICLES
    )
    return True if is_label or not is_name else None


def _clipping(stop: _Stop) -> bool | None:
    if stop.key not in word_lists.CLIPPED or (stop.key == "min" and not stop.is_quantity):
        return None
    if stop.closing[:1] in tuple(")]}") and not stop.starts_in_bracket:
        return False
    if stop.key in {"a.m", "p.m"} and stop.token.lower() in word_lists.AFTER_CLOCK:
        return False
    if not stop.is_before_lowercase:
        return True
    return not (stop.token in word_lists.NEEDS_MORE or stop.key not in {"no", "p", "in"} or stop.is_quantity)


def _abbreviation(stop: _Stop) -> bool | None:
    """The stop of an abbreviation that ends a bracket belongs to the abbreviation."""
    known = stop.key in word_lists.ABBREVIATIONS or _DOTTED.fullmatch(stop.word)
    goes_on = stop.is_before_lowercase or (stop.closing[:1] == ")" and not stop.starts_in_bracket)
    return False if known and goes_on else None


def _name(stop: _Stop) -> bool | None:
    """A capital begins a sentence after "et al.", but continues the name of a journal."""
    if not stop.token[:1].isupper():
        return None
    if stop.key in word_lists.LAST_OF_PHRASE:
        return True
    return False if stop.word in word_lists.OF_NAMES and not stop.is_before_starter else None


def _acronym(stop: _Stop) -> bool | None:
    """Punkt ignores case: it would take EST for "est."."""
    return True if stop.word.lower() in word_lists.ABBREVIATIONS and stop.key != stop.word.lower() else None


def _ordinal(stop: _Stop) -> bool | None:
    if not re.fullmatch(r"\d{1,3}", stop.word):
        return None
    previous = stop.previous.lower()
    likely = previous in word_lists.ORDINAL or (
        previous in word_lists.ORDINAL_LIKELY and not stop.is_before_starter
    )
    return False if likely and stop.token[:1].isalpha() else None


def _lowercase_start(stop: _Stop) -> bool | None:
    """A lower-case letter begins a sentence ("numpy is fast.") unless the stop looks like an abbreviation's."""
    if not stop.is_before_lowercase:
        return None
    likely = _UNPRONOUNCEABLE.fullmatch(stop.word) and not stop.word.isupper()
    return not (likely or stop.closing.strip("*_~") or stop.token in word_lists.NEEDS_MORE)


_RULES: tuple[Callable[[_Stop], bool | None], ...] = (
    _continuation, _cjk_stop, _ellipsis, _question_or_exclamation, _list_number, _ordinal, _introduction,
    _reference_number, _single_letter, _clipping, _abbreviation, _lowercase_start, _name, _acronym,
)  # fmt: skip


_PARAMETERS = PunktParameters()
_PARAMETERS.abbrev_types = set(word_lists.ABBREVIATIONS)
_PARAMETERS.sent_starters = set(word_lists.STARTERS)
_punkt = PunktSentenceTokenizer(_PARAMETERS)


@lru_cache(maxsize=4096)
def _punkt_ends(word: str, following: str) -> bool:
    return bool(_punkt.text_contains_sentbreak(f"{word}. {following}"))
