"""An offline evaluation of whole answers: does each quote what it must, and is a question refused if the book does not answer it?

The labelled questions go through a whole engine over a copy of the book, so each is answered as a reader's would be.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from audit.progress import Progress
from engine.errors import RequestError
from engine.evaluation import reliability
from engine.evaluation.figures import Figure, mean_figure
from engine.evaluation.labelled_set import rows
from engine.evaluation.reliability import ReliabilityBin
from engine.models import Answer, ConfidenceLevel, Released

Kind = Literal["answerable", "attribute_missing", "outside"]
Outcome = Literal["right", "wrong", "refused", "failed"]
MUST_BE_REFUSED: tuple[Kind, ...] = ("attribute_missing", "outside")
LEVELS: tuple[ConfidenceLevel, ...] = ("high", "medium", "low")


class LabelledQuestion(BaseModel):
    """A line of the file. `must_quote` is a list of requirements, each a list of phrases of which the answer quotes one.

    A question of another kind than answerable must be refused.
    """

    question: str = Field(min_length=1)
    kind: Kind = "answerable"
    must_quote: list[list[str]] = []


@dataclass(frozen=True, slots=True)
class AnswerTrial:
    """One question, and what the engine made of it."""

    question: str
    kind: Kind
    outcome: Outcome
    answer: str
    reason: str | None = None  # of a refusal or a failure
    level: ConfidenceLevel | None = None
    confidence: float | None = None
    what_went_wrong: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerEvaluation:
    """The result that is reported; `--json` prints it."""

    generator: str
    questions: dict[str, int]
    figures: dict[str, Figure]
    wrong: dict[str, int]  # questions by what went wrong
    reliability: list[ReliabilityBin]
    trials: list[AnswerTrial]


def read(file: Path) -> list[LabelledQuestion]:
    return list(rows(file, LabelledQuestion, _check))


async def evaluate(
    labelled: Sequence[LabelledQuestion],
    ask: Callable[[str], Awaitable[tuple[Answer, str]]],
    generator: str,
    progress: Progress,
) -> AnswerEvaluation:
    """Asks the questions one after another, each for its answer and the text of the passages that were found. A question
    that fails is neither right nor refused."""
    trials = []
    for number, item in enumerate(labelled, start=1):
        trials.append(await _try(item, ask))
        progress("Asking", number, len(labelled))
    kinds = Counter[str](item.kind for item in labelled)
    answered = [(t.confidence, t.outcome == "right") for t in trials if t.confidence is not None]
    return AnswerEvaluation(
        generator,
        dict(kinds),
        dict(_figures(trials)),
        dict(Counter(trial.what_went_wrong for trial in trials if trial.what_went_wrong)),
        reliability.bins([c for c, _ in answered], [right for _, right in answered]),
        trials,
    )


def quotes_what_it_must(labelled: LabelledQuestion, answer: str) -> bool:
    """Compares without case, and white space counts once, because a page wraps its lines anywhere."""
    return all(_quotes_one(phrases, answer) for phrases in labelled.must_quote)


def _quotes_one(phrases: Sequence[str], answer: str) -> bool:
    said = _folded(answer)
    return any(_folded(phrase) in said for phrase in phrases)


def wrong_trials(found: AnswerEvaluation) -> list[AnswerTrial]:
    """What was not answered or refused as it should be."""
    return [trial for trial in found.trials if not _is_as_labelled(trial)]


async def _try(
    labelled: LabelledQuestion, ask: Callable[[str], Awaitable[tuple[Answer, str]]]
) -> AnswerTrial:
    try:
        answer, passages = await ask(labelled.question)
    except RequestError as failure:
        return AnswerTrial(labelled.question, labelled.kind, "failed", "", failure.detail)
    outcome = answer.outcome
    if not isinstance(outcome, Released):
        what = f"refused: {outcome.reason.value}" if labelled.kind == "answerable" else None
        return AnswerTrial(
            labelled.question, labelled.kind, "refused", "", outcome.reason.value, what_went_wrong=what
        )
    is_right = labelled.kind == "answerable" and quotes_what_it_must(labelled, outcome.text)
    return AnswerTrial(
        labelled.question,
        labelled.kind,
        "right" if is_right else "wrong",
        outcome.text,
        level=outcome.confidence_level,
        confidence=outcome.confidence,
        what_went_wrong=None if is_right else _what_went_wrong(labelled, outcome.text, passages),
    )


def _what_went_wrong(labelled: LabelledQuestion, answer: str, passages: str) -> str:
    if labelled.kind != "answerable":
        return f"answered, though {labelled.kind.replace('_', ' ')}"
    if any(_quotes_one(phrases, answer) for phrases in labelled.must_quote):
        return "only a part of the answer"
    is_found = quotes_what_it_must(labelled, passages)
    return "another sentence of the right passages" if is_found else "other passages were found"


def _is_as_labelled(trial: AnswerTrial) -> bool:
    return trial.outcome == ("refused" if trial.kind in MUST_BE_REFUSED else "right")


def _figures(trials: Sequence[AnswerTrial]) -> Iterator[tuple[str, Figure]]:
    answerable = [trial for trial in trials if trial.kind == "answerable"]
    yield "right", mean_figure([trial.outcome == "right" for trial in answerable])
    yield "refused_answerable", mean_figure([trial.outcome == "refused" for trial in answerable])
    for kind in MUST_BE_REFUSED:
        yield f"refused_{kind}", mean_figure([t.outcome == "refused" for t in trials if t.kind == kind])
    answered = [(t.confidence, t.outcome == "right") for t in trials if t.confidence is not None]
    yield (
        "calibration_error",
        reliability.calibration_error([c for c, _ in answered], [r for _, r in answered]),
    )
    for level in LEVELS:
        yield f"right_{level}", mean_figure([t.outcome == "right" for t in trials if t.level == level])


def _check(labelled: LabelledQuestion) -> None:
    if labelled.kind == "answerable" and not any(labelled.must_quote):
        raise ValueError("an answerable question needs must_quote: the phrases that its answer has to quote")


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
