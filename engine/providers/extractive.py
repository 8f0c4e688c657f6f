"""An extractive generator, which needs no language model: it ranks sentences and quotes the best ones.

It cannot combine, compare or conclude: every claim of its draft is a sentence of the book. A sentence is compared with the
question under its heading, because the heading often names what the sentence is about. It abstains if no sentence is
similar enough to the question.
"""

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.models import Citation, Claim, Draft, Question, RetrievedPassage, Vector
from engine.ports import Embedder, Generator
from engine.retrieval import languages, lexical
from engine.settings import Settings

# Chosen on 120 readers' questions (tests/data/readers): .62 of the answers quote what they must; two sentences, compared
# without their headings, quoted it in .36.
SENTENCES_MAX = 4
SHORTLIST = 12  # sentences that are embedded, a few milliseconds each
CACHED_MAX = 10_000  # sentences, of 1.5 kB each
WORDS_MIN = 4  # fewer words make no statement by themselves
LISTED_MAX = 5  # items of a list that its lead-in brings along
COSINE_MIN = 0.25  # the typical cosine of two unrelated sentences stays below this
NOISE = 0.5  # the score of unrelated passages: a passage is weighted by its lead over it
NOISE_LEAD_MIN = 0.05
NEXT_SHARE = 0.7  # another sentence must support the answer so nearly as well as the best one

# A sentence that begins like this means nothing without the one before.
_LEANS = re.compile(
    r"(?:this|these|that|those|it|its|they|their|he|she|such|here|then|thus|therefore|hence|both|so|but|however|instead"
    r"|otherwise)\b",
    re.IGNORECASE,
)
_ASKS_FOR_CODE = re.compile(
    r"\b(?:code|commands?|script|snippet|syntax|program|function|python|xml|yaml|terminal|type|write|run|install|file|call)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Supporting:
    """A candidate sentence with the parts of its score."""

    passage: int
    number: int
    text: str
    heading: str
    weight: float  # the weight of its passage
    share: float  # the share of the question's words that it or its headings contain
    cosine: float = 0.0

    @property
    def support(self) -> float:
        """Similarity in meaning and in words, weighted by the passage."""
        return (self.cosine + self.share) * self.weight


def generator(_: Settings, embedder: Embedder, others: Mapping[str, Embedder]) -> Generator:
    return Extractive(embedder, others)


class Extractive:
    name = "extractive"
    description = "quotes the best sentences, does not combine them"

    def __init__(self, embedder: Embedder, others: Mapping[str, Embedder] | None = None) -> None:
        self._embedder = embedder
        self._others = others or {}
        self._vectors: dict[str, Vector] = {}  # a cache: the same sentences are good answers again and again

    async def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncGenerator[Claim, None]:
        shortlist = sorted(_sentences(question, evidence), key=_order)[:SHORTLIST]
        best = _best(await self._with_cosines(shortlist, question))
        draft.confidence = round(max((item.cosine for item in best), default=0.0), 6)
        cited = {evidence[p].passage.sentence_text(n): (p, n) for p, n in _with_context(best, evidence)}
        for text, (passage, number) in cited.items():  # once each, although passages overlap
            draft.raw += f"{text}\n"
            yield Claim(text, (Citation(passage, number, number + 1, text),))
        draft.is_complete, draft.stop_reason = True, "end_turn"

    async def close(self) -> None:
        """There is nothing to close."""

    async def _with_cosines(self, shortlist: Sequence[Supporting], question: Question) -> list[Supporting]:
        """In a language that no embedder reads, the share of the words takes the place of the cosine."""
        embedder = self._others.get(question.embedder, self._embedder)
        vector = await embedder.embed_query(question.text)
        if len(vector) == 1:
            return [replace(item, cosine=item.share) for item in shortlist]
        return await asyncio.gather(*(self._with_cosine(item, vector, embedder) for item in shortlist))

    async def _with_cosine(self, item: Supporting, question: Vector, embedder: Embedder) -> Supporting:
        text = f"{item.heading}: {item.text}"
        name = f"{embedder.name}\n{text}"
        sentence = self._vectors.get(name)
        if sentence is None:
            sentence = self._vectors[name] = await embedder.embed_query(text)
            if len(self._vectors) > CACHED_MAX:
                del self._vectors[next(iter(self._vectors))]
        return replace(item, cosine=max(0.0, min(1.0, float(question @ sentence))))


def _sentences(question: Question, evidence: Sequence[RetrievedPassage]) -> Iterator[Supporting]:
    """Each distinct statement with its share of the question's words, in which a rarer word counts more (idf)."""
    wanted = set(lexical.words(question.text, question.language))
    read: dict[str, tuple[int, int, set[str]]] = {}
    for number, item in enumerate(evidence):
        for place in range(len(item.passage.sentences)):
            text = item.passage.sentence_text(place)
            if _is_statement(text, question):
                read.setdefault(text, (number, place, wanted & set(lexical.words(text, question.language))))
    containing = Counter(word for _, _, held in read.values() for word in held)
    idf = {word: math.log1p(len(read) / (1 + containing[word])) for word in wanted}
    whole = sum(idf.values()) or 1.0
    for text, (number, place, held) in read.items():
        passage, lead = evidence[number].passage, evidence[number].candidate.score - NOISE
        heading = passage.sentences[place].heading
        headings = f"{passage.chapter} {passage.section} {heading}"
        above = wanted & set(lexical.words(headings, question.language))
        share = sum(idf[word] for word in held | above) / whole
        yield Supporting(number, place, text, heading, max(NOISE_LEAD_MIN, lead), share)


def _is_statement(text: str, question: Question) -> bool:
    """False for a question of the book, and for a block of code (several lines) if the reader does not ask for code."""
    if languages.count_words(text) < WORDS_MIN or text.endswith(("?", "？", "؟")):  # noqa: RUF001
        return False
    return "\n" not in text or bool(_ASKS_FOR_CODE.search(question.text))


def _best(read: Sequence[Supporting]) -> list[Supporting]:
    """The best sentence, and those that are nearly as good."""
    ranked = sorted((item for item in read if item.cosine >= COSINE_MIN), key=_order)
    return [item for item in ranked[:SENTENCES_MAX] if item.support >= NEXT_SHARE * ranked[0].support]


def _with_context(best: Sequence[Supporting], evidence: Sequence[RetrievedPassage]) -> list[tuple[int, int]]:
    """The places to quote, in the book's order: a sentence with the one that it leans on, a lead-in with its list."""
    places: dict[tuple[int, int], None] = {}
    listed: dict[tuple[int, int], None] = {}
    for item in best:
        sentences = evidence[item.passage].passage.sentences
        if len(places) == SENTENCES_MAX:
            break
        if item.number and _LEANS.match(item.text) and len(places) < SENTENCES_MAX - 1:
            places[item.passage, item.number - 1] = None
        places[item.passage, item.number] = None
        if item.text.endswith(":"):
            following = range(item.number + 1, min(item.number + 1 + LISTED_MAX, len(sentences)))
            heading = sentences[item.number].heading
            listed |= {
                (item.passage, number): None for number in following if sentences[number].heading == heading
            }
    return sorted(places | listed)


def _order(item: Supporting) -> tuple[float, int, int]:
    return -item.support, item.passage, item.number
