"""The generator that needs no model: it picks the sentences that best support an answer and quotes them.

It cannot combine, compare or conclude, and does not pretend to: every claim of its draft is a sentence of the book. It
abstains when no sentence comes close to the question.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from engine import lexical
from engine.models import Citation, Claim, Draft, Evidence, Question, Vector
from engine.ports import Embedder

SENTENCES_MAX = 2
READ_CLOSELY = 12  # sentences worth an embedding (about 3 ms each) after the first look by words
WORDS_MIN = 4  # fewer words state nothing that can stand alone
SUPPORT_MIN = 0.30  # a cosine below this is a sentence about something else
SECOND_SHARE = 0.85  # a second sentence must support nearly as well as the first
HEADING_WORTH = 0.5  # a word of the question in the heading counts half of one in the sentence


@dataclass(frozen=True, slots=True)
class Supporting:
    """A sentence and how well it supports an answer."""

    passage: int
    number: int
    text: str
    support: float


class Extractive:
    """Quotes; see the module."""

    name = "extractive"

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def generate(self, question: Question, evidence: Sequence[Evidence]) -> Draft:
        asked = await self._embedder.embed_query(question.text)
        shortlist = islice(_by_words(question, evidence), READ_CLOSELY)
        read = [await self._read(item, asked) for item in shortlist]
        best = _best(read)
        claims = tuple(
            Claim(item.text, (Citation(item.passage, item.number, item.number + 1, item.text),))
            for item in best
        )
        return Draft(
            claims=claims,
            complete=True,
            model=self.name,
            confidence=round(min(1.0, max(item.support for item in best)), 6) if best else 0.0,
            raw="\n".join(item.text for item in best),
            stop_reason="end_turn",
        )

    async def _read(self, item: Supporting, asked: Vector) -> Supporting:
        """The sentence's own closeness to the question, with the share of the question's words it holds on top."""
        sentence = await self._embedder.embed_query(item.text)
        cosine = float(asked @ sentence)
        return Supporting(item.passage, item.number, item.text, cosine * (1 + item.support))


def _by_words(question: Question, evidence: Sequence[Evidence]) -> Iterator[Supporting]:
    """All sentences, those first that hold most of the question's words and stand in the best passages."""
    wanted = set(lexical.words(question.text))
    seen: set[str] = set()
    found = []
    for number, item in enumerate(evidence):
        for place, sentence in enumerate(item.passage.sentences):
            text = item.passage.sentence_text(place)
            if text in seen or len(text.split()) < WORDS_MIN:
                continue
            seen.add(text)
            held = len(wanted & set(lexical.words(text)))
            headed = len(wanted & set(lexical.words(sentence.heading)))
            share = (held + HEADING_WORTH * headed) / len(wanted) if wanted else 0.0
            found.append(Supporting(number, place, text, share * item.candidate.score))
    return iter(sorted(found, key=lambda item: (-item.support, item.passage, item.number)))


def _best(read: Sequence[Supporting]) -> list[Supporting]:
    """The best sentence and a second that is nearly as good, in the book's order."""
    ranked = sorted(read, key=lambda item: (-item.support, item.passage, item.number))
    kept = [
        item
        for item in ranked[:SENTENCES_MAX]
        if item.support >= max(SUPPORT_MIN, SECOND_SHARE * ranked[0].support)
    ]
    return sorted(kept, key=lambda item: (item.passage, item.number))
