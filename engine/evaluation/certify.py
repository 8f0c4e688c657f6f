"""Supervised calibration: labelled questions in, a certificate out, with the meaning of scores and the gate's error rates.

A line of the file is {"text": …, "answerable": true or false}. A question that sounds like the book but is not answered
by it also has "kind": "near_miss": no score separates it from an answerable one, so it is measured and not fitted to.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, StringConstraints

from audit.progress import Progress
from engine.evaluation import report
from engine.evaluation.labelled_set import LabelsError, rows
from engine.models import Curve, Generation
from engine.retrieval import calibrate
from engine.retrieval.calibrate import Certificate, Gate, LabelKind, Labelled
from engine.retrieval.retrieve import Retriever

SHOWN_STEP = 0.05  # of the printed table; the report and the certificate have more


class LabelledLine(BaseModel):
    """A labelled question."""

    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    answerable: bool
    kind: LabelKind | None = None

    def label(self) -> LabelKind:
        return self.kind or ("answerable" if self.answerable else "out_of_scope")


async def certificate(
    file: Path, retriever: Retriever, generation: Generation, gate: Gate, progress: Progress
) -> Certificate:
    """Asks the book every question as readers would, and fits the calibration to the scores."""
    lines = list(rows(file, LabelledLine, _check))
    if not lines:
        hint = "Add one JSON object per line, as in `affidavit calibrate --help`."
        raise LabelsError(f"{file} contains no questions. {hint}")
    labelled = []
    for number, line in enumerate(lines, start=1):
        search = await retriever.prepare(line.text, generation)
        found = [(item.cosine, item.attainment) for item in await retriever.candidates(search)]
        labelled.append(Labelled(line.text, line.label(), np.array(found).reshape(-1, 2)))
        progress("Asking questions", number, len(lines))
    return calibrate.fit_labelled(labelled, generation, gate, sha256(file.read_bytes()).hexdigest())


def _check(line: LabelledLine) -> None:
    if line.answerable != (line.label() == "answerable"):
        given = f"answerable is {str(line.answerable).lower()}"
        raise ValueError(f"{given}, which contradicts the kind {line.kind}. Change one of them")


def about(certified: Certificate) -> str:
    """The certificate in a few lines of text."""
    counts = [(kind.replace("_", " "), count) for kind, count in certified.questions.items() if count]
    asked = ", ".join(f"{count:,} {kind}" for kind, count in counts)
    near, separation = certified.near_misses_let_through, certified.calibration.separation or 0.0
    misses = ""
    if near is not None:
        misses = f" ({near:.1%} of the near misses: only reading the passages can tell those)"
    return (
        f"Certificate {certified.calibration.calibration_id}: {asked}; AUROC {separation:.3f}.\n"
        f"On questions that the gate was not fitted to, it keeps {certified.kept:.1%} of the answerable ones and lets"
        f" {certified.let_through:.1%} of the out-of-scope ones through{misses}."
    )


def table(certified: Certificate) -> list[dict[str, str]]:
    """Risk and coverage at some thresholds; the gate's threshold is marked."""
    steps = {round(step * SHOWN_STEP, 2) for step in range(round(1 / SHOWN_STEP) + 1)}
    places = steps | {certified.threshold}
    points = [point for point in certified.risk_coverage if round(point["threshold"], 2) in places]
    return [
        {
            "threshold": f"{point['threshold']:.2f}{' (gate)' if point['threshold'] == certified.threshold else ''}",
            "answerable kept": f"{point['kept']:.1%}",
            "out of scope let through": f"{point['let_through']:.1%}",
        }
        for point in points
    ]


def page(certified: Certificate, book_id: str) -> str:
    """The report as one HTML file."""
    answerable = certified.scores["answerable"]
    others = {kind: scores for kind, scores in certified.scores.items() if scores and kind != "answerable"}
    return report.page(
        f"Calibration of {book_id}",
        report.paragraph(about(certified)),
        report.paragraph(
            f"Embedder {certified.calibration.embedder}, {certified.calibration.dimension} dimensions, lexical score"
            f" {certified.calibration.normalisation}. SHA-256 of the questions: {certified.data_sha256}."
        ),
        *report.gate(
            {kind: report.curve(answerable, scores) for kind, scores in others.items()},
            {"answerable": answerable, **others},
            certified.threshold,
        ),
        report.heading("Risk and coverage"),
        _rows(table(certified)),
        report.heading("What a raw score means"),
        _rows(_curve("cosine", "similarity", certified.calibration.similarity)),
        _rows(_curve("attainment", "lexical", certified.calibration.lexical)),
    )


def _rows(found: Sequence[dict[str, str]]) -> report.Markup:
    return report.table(list(found[0]), [list(row.values()) for row in found])


def _curve(raw: str, meaning: str, points: Curve) -> list[dict[str, str]]:
    return [{raw: f"{place:.4f}", meaning: f"{value:.2f}"} for place, value in points]
