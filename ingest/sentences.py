"""Prose to sentences, the same for the same bytes for ever. Pure.

Punkt's algorithm with fixed parameters: parameters trained on a corpus would move with it, and a sentence that moves
breaks every citation of it. Around Punkt stand the rules it cannot know without training; the first that has an
answer decides, and Punkt decides about the rest.
"""
# ruff: noqa: RUF001 - quotes, dashes and full-width marks are what is looked for

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Always mid-sentence: something has to follow.
_INTRODUCING = _words(
    "e.g i.e eg cf vs viz approx ca esp incl excl resp aka a.k.a w.r.t z.b d.h u.a bzw ggf vgl inkl p.ex op"
)
_TITLES = _words("Dr Drs Mr Mrs Ms Mx Prof Gen Col Capt Lt Sgt Rev Sen Rep Gov Hon Messrs Mme Mlle Hr Fr")

# Mid-sentence before a number or a letter: "Fig. 3", "Eq. (2)", "Figs. A and B". What is also an English word needs
# more: a digit ("no. 5"), or a capital of its own ("App. B").
_NUMBERED = _words(
    "fig figs eq eqs eqn eqns secs sect sects ch chap vol vols pp thm lem alg refs nr abb kap §"
)
_NUMBERED_BY_DIGIT = _words("no nos sec p pg l ll n v ver vers c b d col cols par para pos ref tab rev ed")
_NUMBERED_IF_CAPITAL = _words("App Apps Tab Tabs Art Arts Def Defs Prop Props Cor Ex Exs Ref Pt Sec Ch Alg")

# Mid-sentence before a small letter, at the end before a capital: "5 min. later", "arms, legs, etc. They".
_CLIPPED = _words(
    "etc usw a.m p.m sec secs min mins max avg hr hrs yr yrs wk wks mo mos ft in lb lbs oz gal deg temp freq "
    "coeff coord coords diam dia dim dims ext horiz vert qty misc orig alt cit ibid "
    "no p fig ex med equiv cont abbrev"
)
_AFTER_CLOCK = _words(
    "monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun january february march "
    "april may june july august september october november december utc gmt est edt cst cdt mst mdt pst pdt cet "
    "cest bst ist jst eastern central mountain pacific"
)

# Mid-sentence or at the end: Punkt decides by the word that follows.
_ABBREVIATIONS = _words(
    "al inc ltd co corp llc gmbh jr sr st ave blvd dept univ inst assoc assn bros intl natl govt proc conf symp "
    "trans lett phys chem biol comput technol syst jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu "
    "fri u.s u.k u.n e.u u.s.a d.c ph.d b.sc m.sc b.a m.a m.d b.c a.d est eds repr "
    "fig figs eq eqs eqn eqns sect sects vol vols pp thm lem"
)

# What begins a sentence wherever it has a capital, even after "U.S." or "the matrix A."
_STARTERS = _words(
    "the this that these those it its he she they we you i a an in on at for from with by to as if when while "
    "where after before since because although though however therefore thus hence then there here also moreover "
    "furthermore finally both each every all some most many several not only our their his her your my what why "
    "how who which is are does do can so but and or yet see use note let unlike despite during without within "
    "between until unless once another other otherwise instead"
)

# What, written small, needs something before it: no sentence starts with it.
_NEEDS_MORE = _words(
    "and or nor but of is are was were be been has have had can cannot could may might must shall should will would "
    "than that which whose by from with per via into to et und oder ist sind"
)

# A letter after one of these is a label, not the initial of a name: "Plan B. Robots"
_LABELLED = _words(
    "appendix array axis bit button case category channel class column condition constant curve drive edge event "
    "factor field figure frame function grade graph group hypothesis in item key language layer letter level line "
    "link list loop machine matrix mode model module node object operator option panel parameter part phase plan "
    "point port position process product programming quantity region register resistor row sample scenario section "
    "sequence server set signal site stage state step string switch symbol system table task team tensor term test "
    "thread type unit value variable vector version vertex vitamin zone = + - * / < > × ∈ ⊂ ≤ ≥ ≈ ≠ →"
)

_PARTICLES = _words("von van de del della der den di da do dos du el la le ten ter zu al bin ibn")

_OPENING = r"""["'“”„‚‘’«»‹›()\[{<*_`#¿¡「『（【《]"""
_EMOJI = r"[\u203c\u2049\u2600-\u2604\u2611-\u26a0\u26a2-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
_ANNOUNCING = "⚠ℹ👉➡💡📝📌🚨"  # these signs belong to what follows

_STOP = re.compile(
    rf"""
    (?P<mark>\.(?:[ \u00a0]\.){{2,}}+|[.!?…‼⁇⁈⁉؟۔।॥։።။．。！？｡]++)
    (?P<closing>(?:["'”’“»«›‹)\]}}」』）】》〉*_~\u200b\ufeff]|[ \u00a0\u202f][»›](?=[\s.,;:)]|\Z))*+)
    (?P<notes>                                                 # marks of notes and sources, cheers
        (?:
            \[\^?\d{{1,4}}(?:[,–-][ ]?\d{{1,4}})*\]
          | [⁰¹²³⁴⁵⁶⁷⁸⁹†‡]
          | [ ]\[\d{{1,4}}(?:[,–-][ ]?\d{{1,4}})*\](?=\s{{1,3}}[^\W\d_a-z]|\s?\Z)
        )*+
        (?:\s{{0,2}}(?:(?![{_ANNOUNCING}]){_EMOJI}[\ufe0e\ufe0f\u200d\U0001f3fb-\U0001f3ff]*+
          | [:;]-?[()DP](?!\w)))*+
    )
    """,
    re.VERBOSE,
)
_VISIBLE = re.compile(r"\S")
_LETTER = re.compile(r"[^\W_]")
_BETWEEN_WORDS = re.compile(r"""[\s—–/(\[{"“”„«»‘*_`<>#]+""")
_FOLLOWING = re.compile(rf"(?:{_OPENING}\s?)*+(?P<token>\S*)")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_NO_SPACE_NEEDED = "。！？｡"

_SINGLE = re.compile(r"[^\W\d_]")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
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

_WINDOW = 80
"""Characters looked at on each side of a stop: it keeps the time linear."""
_LONGEST_INSET = 300
"""A bracket or quotation that closes later than this was probably never meant to."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """One place where a sentence may end, and what stands around it."""

    mark: str
    closing: str
    word: str
    previous: str
    is_first: bool
    is_inset: bool
    starts_inset: bool
    following: str
    token: str

    @property
    def key(self) -> str:
        return self.word.lower()

    @property
    def before_small(self) -> bool:
        """Whether a small word follows that is no identifier: no iOS, no ros2_control, no f(x)."""
        return self.token[:1].islower() and not _IDENTIFIER.fullmatch(self.token)

    @property
    def is_quantity(self) -> bool:
        return _QUANTITY.fullmatch(self.previous) is not None


def spans(text: str) -> Iterator[tuple[int, int]]:
    """Where each sentence of a paragraph starts and ends, without the space around it."""
    visible = _VISIBLE.search(text)
    if visible is None:
        return
    start, insets = visible.start(), _Insets(text)
    letter = _position(_LETTER, text, start)
    for match in _STOP.finditer(text):
        following = _position(_VISIBLE, text, match.end())
        if letter > match.start() or not _may_end(text, match, following) or insets.around(match, letter):
            continue
        if _ends(_seen(text, match, start, following)):
            yield start, match.end()
            start, letter = following, _position(_LETTER, text, following)
    yield start, len(text.rstrip())


def _position(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.search(text, start)
    return found.start() if found else len(text)


def _may_end(text: str, match: re.Match[str], following: int) -> bool:
    """A stop inside a word, a number or an address ends nothing; only Chinese and Japanese need no space."""
    if following == len(text) or following > match.end():
        return following < len(text)
    if match["mark"][-1] in _NO_SPACE_NEEDED:
        return True
    return match["mark"][-1] in "!?" and _WIDE.match(text, following) is not None


def _seen(text: str, match: re.Match[str], start: int, following: int) -> _Stop:
    begin = max(start, match.start() - _WINDOW)
    before = text[begin : match.start()]
    words = _BETWEEN_WORDS.split(before)
    word, previous = words[-1].strip("'’,"), words[-2] if len(words) > 1 else ""
    if _INITIAL.fullmatch(previous) and _SINGLE.fullmatch(word):
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
        starts_inset=text[start] in "([{",
        following=after,
        token=token["token"].rstrip(".,;:!?)]}\"'”’*_") if token else "",
    )


class _Insets:
    """Brackets, quotations and code inside a sentence: a stop in them does not end the sentence around them."""

    def __init__(self, text: str) -> None:
        self._pairs = sorted(_pairs(text))
        self._next = 0
        self._end = 0
        self._code_end = 0

    def around(self, match: re.Match[str], letter: int) -> bool:
        """Whether the stop stands in an inset that was opened behind the first letter of the sentence."""
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
    """Where brackets, quotations and code open and close, and whether it is code."""
    opened: dict[str, list[int]] = {}
    for match in _EDGE.finditer(text):
        edge, position = match[0], match.start()
        opening = _opening(edge, opened)
        waiting = opened.get(opening)
        if waiting and (edge in _CLOSES or edge in {opening, "“"}):
            begin = waiting.pop()
            if position - begin <= _LONGEST_INSET:
                yield begin, position, edge[0] == "`"
        else:
            opened.setdefault(edge, []).append(position)


def _opening(edge: str, opened: dict[str, list[int]]) -> str:
    """What this edge closes, if it closes anything: a German quotation closes with what opens an English one."""
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


def _goes_on(stop: _Stop) -> bool | None:
    """A comma, a closing bracket or a sign of equality never begins a sentence; a mark alone in brackets, "(!)", never
    ends one."""
    smiles = re.match(r"[:;]-?[()DP]", stop.following)
    return False if stop.is_inset or (stop.following[0] in ",;:)]}=≤≥≈≠，、；：" and not smiles) else None


def _wide(stop: _Stop) -> bool | None:
    """Chinese and Japanese stops are never abbreviations; a quoting particle goes on."""
    if stop.mark[-1] not in _NO_SPACE_NEEDED:
        return None
    return not (stop.closing and stop.following[0] in "とっ")


def _omitted(stop: _Stop) -> bool | None:
    if not re.fullmatch(r"…+|\.[. \u00a0]*\.", stop.mark):
        return None
    return not (stop.token[:1].islower() or stop.token[:1].isdigit() or stop.previous.endswith(","))


def _asked(stop: _Stop) -> bool | None:
    """After a question or a shout a small letter may begin a sentence ("numpy does."), but not behind a quotation
    ("Stop!" she said), with a word that needs more (Yahoo! is) or behind a factorial (n! grows)."""
    if stop.mark[-1] == ".":
        return None
    is_factorial = stop.mark == "!" and not _LETTER.search(stop.word[1:])
    return not (stop.before_small and (stop.closing or stop.token in _NEEDS_MORE or is_factorial))


def _counted(stop: _Stop) -> bool | None:
    """ "1. Open it. 2. Close it." and "Steps: 1. Open it; 2. Close it." """
    is_counter = (
        (stop.is_first and _COUNTER.fullmatch(stop.word))
        or (stop.previous.endswith(":") and _FIRST_COUNTER.fullmatch(stop.word))
        or (stop.previous.endswith(";") and _LATER_COUNTER.fullmatch(stop.word))
    )
    return False if is_counter and not stop.closing else None


def _introduced(stop: _Stop) -> bool | None:
    known = stop.key in _INTRODUCING or stop.word in _TITLES
    return False if known and not stop.is_quantity else None  # "5 ms." is no title


def _numbered(stop: _Stop) -> bool | None:
    if stop.is_quantity:
        return None  # "5 sec. 3 robots"
    if stop.key in _NUMBERED or stop.word in _NUMBERED_IF_CAPITAL:
        return False if _NUMBER.match(stop.token) else None
    return False if stop.key in _NUMBERED_BY_DIGIT and _DIGIT.match(stop.token) else None


def _lettered(stop: _Stop) -> bool | None:
    """A single letter is the initial of a name, or a label: "J. Smith", "the matrix A. Robots"."""
    if not _SINGLE.fullmatch(stop.word):
        return None
    if re.match(r"[^\W\d_]\.(?:\s|\Z)", stop.following):
        return False  # "J. R. Smith"
    if stop.before_small:
        return False if stop.word.isupper() and stop.token in _PARTICLES else None  # "J. von Neumann"
    is_label = stop.word.islower() or stop.is_quantity or stop.previous.lower() in _LABELLED
    is_name = _NAME.fullmatch(stop.token) and stop.token.lower() not in _STARTERS
    return True if is_label or not is_name else None


def _clipped(stop: _Stop) -> bool | None:
    if stop.key not in _CLIPPED:
        return None
    if stop.closing[:1] in tuple(")]}") and not stop.starts_inset:
        return False
    if stop.key in {"a.m", "p.m"} and stop.token.lower() in _AFTER_CLOCK:
        return False
    if stop.before_small:
        return not (stop.token in _NEEDS_MORE or stop.key not in {"no", "p", "in"} or stop.is_quantity)
    return True if stop.is_quantity or not stop.token[:1].isdigit() else stop.key not in {"max", "min", "avg"}


def _abbreviated(stop: _Stop) -> bool | None:
    """The stop of an abbreviation that ends a bracket belongs to the abbreviation."""
    known = stop.key in _ABBREVIATIONS or _DOTTED.fullmatch(stop.word)
    return (
        False
        if known and (stop.before_small or (stop.closing[:1] == ")" and not stop.starts_inset))
        else None
    )


def _small(stop: _Stop) -> bool | None:
    """A small letter begins a sentence ("numpy is fast.") unless the stop is likely that of an abbreviation."""
    if not stop.before_small:
        return None
    likely = _UNPRONOUNCEABLE.fullmatch(stop.word) and not stop.word.isupper()
    return not (likely or stop.closing.strip("*_~") or stop.token in _NEEDS_MORE)


_RULES: tuple[Callable[[_Stop], bool | None], ...] = (
    _goes_on, _wide, _omitted, _asked, _counted, _introduced, _numbered, _lettered, _clipped, _abbreviated, _small,
)  # fmt: skip


def _tokenizer() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    parameters.sent_starters = set(_STARTERS)
    return PunktSentenceTokenizer(parameters)


_punkt = _tokenizer()


@lru_cache(maxsize=4096)
def _punkt_ends(word: str, following: str) -> bool:
    return bool(_punkt.text_contains_sentbreak(f"{word}. {following}"))
