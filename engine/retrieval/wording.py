"""How a question is searched: with its spelling corrected, and clause by clause if it is long and polite. Pure."""

import re
from collections.abc import Callable, Iterator

from engine.models import Lexicon, Wording
from engine.retrieval import lexical

LONG_WORDS = 20  # a shorter question is one question
CLAUSES_MAX = 3
CORRECTED_LENGTH_MIN = 5  # a shorter word is one edit away from too many others
KEYWORDS_MIN, KEYWORDS_MAX = 2, 3  # one word proves nothing, and more are scored like a question
FOLLOW_UP_WORDS_MAX = 3  # a longer question can stand alone
RARE_LENGTH_MIN = 7  # of a correction that only the book knows

_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?]+(?=\S)[^.!?\n]*)*[.!?]*")
_COURTESY = re.compile(
    r"\W*(?:(?:hi|hello|hey|dear [\w ]{1,30}|good (?:morning|afternoon|evening)|please|kindly|thanks?(?: you)?|so|and|but|well|ok(?:ay)?)\b[\s,:;!-]*"
    r"|(?:could|can|would|will) (?:you|anybody|someone) (?:(?:please|kindly|perhaps|maybe|possibly) )*(?:tell|explain|show|let)"
    r" (?:to )?(?:me|us)(?: know)?(?: please)?,? (?:(?:whether|if) )?"
    r"|(?:i(?:'d| would)? (?:like|love|want|need) to (?:know|ask|understand)|i(?:'m| am)? (?:just )?wonder(?:ing)?|do you know|tell me|may i ask|my question is)[\s,:]*(?:(?:whether|if) )?)",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"(?:in |on |at |by |for |to |from |with |until )?(?:who|what|which|when|where|why|how|whose)\b"
    r"|(?:is|are|was|were|do|does|did|can|could|should|must|may|will|would|has|have)\b"
    r"|(?:explain|describe|compare|define|summari[sz]e|show|list)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\w./-])[^\W\d_]+(?![\w./-]|['’]\w)")  # noqa: RUF001  no part of a name such as ros2_control
_INFLECTION = re.compile(r"(?:[sd]|e[sdr]|ly|est|ing|ings|ers|ised|ized)\Z")
_FOLLOWS_UP = re.compile(
    r"\A\W*(?:and|but|so|or|then|also)\b|\b(?:what|how) about\b|\b(?:it|its|that|this|they|them|their|those|these|one|ones)\b",
    re.IGNORECASE,
)
_LETTER = re.compile(r"[^\W\d_]")
_GENERIC = frozenset(
    lexical.words(
        "mean explain explanation tell more summarise summarize summary example thing stuff work say said please help"
    )
)
_OF_A_TEXT = frozenset(
    lexical.words(
        "passage paragraph text sentence section part selection words simple simpler simply short briefly"
    )
)
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def read(text: str, lexicon: Lexicon, is_common: Callable[[str], bool]) -> Wording:
    """Corrects the words that neither the book nor the language knows, and finds the clauses that ask."""
    corrected = dict(_corrections(text, lexicon, is_common))
    mended = _WORD.sub(lambda word: corrected.get(word[0], word[0]), text)
    return Wording(mended, asking_clauses(mended), corrected)


def keywords(text: str) -> frozenset[str]:
    """The words of a search such as "jetson price", which has only keywords; empty for a question."""
    words = lexical.words(text)
    is_search = KEYWORDS_MIN <= len(text.split()) <= KEYWORDS_MAX and len(words) >= len(text.split())
    return frozenset(words) if is_search else frozenset()


def names_nothing(text: str) -> bool:
    """Whether a question is about nothing by itself, such as "Why?" or "What does that mean?"."""
    return not set(lexical.words(text)) - _GENERIC and bool(_LETTER.search(text))


def asks_to_explain(text: str) -> bool:
    """Whether a question asks what a selected text says: "Explain this", "Summarise the passage"."""
    return not set(lexical.words(text)) - _GENERIC - _OF_A_TEXT


def follows_up(text: str) -> bool:
    """Whether a question leans on the one before: "What about unbinding?", "And how fast is it?"."""
    words = set(lexical.words(text)) - _GENERIC
    return not words or (len(words) <= FOLLOW_UP_WORDS_MAX and bool(_FOLLOWS_UP.search(text)))


def asking_clauses(text: str) -> tuple[str, ...]:
    """The clauses of a long question that ask something, without their courtesies."""
    sentences = [sentence.strip() for sentence in _SENTENCE.findall(text) if sentence.strip()]
    if len(sentences) == 1 and len(text.split()) <= LONG_WORDS:
        return ()
    stripped = [(_without_courtesy(sentence), sentence.endswith("?")) for sentence in sentences]
    asking = [clause for clause, is_question in stripped if is_question or _ASKS.match(clause)]
    return tuple(clause for clause in asking if lexical.words(clause) and clause != text)[:CLAUSES_MAX]


def _without_courtesy(sentence: str) -> str:
    while courtesy := _COURTESY.match(sentence):
        sentence = sentence[courtesy.end() :]
    return sentence


def _corrections(text: str, lexicon: Lexicon, is_common: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    for word in dict.fromkeys(_WORD.findall(text)):
        stem = _stem(word)
        is_plain = word.isascii() and len(word) >= CORRECTED_LENGTH_MIN and stem
        if not is_plain or stem in lexicon.terms or _is_english(word.lower(), is_common):
            continue
        if correction := _correction(word.lower(), lexicon, is_common):
            yield word, correction


def _is_english(word: str, is_common: Callable[[str], bool]) -> bool:
    """Whether the word, or the one that it is an inflection of, is a common one."""
    base = _INFLECTION.sub("", word)
    return any(map(is_common, (word, base, f"{base}e", base[:-1] if base[-1:] == base[-2:-1] else base)))


def _correction(word: str, lexicon: Lexicon, is_common: Callable[[str], bool]) -> str | None:
    """The word of the book within one edit that is in the most passages. The first letter is rarely mistyped."""
    near = {other: _stem(other) for other in set(_edited(word))}
    found = [
        (lexicon.terms[stem].idf, other)
        for other, stem in near.items()
        if stem in lexicon.terms and (is_common(other) or (stem == other and len(other) >= RARE_LENGTH_MIN))
    ]
    return min(found)[1] if found else None


def _stem(word: str) -> str:
    """ "" for a stop word."""
    return next(iter(lexical.words(word)), "")


def _edited(word: str) -> Iterator[str]:
    """All strings within one edit: a letter left out, added, replaced, or two neighbours swapped."""
    for place in range(1, len(word) + 1):
        head, tail = word[:place], word[place:]
        yield from (head + letter + tail for letter in _ALPHABET)
        if tail:
            yield head + tail[1:]
            yield from (head + letter + tail[1:] for letter in _ALPHABET)
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
