"""Fits what a confidence means (engine/grounding/certainty.py), and shows how the fit holds on sets that it did not see.

Run as `python -m bench.certainty`. It is fitted to the training questions of ../shared/data/reader and to readers' questions
on the two books (tests/data/readers), and measured on the labelled sets.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from bench.gate import OUT_OF_SCOPE
from bench.results import SETS
from engine import settings as settings_file
from engine import wiring
from engine.evaluation import answers, labelled_set, reliability
from engine.grounding.certainty import Signs, answer_probability
from engine.grounding.cite import quoted
from engine.grounding.verify import NO_INSTRUCTIONS, is_proven, refuse_unproven
from engine.house import House
from engine.models import Draft, Generation, Question
from engine.providers import extractive
from engine.retrieval.gate import refuse_weak_evidence
from ingest.read.document import CONTENT_FILE

TRAINING = SETS.parent / "reader" / "squad2_train_part.json"
REAL_BOOK = SETS.parent / "books" / "physical-ai" / "docs"
READERS = Path(__file__).resolve().parent.parent / "tests" / "data" / "readers"
MEASURED = ("xquad_en", "chunkeval", "squad2_near_miss")
ANSWERABLE_TAKEN = 900  # of the training questions, beside all unanswerable ones
BOOK = "book"
_seen: list[Signs] = []  # the signs of each answer, as the generator weighs them
RIDGE = 1e-3
STEPS = 30

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the texts that a right answer quotes: one of each list. None: it must be refused."""

    text: str
    must_quote: list[list[str]] | None


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with what was known of it."""

    signs: Signs
    passage_score: float
    confidence: float
    is_right: bool
    is_passage_right: bool


async def main() -> None:
    with mock.patch.object(extractive, "answer_probability", _noting):
        await _fit_and_measure()


def _noting(signs: Signs) -> float:
    _seen.append(signs)
    return answer_probability(signs)


async def _fit_and_measure() -> None:
    fitted = [
        *await _answers(wiring.SAMPLE_BOOK, _readers("sample-book")),
        *await _answers(REAL_BOOK, _readers("physical-ai")),
        *await _of_corpus(*_training()),
    ]
    signs = np.array([item.signs for item in fitted])
    intercept, weights = _logistic(signs, np.array([item.is_right for item in fitted], np.float64))
    print("INTERCEPT", round(intercept, 3), "WEIGHTS", weights.round(3).tolist())
    print("PASSAGE_RIGHT", _curve([(item.passage_score, item.is_passage_right) for item in fitted]))
    _show("fitted to", fitted)
    for name in MEASURED:
        labelled = labelled_set.read(SETS / name, OUT_OF_SCOPE)
        asked = [
            Asked(query.text, [query.answers or [span.text or "" for span in query.spans]] if kind == "answerable" else None)
            for kind, query in labelled.questions()
        ]  # fmt: skip
        _show(name, await _of_content(labelled_set.book(labelled), asked))


def _readers(name: str) -> list[Asked]:
    rows = answers.read(READERS / f"{name}.jsonl")
    return [Asked(row.question, row.must_quote if row.kind == "answerable" else None) for row in rows]


def _training() -> tuple[list[dict[str, str]], list[Asked]]:
    pages: list[dict[str, str]] = []
    answerable: list[Asked] = []
    unanswerable: list[Asked] = []
    for article in json.loads(TRAINING.read_text())["data"]:
        for number, paragraph in enumerate(article["paragraphs"]):
            name = f"{article['title']}-{number}"
            pages.append(
                {"_id": name, "title": article["title"].replace("_", " "), "text": paragraph["context"]}
            )
            for row in paragraph["qas"]:
                told = [answer["text"] for answer in row["answers"]]
                (answerable if told else unanswerable).append(
                    Asked(row["question"], [told] if told else None)
                )
    return pages, [*random.Random(1).sample(answerable, ANSWERABLE_TAKEN), *unanswerable]


async def _of_corpus(pages: Sequence[dict[str, str]], asked: Sequence[Asked]) -> list[Answered]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "corpus.jsonl").write_text("\n".join(map(json.dumps, pages)))
        Path(folder, "queries.jsonl").write_text("")
        content = labelled_set.book(labelled_set.read(Path(folder)))
    return await _of_content(content, asked)


async def _of_content(content: bytes, asked: Sequence[Asked]) -> list[Answered]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, CONTENT_FILE)
        file.write_bytes(content)
        return await _answers(file, asked)


async def _answers(book: Path, asked: Sequence[Asked]) -> list[Answered]:
    """The answers to these questions over the book, ingested as any other."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = settings_file.load({}, data_dir=Path(folder))
        async with wiring.open_database(settings, lambda _: None) as database:
            async with wiring.open_ingest(settings, database, lambda *_: None) as ingest:
                result = await ingest.run([book], BOOK, BOOK)
                assert not result.errors, result.errors
            async with wiring.open_house(settings, database) as house:
                generation = await house.library.live(BOOK)
                found = [await _answer(house, generation, settings.retrieval, item) for item in asked]
    return [item for item in found if item]


async def _answer(house: House, generation: Generation, retrieval: Any, asked: Asked) -> Answered | None:
    question = Question(asked.text, BOOK, retrieval.top_k)
    found = await house.engine.retriever.retrieve(question, generation)
    if refuse_weak_evidence(found, retrieval.threshold):
        return None
    draft = Draft("extractive")
    asked_again = Question(asked.text, BOOK, retrieval.top_k, wording=found.wording)
    claims = [claim async for claim in house.engine.generator.write(asked_again, found.evidence, draft)]
    draft.claims = [claim for claim in claims if is_proven(claim, found.evidence, NO_INSTRUCTIONS)]
    if refuse_unproven(draft, draft.claims, found.evidence):
        return None
    sentences = [quoted(claim, found.evidence, 1) for claim in draft.claims]
    released = house.engine.release(sentences, draft, question, generation)
    cited = {citation.passage for claim in draft.claims for citation in claim.citations}
    best = max((found.evidence[number] for number in cited), key=lambda item: item.candidate.score)
    quotes = "\n".join(citation.cited_text for claim in draft.claims for citation in claim.citations)
    return Answered(
        signs=_seen[-1],
        passage_score=best.candidate.score,
        confidence=released.confidence,
        is_right=_is_right(asked, quotes),
        is_passage_right=_is_right(asked, best.passage.text),
    )


def _is_right(asked: Asked, text: str) -> bool:
    if asked.must_quote is None:
        return False
    return answers.quotes_what_it_must(
        answers.LabelledQuestion(question="?", must_quote=asked.must_quote), text
    )


def _logistic(signs: Floats, right: Floats) -> tuple[float, Floats]:
    """Ridge regression by Newton's method; the intercept is not shrunk."""
    rows = np.c_[np.ones(len(signs)), signs]
    weights = np.zeros(rows.shape[1])
    shrink = RIDGE * len(rows) * np.diag([0.0, *np.ones(signs.shape[1])])
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-rows @ weights))
        slope = rows.T @ (chance - right) + shrink @ weights
        weights -= np.linalg.solve(rows.T @ (rows * (chance * (1 - chance))[:, None]) + shrink, slope)
    return float(weights[0]), weights[1:]


def _curve(pairs: Sequence[tuple[float, bool]], bins: int = 5) -> list[tuple[float, float]]:
    """Quantile bins, made monotone by pooling neighbours (isotonic regression)."""
    ordered = sorted(pairs)
    parts = [list(part) for part in np.array_split(np.array(ordered, dtype=float), bins)]
    pooled: list[list[Any]] = []
    for part in parts:
        pooled.append(part)
        while len(pooled) > 1 and np.mean(pooled[-2], axis=0)[1] > np.mean(pooled[-1], axis=0)[1]:
            pooled[-2:] = [pooled[-2] + pooled[-1]]
    means = [np.mean(part, axis=0) for part in pooled]
    return [(round(float(score), 3), round(float(share), 3)) for score, share in means]


def _show(name: str, found: Sequence[Answered]) -> None:
    confidences, rights = [item.confidence for item in found], [item.is_right for item in found]
    error = reliability.calibration_error(confidences, rights).value
    mean = sum(confidences) / len(found)
    print(
        f"{name:<20} {len(found):>6} answers, right {sum(rights) / len(found):.3f}, confidence {mean:.3f}, ECE {error:.3f}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    asyncio.run(main())
