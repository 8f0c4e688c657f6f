"""How a question is searched: with its spelling corrected, and clause by clause if it is long and polite. Pure."""

# ruff: noqa: RUF001 - the patterns look for quotes

import re
from collections.abc import Callable, Iterator

from engine.models import Lexicon, Wording
from engine.retrieval import lexical

LONG_WORDS = 20  # a shorter question is one question
CLAUSES_MAX = 3
CORRECTED_LENGTH_MIN, CORRECTED_LENGTH_MAX = 5, 24  # a shorter word is one edit away from too many others
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
_WORD = re.compile(r"(?<![\w./-])[^\W\d_]+(?![\w./-]|['’]\w)")  # no part of a name such as ros2_control
_INFLECTION = re.compile(r"(?:[sd]|e[sdr]|ly|est|ing|ings|ers|ised|ized)\Z")
_FOLLOWS_UP = re.compile(
    r"\A\W*(?:and|but|so|or|then|also)\b|\b(?:what|how) about\b|\b(?:it|its|that|this|they|them|their|those|these|one|ones)\b",
    re.IGNORECASE,
)
_CONTRACTION = re.compile(
    r"['’](?:s|re|t|ll|d|ve|m)\b|\b(?:don|doesn|didn|isn|aren|wasn|weren|can|won)(?=['’]t)", re.IGNORECASE
)
_NAMED = re.compile(r"[`\"“”]|\b[A-Z]{2,}\b|(?<!\w)['‘]\w")  # a word that is meant as a word, or as a name
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
    return not _content(text) and bool(_LETTER.search(text)) and not _NAMED.search(text)


def asks_to_explain(text: str) -> bool:
    """Whether a question asks what a selected text says: "Explain this", "Summarise the passage"."""
    return not _content(text) - _OF_A_TEXT


def follows_up(text: str) -> bool:
    """Whether a question leans on the one before: "What about unbinding?", "And how fast is it?"."""
    words = _content(text)
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


def _content(text: str) -> set[str]:
    """The words of a text that say what it is about. A contraction such as "what's" is none."""
    return set(lexical.words(_CONTRACTION.sub("", text))) - _GENERIC


def _corrections(text: str, lexicon: Lexicon, is_common: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    content = _content(text)
    for place, word in enumerate(dict.fromkeys(_WORD.findall(text))):
        stem = _stem(word)
        is_name = place > 0 and word[:1].isupper()
        is_plain = word.isascii() and CORRECTED_LENGTH_MIN <= len(word) <= CORRECTED_LENGTH_MAX
        is_all = content <= {stem}  # another word would be another question
        if not stem or not is_plain or is_name or is_all or stem in lexicon.terms:
            continue
        if _is_english(word.lower(), is_common):
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
    """All strings within one slip: a letter left out or added inside, or two neighbours swapped. A replaced letter makes
    another word too often: perceptron is no perception."""
    for place in range(1, len(word)):
        head, tail = word[:place], word[place:]
        yield from (head + letter + tail for letter in _ALPHABET)
        if len(tail) > 1:
            yield head + tail[1:]
            yield head + tail[1] + tail[0] + tail[2:]
