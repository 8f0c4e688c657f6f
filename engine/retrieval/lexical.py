"""BM25 as sparse vectors, equal to `rank_bm25.BM25Okapi`, so that a vector store can compute it. Pure.

A passage's score is the sum over the question's words of `idf(word) * weight(word, passage)`: the weights are stored
with the passage as a sparse vector, the idf values come with the question, and the dot product is the score.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import Stemmer

from engine.models import Lexicon, Term
from engine.words import languages, word_forms
from engine.words.stop_words import STOP_WORDS

K1 = 1.5
B = 0.75
EPSILON = 0.25  # the idf of a word in more than half of the passages, as a share of the average idf

PRIOR_WORDS = 4  # additive smoothing: unknown words that are added to every question
NORMALISATION = "prior-attainment-2"  # of tokenizer and scores: a certificate is valid for one version

_WORD = re.compile(r"[^\W_]+(?:[.'_:/+#-]*[^\W_]+)*[+#]*")
_PART = re.compile(r"[^\W_]+")
_stemmer = Stemmer.Stemmer("english")


def words(text: str, language: str = languages.ENGLISH) -> list[str]:
    """The tokenizer for passages and questions: lower case, stemmed, without stop words.

    In English a compound such as `ros2_control` or `sim-to-real` counts as itself and as its parts. In other languages a
    word counts as its stem and as its n-grams (word_forms.py).
    """
    return _english(text) if language == languages.ENGLISH else word_forms.words(text, language)


def _english(text: str) -> list[str]:
    compounds, parts = [], []
    for word in _WORD.findall(text.lower()):
        if word.isalnum():
            parts.append(word)
        else:
            compounds.append(word)
            parts.extend(_PART.findall(word))
    return [*compounds, *_stemmer.stemWords([part for part in parts if part not in STOP_WORDS["en"]])]


def lexicon(passages: Iterable[Sequence[str]]) -> Lexicon:
    """The statistics of a whole generation, in one pass. Term ids are in alphabetical order, so equal books get equal ids."""
    count, length, holding = _counted(passages)
    ids = {word: number for number, word in enumerate(sorted(holding), start=1)}
    return Lexicon(_terms(holding, ids, count), count, length / count if count else 0.0, length)


def continued(of: Lexicon, gone: Iterable[Sequence[str]], come: Iterable[Sequence[str]]) -> Lexicon:
    """Of an edition in which some passages are gone and others have come. Words keep their ids, and the average length is
    kept, so the weights of all other passages stay; in how many passages a word occurs is exact."""
    (fewer, less, leaving), (more, added, coming) = _counted(gone), _counted(come)
    holding = Counter({word: term.passages for word, term in of.terms.items()})
    holding.subtract(leaving)
    holding.update(coming)
    if any(count < 0 for count in holding.values()):
        raise ValueError("Passages are gone that the edition never had")
    holding = +holding  # without the words of no passage
    last = max((term.term_id for term in of.terms.values()), default=0)
    ids = {word: term.term_id for word, term in of.terms.items() if word in holding}
    new = sorted(holding.keys() - ids.keys())
    ids |= {word: number for number, word in enumerate(new, start=last + 1)}
    count = of.passages - fewer + more
    return Lexicon(
        _terms(holding, ids, count),
        count,
        of.average_length,
        of.words - less + added,
        of.changed + fewer + more,
    )


def drift(of: Lexicon) -> float:
    """By what share the average length that was kept is not the true one. No weight, and no score, is off by more:
    a weight is tf (K1 + 1) / (tf + a + b / average) with a, b >= 0."""
    if not of.words:
        return math.inf if of.average_length else 0.0
    return abs(of.average_length * of.passages / of.words - 1)


def _counted(passages: Iterable[Sequence[str]]) -> tuple[int, int, Counter[str]]:
    """The passages, their words, and of each word the passages that have it."""
    count = length = 0
    holding: Counter[str] = Counter()
    for passage in passages:
        count += 1
        length += len(passage)
        holding.update(set(passage))
    return count, length, holding


def _terms(holding: Mapping[str, int], ids: Mapping[str, int], count: int) -> dict[str, Term]:
    raw = {word: math.log(count - df + 0.5) - math.log(df + 0.5) for word, df in holding.items()}
    floor = EPSILON * math.fsum(raw.values()) / len(raw) if raw else 0.0
    return {
        word: Term(number, raw[word] if raw[word] >= 0 else floor, holding[word])
        for word, number in ids.items()
    }


def passage_weights(passage: Sequence[str], of: Lexicon) -> dict[int, float]:
    """The sparse vector of a passage."""
    length_factor = K1 * (1 - B + B * len(passage) / of.average_length) if of.average_length else K1
    return {
        of.terms[word].term_id: count * (K1 + 1) / (count + length_factor)
        for word, count in Counter(passage).items()
        if word in of.terms
    }


def query_weights(query: Iterable[str], of: Lexicon) -> dict[int, float]:
    """The sparse vector of a query."""
    counts = Counter(word for word in query if word in of.terms)
    return {of.terms[word].term_id: of.terms[word].idf * count for word, count in counts.items()}


def possible(query: Iterable[str], of: Lexicon) -> float:
    """The upper bound of a passage's score for this question.

    Words unknown to the book count with the idf of a word in no passage, so that a question about something else cannot
    score well by its common words. Four such words are added to every question, because one matching word proves less
    than five.
    """
    unknown = Term(0, math.log(of.passages + 0.5) - math.log(0.5))
    known = sum(max(0.0, of.terms.get(word, unknown).idf) for word in query)
    return (K1 + 1) * (known + PRIOR_WORDS * unknown.idf)


def attainment(score: float, best: float) -> float:
    """A score as a share of the best possible, in [0, 1]. Absolute: it does not depend on the other hits.

    Compared on XQuAD and SQuAD 2.0 with 200 questions about other things (`make bench`; where 5 % of these get through),
    this keeps 96.2 and 94.7 % of the answerable questions at an nDCG@10 of .980 and .919. Without the added words it is
    93.2 and 92.6 %. Score / (score + 20), which counts no unknown words, keeps 96.0 and 95.4 %, but ranks worse (.978
    and .917) and gives any long question a high score.
    """
    return min(1.0, max(0.0, score / best)) if best > 0 else 0.0
