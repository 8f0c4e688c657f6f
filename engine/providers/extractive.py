"""The generator that needs no model: it picks the sentences that best support an answer and quotes them.

It cannot combine, compare or conclude, and does not pretend to: every claim of its draft is a sentence of the book. It
abstains when no sentence comes close to the question.
"""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.models import Citation, Claim, Draft, Question, RetrievedPassage, Vector
from engine.ports import Embedder
from engine.retrieval import lexical

SENTENCES_MAX = 2
READ_CLOSELY = 6  # sentences worth an embedding (about 5 ms each): on XQuAD twelve find .2 points more
WORDS_MIN = 4  # fewer words state nothing that can stand alone
COSINE_MIN = 0.25  # the typical cosine of two unrelated sentences stays below this
NOISE = (
    0.5  # scores of passages about something else come near it: what a passage is worth is its lead over them
)
NOISE_LEAD_MIN = 0.05
SECOND_SHARE = 0.85  # a second sentence must support nearly as well as the first


@dataclass(frozen=True, slots=True)
class Supporting:
    """A sentence and how well it supports an answer."""

    passage: int
    number: int
    text: str
    worth: float  # of its passage
    share: float  # of the question's words that it holds
    cosine: float = 0.0

    @property
    def support(self) -> float:
        """Close in meaning, close in words, in a good passage."""
        return (self.cosine + self.share) * self.worth


class Extractive:
    """Quotes; see the module."""

    name = "extractive"

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncGenerator[Claim, None]:
        asked = await self._embedder.embed_query(question.text)
        shortlist = sorted(_sentences(question, evidence), key=_order)[:READ_CLOSELY]
        best = _best([await self._read(item, asked) for item in shortlist])
        draft.confidence = round(max((item.cosine for item in best), default=0.0), 6)
        for item in best:
            draft.raw += f"{item.text}\n"
            yield Claim(item.text, (Citation(item.passage, item.number, item.number + 1, item.text),))
        draft.is_complete, draft.stop_reason = True, "end_turn"

    async def close(self) -> None:
        """Nothing is held open."""

    async def _read(self, item: Supporting, asked: Vector) -> Supporting:
        sentence = await self._embedder.embed_query(item.text)
        return replace(item, cosine=max(0.0, min(1.0, float(asked @ sentence))))


def _sentences(question: Question, evidence: Sequence[RetrievedPassage]) -> Iterator[Supporting]:
    """Every sentence once, with what it holds of the question: a word that few of the sentences hold counts more."""
    wanted = set(lexical.words(question.text))
    read: dict[str, tuple[int, int, set[str]]] = {}
    for number, item in enumerate(evidence):
        for place in range(len(item.passage.sentences)):
            text = item.passage.sentence_text(place)
            if len(text.split()) >= WORDS_MIN:
                read.setdefault(text, (number, place, wanted & set(lexical.words(text))))
    holding = Counter(word for _, _, held in read.values() for word in held)
    telling = {word: math.log1p(len(read) / (1 + holding[word])) for word in wanted}
    whole = sum(telling.values()) or 1.0
    for text, (number, place, held) in read.items():
        share = sum(telling[word] for word in held) / whole
        yield Supporting(
            number, place, text, max(NOISE_LEAD_MIN, evidence[number].candidate.score - NOISE), share
        )


def _best(read: Sequence[Supporting]) -> list[Supporting]:
    """The best sentence and a second that is nearly as good, in the book's order."""
    ranked = sorted((item for item in read if item.cosine >= COSINE_MIN), key=_order)
    kept = [item for item in ranked[:SENTENCES_MAX] if item.support >= SECOND_SHARE * ranked[0].support]
    return sorted(kept, key=lambda item: (item.passage, item.number))


def _order(item: Supporting) -> tuple[float, int, int]:
    return -item.support, item.passage, item.number
