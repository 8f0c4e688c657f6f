"""An extractive generator, which needs no language model: it ranks sentences and quotes the best ones.

It cannot combine, compare or conclude: every claim of its draft is a sentence of the book. It abstains if no sentence is
similar enough to the question.
"""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.models import Citation, Claim, Draft, Question, RetrievedPassage, Vector
from engine.ports import Embedder, Generator
from engine.retrieval import lexical
from engine.settings import Settings

SENTENCES_MAX = 2
SHORTLIST = 6  # sentences that are embedded (about 5 ms each): on XQuAD twelve score .2 points more
WORDS_MIN = 4  # fewer words make no statement by themselves
COSINE_MIN = 0.25  # the typical cosine of two unrelated sentences stays below this
NOISE = 0.5  # the score of unrelated passages: a passage is weighted by its lead over it
NOISE_LEAD_MIN = 0.05
SECOND_SHARE = 0.85  # a second sentence must support nearly as well as the first


@dataclass(frozen=True, slots=True)
class Supporting:
    """A candidate sentence with the parts of its score."""

    passage: int
    number: int
    text: str
    weight: float  # the weight of its passage
    share: float  # the share of the question's words that it contains
    cosine: float = 0.0

    @property
    def support(self) -> float:
        """Similarity in meaning and in words, weighted by the passage."""
        return (self.cosine + self.share) * self.weight


def generator(_: Settings, embedder: Embedder) -> Generator:
    return Extractive(embedder)


class Extractive:
    name = "extractive"
    description = "quotes the best sentences, does not combine them"

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncGenerator[Claim, None]:
        vector = await self._embedder.embed_query(question.text)
        shortlist = sorted(_sentences(question, evidence), key=_order)[:SHORTLIST]
        best = _best([await self._with_cosine(item, vector) for item in shortlist])
        draft.confidence = round(max((item.cosine for item in best), default=0.0), 6)
        for item in best:
            draft.raw += f"{item.text}\n"
            yield Claim(item.text, (Citation(item.passage, item.number, item.number + 1, item.text),))
        draft.is_complete, draft.stop_reason = True, "end_turn"

    async def close(self) -> None: ...

    async def _with_cosine(self, item: Supporting, question: Vector) -> Supporting:
        sentence = await self._embedder.embed_query(item.text)
        return replace(item, cosine=max(0.0, min(1.0, float(question @ sentence))))


def _sentences(question: Question, evidence: Sequence[RetrievedPassage]) -> Iterator[Supporting]:
    """Each distinct sentence with its share of the question's words, in which a rarer word counts more (idf)."""
    wanted = set(lexical.words(question.text))
    read: dict[str, tuple[int, int, set[str]]] = {}
    for number, item in enumerate(evidence):
        for place in range(len(item.passage.sentences)):
            text = item.passage.sentence_text(place)
            if len(text.split()) >= WORDS_MIN:
                read.setdefault(text, (number, place, wanted & set(lexical.words(text))))
    containing = Counter(word for _, _, held in read.values() for word in held)
    idf = {word: math.log1p(len(read) / (1 + containing[word])) for word in wanted}
    whole = sum(idf.values()) or 1.0
    for text, (number, place, held) in read.items():
        share = sum(idf[word] for word in held) / whole
        yield Supporting(
            number, place, text, max(NOISE_LEAD_MIN, evidence[number].candidate.score - NOISE), share
        )


def _best(read: Sequence[Supporting]) -> list[Supporting]:
    """The best sentence, and a second one that is nearly as good, in the book's order."""
    ranked = sorted((item for item in read if item.cosine >= COSINE_MIN), key=_order)
    kept = [item for item in ranked[:SENTENCES_MAX] if item.support >= SECOND_SHARE * ranked[0].support]
    return sorted(kept, key=lambda item: (item.passage, item.number))


def _order(item: Supporting) -> tuple[float, int, int]:
    return -item.support, item.passage, item.number
