"""Reliability of a confidence: are of the answers with 80 % confidence 80 % right? Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.evaluation import charts, report
from engine.evaluation.figures import Figure, Floats, paired_figure

BINS = 10


class ReliabilityBin(NamedTuple):
    """The answers whose confidence lies between two tenths."""

    confidence: float  # their mean
    right: float
    answers: int


def bins(confidences: Sequence[float], rights: Sequence[bool]) -> list[ReliabilityBin]:
    """The bins that have answers, from the lowest confidence on."""
    held: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for confidence, is_right in zip(confidences, rights, strict=True):
        held[min(BINS - 1, int(confidence * BINS))].append((confidence, is_right))
    return [
        ReliabilityBin(
            sum(c for c, _ in items) / len(items), sum(r for _, r in items) / len(items), len(items)
        )
        for items in held
        if items
    ]


def calibration_error(confidences: Sequence[float], rights: Sequence[bool]) -> Figure:
    """The expected calibration error: the mean distance between confidence and share right, weighted by answers."""
    return paired_figure([(c, float(right)) for c, right in zip(confidences, rights, strict=True)], _error)


def diagram(found: Sequence[ReliabilityBin]) -> tuple[report.Markup, ...]:
    if not found:
        return ()
    series = [
        charts.Series("answers", [(item.confidence, item.right) for item in found], marked=True),
        charts.Series("as it should be", [(0.0, 0.0), (1.0, 1.0)]),
    ]
    told = "; ".join(
        f"{item.answers} answers of {item.confidence:.0%} are right in {item.right:.0%}" for item in found
    )
    return (
        report.heading("Reliability of the confidence"),
        report.figure(
            charts.line_chart(
                "Confidence, and the share of answers that are right", told, series,
                charts.Axis("confidence", 0, 1, share=True), charts.Axis("right", 0, 1, share=True),
            )
        ),
        report.table(["Confidence", "Right", "Answers"], [list(item) for item in found]),
    )  # fmt: skip


def _error(answers: Floats) -> float:
    found = bins(answers[:, 0].tolist(), (answers[:, 1] > 0).tolist())
    return sum(item.answers * abs(item.confidence - item.right) for item in found) / len(answers)
