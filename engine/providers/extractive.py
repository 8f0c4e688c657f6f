"""An extractive generator, which needs no language model: it ranks units of sentences and quotes the best ones.

It cannot combine, compare or conclude: every claim of its draft is a sentence of the book. A unit (reading/units.py) is
compared with the question under its heading, because the heading often names what its sentences are about. It abstains
if no unit is similar enough to the question, or if none states the fact that the question asks for.
"""

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from engine.grounding.certainty import Signs, answer_probability
from engine.models import (
    Citation,
    Claim,
    ConfidenceLevel,
    Draft,
    Passage,
    Question,
    RetrievedPassage,
    Vector,
    Windows,
    Wording,
)
from engine.ports import Embedder, Generator
from engine.reading import asked
from engine.reading.asked import Aim
from engine.reading.units import Unit, row_text, units
from engine.refusals import RefusalReason
from engine.retrieval import lexical, wording
from engine.settings import Settings
from engine.words.languages import ENGLISH

UNITS_MAX = 4
SENTENCES_MAX = 12  # of all units with their lists
SHORTLIST = 12  # units that are embedded, a few milliseconds each
CLAUSE_WORDS_MIN = 2  # "What is behind that?" means nothing without the rest
CACHED_MAX = 10_000  # units, of 1.5 kB each
LEVEL_MAX: ConfidenceLevel = "medium"  # "high" means right in 99 %, which no offline score reaches
COSINE_MIN = 0.25  # the typical cosine of two unrelated sentences stays below this
SHARE_WEIGHT = 0.5  # of the question's words, beside the cosine
FORM_WEIGHT = 1.15  # of a unit that has the form of an answer to the question
NEXT_SHARE = 0.6  # another unit must support the answer so nearly as well as the best one
FACT_SHARE = 0.5  # a unit that states the asked fact may support the answer half as well

Place = tuple[int, int]  # a passage, and the number of a sentence in it

_BACKTICKS = re.compile(r"`+")


@dataclass(frozen=True, slots=True)
class Supporting:
    """A unit with the parts of its score."""

    unit: Unit
    weight: float  # the weight of its passage
    share: float  # the share of the question's words that it or its headings contain
    fits: bool
    cosine: float = 0.0

    @property
    def support(self) -> float:
        """Similarity in meaning and in words, weighted by the passage."""
        return (self.cosine + SHARE_WEIGHT * self.share) * self.weight * (FORM_WEIGHT if self.fits else 1.0)


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
        draft.level_max = LEVEL_MAX
        if question.selected_text is not None and wording.asks_to_explain(question.text):
            chosen: Sequence[Unit] = units(evidence, with_code=True)[:UNITS_MAX]  # it explains itself
            draft.confidence = 1.0
        else:
            chosen = await self._chosen(question, evidence, draft)
        for claim in _claims(chosen, evidence):
            draft.raw += f"{claim.text}\n"
            yield claim
        draft.is_complete, draft.stop_reason = True, "end_turn"

    async def _chosen(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> Sequence[Unit]:
        texts = _readings(question)
        aim = asked.read(texts[-1]) if question.language == ENGLISH else Aim("other")
        ranked = await self._ranked(texts, aim, question, evidence)
        stating = _stating(ranked, aim)
        draft.confidence = round(answer_probability(_signs(stating[0], evidence)), 6) if stating else 0.0
        if ranked and not stating:
            draft.abstained_for = RefusalReason.ATTRIBUTE_NOT_FOUND
        return _best(stating)

    async def close(self) -> None:
        """There is nothing to close."""

    async def _ranked(
        self, texts: Sequence[str], aim: Aim, question: Question, evidence: Sequence[RetrievedPassage]
    ) -> list[Supporting]:
        """The units that are similar to the question, best first."""
        found = units(evidence, with_code=aim.form in {"code", "how_to"})
        of_words = _compared(texts[-1], question.language, aim, found, evidence)
        shortlist = sorted(of_words, key=_order)[:SHORTLIST]
        compared = await self._with_cosines(shortlist, texts, question)
        return sorted((item for item in compared if item.cosine >= COSINE_MIN), key=_order)

    async def _with_cosines(
        self, shortlist: Sequence[Supporting], texts: Sequence[str], question: Question
    ) -> Sequence[Supporting]:
        """In a language that no embedder reads, the share of the words takes the place of the cosine."""
        embedder = self._others.get(question.embedder, self._embedder)
        known = question.wording.vectors if question.wording else {}  # embedding again takes milliseconds
        vectors = np.stack(
            [known[text] if text in known else await embedder.embed_query(text) for text in texts]
        )
        if vectors.shape[1] == 1:
            return [replace(item, cosine=item.share) for item in shortlist]
        return await asyncio.gather(*(self._with_cosine(item, vectors, embedder) for item in shortlist))

    async def _with_cosine(self, item: Supporting, questions: Windows, embedder: Embedder) -> Supporting:
        text = str(item.unit)
        name = f"{embedder.name}\n{text}"
        vector = self._vectors.get(name)
        if vector is None:
            vector = self._vectors[name] = await embedder.embed_query(text)
            if len(self._vectors) > CACHED_MAX:
                del self._vectors[next(iter(self._vectors))]
        return replace(item, cosine=max(0.0, min(1.0, float((questions @ vector).max()))))


def _readings(question: Question) -> list[str]:
    """The question as it was searched; of a long one also the clauses that ask, which decide what is asked for.

    A question that leans on the one before is read with it.
    """
    searched = question.wording or Wording(question.text)
    if question.context and wording.follows_up(searched.text):
        return [f"{searched.text}\n{question.context}"]
    clauses = " ".join(searched.clauses)
    return [searched.text, clauses] if len(lexical.words(clauses)) >= CLAUSE_WORDS_MIN else [searched.text]


def _compared(
    text: str, language: str, aim: Aim, found: Sequence[Unit], evidence: Sequence[RetrievedPassage]
) -> Iterator[Supporting]:
    """Each unit with its share of the question's words, in which a rarer word counts more (idf)."""
    asked_words = set(lexical.words(text, language))
    held = [asked_words & _words_of_book(unit.text, language) for unit in found]
    containing = Counter(word for words in held for word in words)
    idf = {word: math.log1p(len(found) / (1 + containing[word])) for word in asked_words}
    whole = sum(idf.values()) or 1.0
    for unit, words in zip(found, held, strict=True):
        item = evidence[unit.passage]
        above = f"{item.passage.chapter} {item.passage.section} {unit.heading}"
        share = sum(idf[word] for word in words | (asked_words & _words_of_book(above, language))) / whole
        yield Supporting(
            unit,
            item.candidate.rank_score,
            share,
            aim.fits(unit.stated, item.passage.sentences[unit.main].kind),
        )


@lru_cache(CACHED_MAX)
def _words_of_book(text: str, language: str) -> frozenset[str]:
    """The same units are compared with one question after another."""
    return frozenset(lexical.words(text, language))


def _stating(ranked: Sequence[Supporting], aim: Aim) -> Sequence[Supporting]:
    """The units that state the asked fact. Text about the right thing without it is no answer."""
    if aim.fact is None:
        return ranked
    return [
        item
        for item in ranked
        if item.support >= FACT_SHARE * ranked[0].support
        and aim.fact.is_stated(item.unit.stated, item.unit.heading)
    ]


def _signs(best: Supporting, evidence: Sequence[RetrievedPassage]) -> Signs:
    return Signs(max(item.candidate.score for item in evidence), best.cosine, best.share)


def _best(ranked: Sequence[Supporting]) -> list[Unit]:
    """The best unit, and those that are nearly as good."""
    return [item.unit for item in ranked[:UNITS_MAX] if item.support >= NEXT_SHARE * ranked[0].support]


def _claims(chosen: Sequence[Unit], evidence: Sequence[RetrievedPassage]) -> Iterator[Claim]:
    """The sentences of the best units, each once although units and passages overlap: the best passage first, and in the
    book's order within it."""
    headers: dict[Place, int | None] = {}
    for unit in chosen:
        new = {place: header for place, header in _headed(unit, evidence) if place not in headers}
        if headers and len(headers) + len(new) > SENTENCES_MAX:
            break
        headers |= dict(list(new.items())[:SENTENCES_MAX])
    said: set[str] = set()
    for number, place in sorted(headers):
        claim = _claim(number, place, evidence[number].passage, headers[number, place])
        if claim.text not in said:
            said.add(claim.text)
            yield claim


def _headed(unit: Unit, evidence: Sequence[RetrievedPassage]) -> Iterator[tuple[Place, int | None]]:
    """The unit's places but its headers; a row comes with the header above it in the same unit."""
    header: int | None = None
    for place in unit.places:
        kind = evidence[unit.passage].passage.sentences[place].kind
        if kind == "header":
            header = place
        else:
            yield (unit.passage, place), header if kind == "row" else None


def _claim(number: int, place: int, passage: Passage, header: int | None) -> Claim:
    """A sentence as its own citation. A row is said with the names of its columns, and cites both; code is fenced."""
    text = passage.sentence_text(place)
    cited = [Citation(number, place, place + 1, text)]
    if passage.sentences[place].kind == "code" and "\n" in text:
        fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
        return Claim(f"{fence}\n{text}\n{fence}", tuple(cited))
    if header is None:
        return Claim(text, tuple(cited))
    names = passage.sentence_text(header)
    return Claim(row_text(names, text), (Citation(number, header, header + 1, names), *cited))


def _order(item: Supporting) -> tuple[float, int, int]:
    return -item.support, item.unit.passage, item.unit.main
