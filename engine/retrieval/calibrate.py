"""What a raw score means. Pure.

A cosine of .45 is a fine match for one embedder and noise for another, so raw scores pass through curves that belong to
the generation, and the gate at 0.60 means the same everywhere. A generation finds its own curves when it is published,
by asking it what is not in it (`fit_unlabelled`); whoever has labelled questions replaces them (`fitted`).
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import NotSeparableError
from engine.models import Calibration, Curve, Generation
from engine.retrieval.lexical import NORMALISATION

# Right passages attain about .17 of the BM25 that is possible for their questions (5, 50, 95 %: .09, .17, .28).
FULL_ATTAINMENT = 0.175
# How much higher a loud probe's best hit stands than a typical one's. On XQuAD, SQuAD 2.0 and chunkeval .06 separates a
# little better than .10 (AUROC .989 for .988), and the scores above keep their spread.
LOUD_ABOVE = 0.06
METHOD = f"level-{FULL_ATTAINMENT}-{LOUD_ABOVE}"  # a book calibrated in another way calibrates itself again
SEPARATION_MIN = 0.90  # AUROC; below it a threshold is a lottery whatever it is
LABELLED_MIN = 30  # of each kind: with fewer a share of 4 % is one question
LET_THROUGH_MAX = 0.04  # what a labelled fit aims at
STEP = 1e-6  # raw points of a curve must rise

Raw = NDArray[np.float64]  # one question's candidates: a row (cosine, attainment) each
LabelKind = Literal["answerable", "out_of_scope", "near_miss"]
KINDS: tuple[LabelKind, ...] = ("answerable", "out_of_scope", "near_miss")


class Weights(NamedTuple):
    """How much each part counts in the blend."""

    semantic: float
    lexical: float


class Gate(NamedTuple):
    """What the scores are made for."""

    weights: Weights
    threshold: float


@dataclass(frozen=True, slots=True)
class ProbeScores:
    """What a generation answered when it was asked what is not in it, what is, and its own sentences."""

    probes: Sequence[Raw]
    headings: Sequence[Raw]
    echoes: Sequence[Raw]


class Labelled(NamedTuple):
    """A question whose answer is known to be in the book or not, and what it found there."""

    text: str
    kind: LabelKind
    found: Raw


@dataclass(frozen=True, slots=True)
class Certificate:
    """Curves fitted to labelled questions, and how well they do on questions that they were not fitted to."""

    calibration: Calibration
    data_sha256: str
    questions: dict[str, int]
    threshold: float
    kept: (
        float  # share of the answerable questions that pass a gate fitted to the other half of the questions
    )
    let_through: float  # the same of the out-of-scope ones
    near_misses_let_through: float | None
    risk_coverage: list[dict[str, float]]
    scores: dict[str, list[float]]  # the best of each question, by kind


def fit_unlabelled(
    soundings: ProbeScores, *, embedder: str, dimension: int, gate: Gate, refused: float
) -> Calibration:
    """Curves without labels: the share `refused` of the probes falls below the gate.

    Every point of the similarity curve is a place in this generation's own distribution, so a monotone distortion of
    all cosines moves the points along: the best hit of a typical and of a loud probe, and the book's own sentences,
    which stand at 1. How high the noise stands is then found so that the gate refuses what it should.
    """
    probes = _Found.of(soundings.probes)
    echo = float(np.median(_Found.of(soundings.echoes).best_cosines()))
    curves = _curves(probes, echo, FULL_ATTAINMENT, gate, refused)
    headings = _Found.of(soundings.headings).best_scores(*curves, gate.weights)
    separation = auroc(headings, probes.best_scores(*curves, gate.weights)) if len(headings) else None
    return _named(Calibration("", "self", embedder, dimension, NORMALISATION, *curves, separation))


def fit_labelled(
    labelled: Sequence[Labelled], generation: Generation, gate: Gate, data_sha256: str
) -> Certificate:
    """Curves from labelled questions; `NotSeparableError` if no threshold could tell the two kinds apart.

    Near misses are measured and not fitted to: to every score they look like answerable questions.
    """
    _check_counts(labelled)
    echo = generation.calibration.similarity[-1][0]
    curves = _fit(labelled, echo, gate)
    scores = {
        kind: _Found.of([item.found for item in labelled if item.kind == kind]).best_scores(
            *curves, gate.weights
        )
        for kind in KINDS
    }
    separation = auroc(scores["answerable"], scores["out_of_scope"])
    if separation < SEPARATION_MIN:
        raise NotSeparableError(
            f"The scores of answerable and out-of-scope questions hardly differ (AUROC {separation:.3f}, at least"
            f" {SEPARATION_MIN} is needed), so no threshold is worth a certificate. Check the labels; questions that"
            " only sound like the book are of the kind near_miss."
        )
    passed = _held_out(labelled, echo, gate)
    return Certificate(
        calibration=_named(Calibration(
            "", "labelled", generation.embedder, generation.dimension, NORMALISATION, *curves, separation
        )),
        data_sha256=data_sha256,
        questions={kind: len(values) for kind, values in scores.items()},
        threshold=gate.threshold,
        kept=_share(passed["answerable"]),
        let_through=_share(passed["out_of_scope"]),
        near_misses_let_through=_share(passed["near_miss"]) if len(passed["near_miss"]) else None,
        risk_coverage=list(_risk_coverage(scores["answerable"], scores["out_of_scope"])),
        scores={kind: values.tolist() for kind, values in scores.items()},
    )  # fmt: skip


def mismatch(calibration: Calibration, embedder: str, dimension: int) -> str | None:
    """What keeps these curves from meaning anything for a generation; None if nothing does."""
    pairs = {
        "embedder": (calibration.embedder, embedder),
        "dimension": (calibration.dimension, dimension),
        "normalisation": (calibration.normalisation, NORMALISATION),
    }
    wrong = [f"the {name} {made}, not {has}" for name, (made, has) in pairs.items() if made != has]
    return f"made for {' and '.join(wrong)}" if wrong else None


def separation_warnings(calibration: Calibration) -> tuple[str, ...]:
    """What an author should know about a gate like this."""
    separation = calibration.separation
    if separation is None or separation >= SEPARATION_MIN:
        return ()
    doubt = (
        f"Questions about this book's headings score hardly better than questions about other things (AUROC"
        f" {separation:.2f}, expected {SEPARATION_MIN} or more), so the gate cannot tell them apart well. Look at what"
        " was ingested, or calibrate with labelled questions: affidavit calibrate --help."
    )
    return (doubt,)


def shipped(embedder: str, dimension: int, similarity: Curve) -> Calibration:
    """The embedder's own curve, measured on other books than this one."""
    lexical = _lexical(FULL_ATTAINMENT)
    return _named(Calibration("", "shipped", embedder, dimension, NORMALISATION, similarity, lexical))


def from_json(stored: Mapping[str, Any]) -> Calibration:
    curves = {
        name: tuple((float(raw), float(meaning)) for raw, meaning in stored[name])
        for name in ("similarity", "lexical")
    }
    return Calibration(**{**stored, **curves})


def interpolate(curve: Curve, raw: float) -> float:
    """The meaning of a raw score: on the line between its neighbours, flat beyond the ends."""
    after = bisect_right(curve, raw, key=lambda point: point[0])
    if after == 0:
        return curve[0][1]
    if after == len(curve):
        return curve[-1][1]
    (low, low_meaning), (high, high_meaning) = curve[after - 1], curve[after]
    return low_meaning + (high_meaning - low_meaning) * (raw - low) / (high - low)


def blended(similarity: float, lexical: float, weights: Weights) -> float:
    return weights.semantic * similarity + weights.lexical * lexical


def auroc(higher: NDArray[np.float64], lower: NDArray[np.float64]) -> float:
    """How often a score of the first kind lies above one of the second; ties count half."""
    ordered = np.sort(lower)
    below = np.searchsorted(ordered, higher, "left") + np.searchsorted(ordered, higher, "right")
    return float(below.mean() / (2 * len(lower)))


_FULL_TRIED = (0.15, 0.20, 0.25, 0.30, 0.40)  # attainments that a labelled fit tries as a full lexical score
_RISK_STEPS = 100  # the gate is set to a hundredth


@dataclass(frozen=True, slots=True)
class _Found:
    """The candidates of many questions in one table; `starts` says where each question's begin."""

    rows: Raw
    starts: NDArray[np.intp]

    @classmethod
    def of(cls, raws: Sequence[Raw]) -> "_Found":
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


def _similarity(noise: tuple[float, float], level: float, echo: float) -> Curve:
    """Where typical and where loud noise stands is known; how high they score is what the gate decides."""
    typical, loud = max(noise[0], STEP), max(noise[1], noise[0] + STEP, 2 * STEP)
    return ((0.0, 0.0), (typical, level), (loud, level + LOUD_ABOVE), (max(echo, loud + STEP), 1.0))


def _lexical(full: float) -> Curve:
    return ((0.0, 0.0), (full, 1.0))


def _curves(found: _Found, echo: float, full: float, gate: Gate, refused: float) -> tuple[Curve, Curve]:
    """The highest curve at which enough of these questions stay below the gate."""
    cosines = found.best_cosines()
    noise = float(np.quantile(cosines, 0.5)), float(np.quantile(cosines, refused, method="higher"))
    lexical = _lexical(full)
    low, high = STEP, 1.0 - LOUD_ABOVE - STEP
    while high - low > STEP:
        level = (low + high) / 2
        similarity = _similarity(noise, level, echo)
        below = found.best_scores(similarity, lexical, gate.weights) < gate.threshold
        low, high = (level, high) if below.mean() >= refused else (low, level)
    return _similarity(noise, low, echo), lexical


def _fit(labelled: Sequence[Labelled], echo: float, gate: Gate) -> tuple[Curve, Curve]:
    """Of the curves that let few enough through, those that keep most."""
    noise = _Found.of([item.found for item in labelled if item.kind == "out_of_scope"])
    answerable = _Found.of([item.found for item in labelled if item.kind == "answerable"])
    tried = [_curves(noise, echo, full, gate, 1 - LET_THROUGH_MAX) for full in _FULL_TRIED]
    kept = [np.mean(answerable.best_scores(*curves, gate.weights) >= gate.threshold) for curves in tried]
    return tried[int(np.argmax(kept))]


def _halves(labelled: Sequence[Labelled]) -> tuple[list[Labelled], list[Labelled]]:
    """Two halves with as many of each kind, always the same ones; equal questions are in the same half."""
    halves: tuple[list[Labelled], list[Labelled]] = ([], [])
    for kind in KINDS:
        held = [item for item in labelled if item.kind == kind]
        texts = sorted({item.text for item in held}, key=lambda text: sha256(text.encode()).digest())
        place = {text: number for number, text in enumerate(texts)}
        for item in held:
            halves[place[item.text] % 2].append(item)
    return halves


def _held_out(labelled: Sequence[Labelled], echo: float, gate: Gate) -> dict[LabelKind, NDArray[np.bool_]]:
    """Whether each question passes a gate that was fitted to the other half."""
    passed: dict[LabelKind, list[NDArray[np.bool_]]] = {kind: [] for kind in KINDS}
    one, other = _halves(labelled)
    for measured, fitted_to in ((one, other), (other, one)):
        curves = _fit(fitted_to, echo, gate)
        for kind in KINDS:
            asked = [item.found for item in measured if item.kind == kind]
            passed[kind].append(_Found.of(asked).best_scores(*curves, gate.weights) >= gate.threshold)
    return {kind: np.concatenate(parts) for kind, parts in passed.items()}


def _share(passed: NDArray[np.bool_]) -> float:
    return round(float(passed.mean()), 6)


def _risk_coverage(
    answerable: NDArray[np.float64], out_of_scope: NDArray[np.float64]
) -> Iterator[dict[str, float]]:
    """What another threshold would keep and let through, by these curves."""
    for step in range(_RISK_STEPS + 1):
        threshold = step / _RISK_STEPS
        yield {
            "threshold": threshold,
            "kept": _share(answerable >= threshold),
            "let_through": _share(out_of_scope >= threshold),
        }


def _check_counts(labelled: Sequence[Labelled]) -> None:
    for kind in ("answerable", "out_of_scope"):
        count = len({item.text for item in labelled if item.kind == kind})
        if count < LABELLED_MIN:
            raise NotSeparableError(
                f"Only {count} questions are {kind.replace('_', ' ')}: at least {LABELLED_MIN} are needed to say"
                " what share of them the gate treats rightly."
            )


def _named(calibration: Calibration) -> Calibration:
    """Its id is the hash of what it says: equal curves are one calibration."""
    said = json.dumps(asdict(calibration), sort_keys=True).encode()
    return replace(calibration, calibration_id=f"{calibration.kind}-{sha256(said).hexdigest()[:12]}")
