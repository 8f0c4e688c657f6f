"""Score calibration: maps raw scores to comparable ones, with curves that belong to a generation. Pure.

A cosine of .45 is a good match for one embedder and noise for another; with the curves, the gate at 0.60 means the same
everywhere. A generation calibrates itself when it is published, with probe questions about other things
(`fit_unlabelled`). Labelled questions replace these curves by a certificate (`fit_labelled`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import NotSeparableError
from engine.models import Calibration, CalibrationKind, Curve, Generation
from engine.retrieval.lexical import NORMALISATION

# Right passages attain about .17 of the best BM25 possible for their question (5th, 50th, 95th percentile: .09, .17, .28).
FULL_ATTAINMENT = 0.175
# The distance between the scores of a high-scoring (loud) probe's best hit and of a typical one's. On XQuAD, SQuAD 2.0 and chunkeval .06 separates a
# little better than .10 (AUROC .989 for .988), and the scores above keep their spread.
LOUD_ABOVE = 0.06
# How far the gate is moved from the probes towards the score that all but the weakest keywords reach. Less than half,
# because readers' own words score lower than the book's. From .2 to .4 it hardly matters.
TOWARDS_KEYWORDS = 0.3
KEYWORDS_REFUSED = 0.05
# So many times the share of the probes may pass where keywords score no higher than they do.
PROBES_SLACK = 2.0
_CONSTANTS = (FULL_ATTAINMENT, LOUD_ABOVE, TOWARDS_KEYWORDS, KEYWORDS_REFUSED, PROBES_SLACK)
METHOD = f"two-sided-{_CONSTANTS}"  # a book with another method is calibrated again at its next ingest
SEPARATION_MIN = 0.90  # AUROC; below it no threshold separates the questions reliably
LABELLED_MIN = 30  # of each kind: with fewer, one question is more than 4 %
LET_THROUGH_MAX = 0.04  # the target of a labelled fit
STEP = 1e-6  # the minimum rise between the raw points of a curve

Raw = NDArray[np.float64]  # one question's candidates: a row (cosine, attainment) each
LabelKind = Literal["answerable", "out_of_scope", "near_miss"]
KINDS: tuple[LabelKind, ...] = ("answerable", "out_of_scope", "near_miss")


class Weights(NamedTuple):
    semantic: float
    lexical: float


class Gate(NamedTuple):
    """The gate that the curves are fitted for."""

    weights: Weights
    threshold: float


@dataclass(frozen=True, slots=True)
class ProbeScores:
    """The candidates that a generation returns for questions outside it, and for its own headings, sentences and keywords."""

    probes: Sequence[Raw]
    headings: Sequence[Raw]
    echoes: Sequence[Raw]
    keywords: Sequence[Raw] = ()  # a few words of a sentence each, as a reader may remember them


class Labelled(NamedTuple):
    """A labelled question with the candidates that it found."""

    text: str
    kind: LabelKind
    found: Raw


@dataclass(frozen=True, slots=True)
class Certificate:
    """Curves fitted to labelled questions, with their error rates on held-out questions."""

    calibration: Calibration
    data_sha256: str
    questions: dict[str, int]
    threshold: float
    kept: float  # share of the answerable questions that pass a gate fitted to the other half
    let_through: float  # the same of the out-of-scope ones
    near_misses_let_through: float | None
    risk_coverage: list[dict[str, float]]
    scores: dict[str, list[float]]  # the best of each question, by kind


def fit_unlabelled(
    found: ProbeScores, *, embedder: str, dimension: int, gate: Gate, refused: float
) -> Calibration:
    """Fits curves without labels, from both sides: questions outside the book from below, its own keywords from above.

    Every point of the similarity curve is a quantile of this generation's own distribution, so a monotone distortion of
    all cosines moves the points along: the best hit of a typical and of a high-scoring probe, and the book's own sentences,
    which map to 1. The score of the noise is then searched for, so that the gate refuses the share `refused` of the probes,
    and is moved towards the keywords: down where they score far above the probes, up where they hardly do.

    On 14 books (manuals, API pages, messages, courses, encyclopedias, abstracts, chats) the gate keeps .973 of the answerable
    questions and lets .039 of 200 far ones through. By the probes alone it is .976 and .066, and with 95 % of the probes
    refused .961 and .045. Books with at least .95 kept and at most .05 let through: 9, 4 and 6; 12 have such a threshold.
    """
    probes = _CandidateTable.of(found.probes)
    echo = float(np.median(_CandidateTable.of(found.echoes).best_cosines()))
    curves = _two_sided(probes, _CandidateTable.of(found.keywords), echo, gate, refused)
    headings = _CandidateTable.of(found.headings).best_scores(*curves, gate.weights)
    separation = auroc(headings, probes.best_scores(*curves, gate.weights)) if len(headings) else None
    return _calibration("self", embedder, dimension, curves, separation)


def fit_labelled(
    labelled: Sequence[Labelled], generation: Generation, gate: Gate, data_sha256: str
) -> Certificate:
    """Fits curves to labelled questions; `NotSeparableError` if no threshold separates the two kinds.

    Near misses are measured and not fitted to, because every score takes them for answerable questions.
    """
    _check_counts(labelled)
    echo = generation.calibration.similarity[-1][0]
    curves = _fit(labelled, echo, gate)
    scores = {kind: _table(labelled, kind).best_scores(*curves, gate.weights) for kind in KINDS}
    separation = auroc(scores["answerable"], scores["out_of_scope"])
    if separation < SEPARATION_MIN:
        raise NotSeparableError(
            f"The scores of answerable and out-of-scope questions hardly differ (AUROC {separation:.3f}, at least"
            f" {SEPARATION_MIN} is required), so no threshold separates them. Check the labels, and give questions that"
            " only sound like the book the kind near_miss."
        )
    passed = _held_out(labelled, echo, gate)
    return Certificate(
        calibration=_calibration("labelled", generation.embedder, generation.dimension, curves, separation),
        data_sha256=data_sha256,
        questions={kind: len(values) for kind, values in scores.items()},
        threshold=gate.threshold,
        kept=_share(passed["answerable"]),
        let_through=_share(passed["out_of_scope"]),
        near_misses_let_through=_share(passed["near_miss"]) if len(passed["near_miss"]) else None,
        risk_coverage=_risk_coverage(scores["answerable"], scores["out_of_scope"]),
        scores={kind: values.tolist() for kind, values in scores.items()},
    )  # fmt: skip


def mismatch(calibration: Calibration, embedder: str, dimension: int) -> str | None:
    """The reason why these curves do not fit a generation; None if they do."""
    pairs = {
        "embedder": (calibration.embedder, embedder),
        "dimension": (calibration.dimension, dimension),
        "normalisation": (calibration.normalisation, NORMALISATION),
    }
    wrong = [f"the {name} {made}, not {has}" for name, (made, has) in pairs.items() if made != has]
    return f"made for {' and '.join(wrong)}" if wrong else None


def separation_warnings(calibration: Calibration) -> tuple[str, ...]:
    """A warning for the book's author if the gate separates questions badly."""
    separation = calibration.separation
    if separation is None or separation >= SEPARATION_MIN:
        return ()
    doubt = (
        f"Questions about this book's headings score hardly better than questions about other things (AUROC"
        f" {separation:.2f}, expected {SEPARATION_MIN} or more), so the gate separates them badly. Check the ingested"
        " files, or calibrate with labelled questions: affidavit calibrate --help."
    )
    return (doubt,)


def shipped(embedder: str, dimension: int, similarity: Curve) -> Calibration:
    """The embedder's default curve, measured on other books."""
    return _calibration("shipped", embedder, dimension, (similarity, _lexical(FULL_ATTAINMENT)))


def from_json(stored: Mapping[str, Any]) -> Calibration:
    curves = {
        name: tuple((float(raw), float(meaning)) for raw, meaning in stored[name])
        for name in ("similarity", "lexical")
    }
    return Calibration(**{**stored, **curves})


def interpolate(curve: Curve, raw: float) -> float:
    """Piecewise linear interpolation, constant beyond both ends."""
    low, low_meaning = curve[0]
    if raw < low:
        return low_meaning
    for high, high_meaning in curve:
        if raw < high:
            return low_meaning + (high_meaning - low_meaning) * (raw - low) / (high - low)
        low, low_meaning = high, high_meaning
    return low_meaning


def extrapolate(curve: Curve, raw: float) -> float:
    """As `interpolate`, but the last line goes on beyond the curve's end."""
    if len(curve) < 2 or raw <= curve[-1][0]:  # noqa: PLR2004  a line needs two points
        return interpolate(curve, raw)
    (low, low_meaning), (high, high_meaning) = curve[-2:]
    return low_meaning + (high_meaning - low_meaning) * (raw - low) / (high - low)


def blended(similarity: float, lexical: float, weights: Weights) -> float:
    return weights.semantic * similarity + weights.lexical * lexical


def auroc(higher: NDArray[np.float64], lower: NDArray[np.float64]) -> float:
    """The probability that a score of the first kind exceeds one of the second; a tie counts half."""
    ordered = np.sort(lower)
    below = np.searchsorted(ordered, higher, "left") + np.searchsorted(ordered, higher, "right")
    return float(below.mean() / (2 * len(lower)))


_FULL_TRIED = (0.15, 0.20, 0.25, 0.30, 0.40)  # attainments that a labelled fit tries as a full lexical score
_RISK_STEPS = 100  # the gate is set to a hundredth


@dataclass(frozen=True, slots=True)
class _CandidateTable:
    """The candidates of many questions in one table; `starts` has the first row of each question."""

    rows: Raw
    starts: NDArray[np.intp]

    @classmethod
    def of(cls, raws: Sequence[Raw]) -> "_CandidateTable":
        held = [raw if len(raw) else np.zeros((1, 2)) for raw in raws]
        starts = np.cumsum([0, *(len(raw) for raw in held)])[:-1]
        return cls(np.concatenate(held) if held else np.zeros((0, 2)), starts)

    def best_cosines(self) -> NDArray[np.float64]:
        return np.maximum.reduceat(self.rows[:, 0], self.starts)

    def best_scores(self, similarity: Curve, lexical: Curve, weights: Weights) -> NDArray[np.float64]:
        if not len(self.starts):
            return np.zeros(0)
        meanings = [
            np.interp(self.rows[:, column].clip(0, 1), *np.transpose(curve))
            for column, curve in enumerate((similarity, lexical))
        ]
        scores = weights.semantic * meanings[0] + weights.lexical * meanings[1]
        return np.maximum.reduceat(scores, self.starts)


def _table(labelled: Sequence[Labelled], kind: LabelKind) -> _CandidateTable:
    return _CandidateTable.of([item.found for item in labelled if item.kind == kind])


def _similarity(noise: tuple[float, float], level: float, echo: float) -> Curve:
    """The cosines of typical and of loud noise are measured; `level`, their score, is fitted to the gate."""
    typical, loud = max(noise[0], STEP), max(noise[1], noise[0] + STEP, 2 * STEP)
    return ((0.0, 0.0), (typical, level), (loud, level + LOUD_ABOVE), (max(echo, loud + STEP), 1.0))


def _lexical(full: float) -> Curve:
    return ((0.0, 0.0), (full, 1.0))


def _curves(
    found: _CandidateTable, echo: float, full: float, gate: Gate, refused: float
) -> tuple[Curve, Curve]:
    noise = _noise(found, refused)
    return _similarity(noise, _level(found, noise, echo, full, gate, refused), echo), _lexical(full)


def _noise(found: _CandidateTable, refused: float) -> tuple[float, float]:
    cosines = found.best_cosines()
    return float(np.quantile(cosines, 0.5)), float(np.quantile(cosines, refused, method="higher"))


def _level(
    found: _CandidateTable, noise: tuple[float, float], echo: float, full: float, gate: Gate, refused: float
) -> float:
    """Bisects for the highest level at which the given share of these questions stays below the gate."""
    lexical = _lexical(full)
    low, high = STEP, 1.0 - LOUD_ABOVE - STEP
    while high - low > STEP:
        level = (low + high) / 2
        similarity = _similarity(noise, level, echo)
        below = found.best_scores(similarity, lexical, gate.weights) < gate.threshold
        low, high = (level, high) if below.mean() >= refused else (low, level)
    return low


def _two_sided(
    probes: _CandidateTable, keywords: _CandidateTable, echo: float, gate: Gate, refused: float
) -> tuple[Curve, Curve]:
    noise, lexical = _noise(probes, refused), _lexical(FULL_ATTAINMENT)
    level = _level(probes, noise, echo, FULL_ATTAINMENT, gate, refused)
    reached = keywords.best_scores(_similarity(noise, level, echo), lexical, gate.weights)
    if len(reached):
        highest = _level(probes, noise, echo, FULL_ATTAINMENT, gate, 1 - PROBES_SLACK * (1 - refused))
        level = min(_towards(reached, level, gate), highest)
    return _similarity(noise, level, echo), lexical


def _towards(reached: NDArray[np.float64], level: float, gate: Gate) -> float:
    """Lowers the curve by a share of the distance from the gate up to all but the weakest of the keywords."""
    above = float(np.quantile(reached, KEYWORDS_REFUSED)) - gate.threshold
    return max(STEP, level - TOWARDS_KEYWORDS * above / max(gate.weights.semantic, STEP))


def _fit(labelled: Sequence[Labelled], echo: float, gate: Gate) -> tuple[Curve, Curve]:
    """Grid search: the curve that keeps the most answerable questions, of those that let few enough through."""
    noise, answerable = _table(labelled, "out_of_scope"), _table(labelled, "answerable")
    tried = [_curves(noise, echo, full, gate, 1 - LET_THROUGH_MAX) for full in _FULL_TRIED]
    kept = [np.mean(answerable.best_scores(*curves, gate.weights) >= gate.threshold) for curves in tried]
    return tried[int(np.argmax(kept))]


def _halves(labelled: Sequence[Labelled]) -> tuple[list[Labelled], list[Labelled]]:
    """Two halves, balanced by kind and deterministic; equal questions go to the same half."""
    halves: tuple[list[Labelled], list[Labelled]] = ([], [])
    for kind in KINDS:
        held = [item for item in labelled if item.kind == kind]
        texts = sorted({item.text for item in held}, key=lambda text: sha256(text.encode()).digest())
        place = {text: number for number, text in enumerate(texts)}
        for item in held:
            halves[place[item.text] % 2].append(item)
    return halves


def _held_out(labelled: Sequence[Labelled], echo: float, gate: Gate) -> dict[LabelKind, NDArray[np.bool_]]:
    """Two-fold cross-validation: whether each question passes a gate that was fitted to the other half."""
    passed: dict[LabelKind, list[NDArray[np.bool_]]] = {kind: [] for kind in KINDS}
    one, other = _halves(labelled)
    for measured, fitted_to in ((one, other), (other, one)):
        curves = _fit(fitted_to, echo, gate)
        for kind in KINDS:
            scores = _table(measured, kind).best_scores(*curves, gate.weights)
            passed[kind].append(scores >= gate.threshold)
    return {kind: np.concatenate(parts) for kind, parts in passed.items()}


def _share(passed: NDArray[np.bool_]) -> float:
    return round(float(passed.mean()), 6)


def _risk_coverage(
    answerable: NDArray[np.float64], out_of_scope: NDArray[np.float64]
) -> list[dict[str, float]]:
    """The shares that every other threshold would keep and let through."""
    thresholds = [step / _RISK_STEPS for step in range(_RISK_STEPS + 1)]
    return [
        {"threshold": each, "kept": _share(answerable >= each), "let_through": _share(out_of_scope >= each)}
        for each in thresholds
    ]


def _check_counts(labelled: Sequence[Labelled]) -> None:
    for kind in ("answerable", "out_of_scope"):
        count = len({item.text for item in labelled if item.kind == kind})
        if count < LABELLED_MIN:
            raise NotSeparableError(
                f"Only {count} questions are {kind.replace('_', ' ')}. Add more: at least {LABELLED_MIN} are needed to measure"
                " the gate's error rate."
            )


def _calibration(
    kind: CalibrationKind,
    embedder: str,
    dimension: int,
    curves: tuple[Curve, Curve],
    separation: float | None = None,
) -> Calibration:
    """Content-addressed: the id is the hash of the content, so equal curves are one calibration."""
    unnamed = Calibration("", kind, embedder, dimension, NORMALISATION, *curves, separation)
    content = json.dumps(asdict(unnamed), sort_keys=True).encode()
    return replace(unnamed, calibration_id=f"{kind}-{sha256(content).hexdigest()[:12]}")
