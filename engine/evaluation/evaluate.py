"""An offline evaluation of retrieval, gate and citations: a labelled set in, figures and curves out.

The questions go to the parts of an engine directly, so nothing is recorded. The figures rank the ten best passages as the
retriever returns them; targets.py defines a hit, and `evaluation_report.MEANING` defines each figure.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from audit.progress import Progress
from engine.errors import RequestError
from engine.evaluation import reliability, report
from engine.evaluation.figures import Figure, auroc_figure, mean_figure
from engine.evaluation.labelled_set import OTHERS, SHOWN_CHARACTERS, LabelledSet, Query, QuestionKind
from engine.evaluation.reliability import ReliabilityBin
from engine.evaluation.targets import RANKED, RECALLED, Marking
from engine.grounding import cite
from engine.grounding.verify import NO_INSTRUCTIONS, is_proven, refuse_unproven
from engine.models import (
    Candidate,
    Draft,
    Generation,
    Passage,
    Question,
    Quoted,
    Refusal,
    Released,
    Retrieved,
)
from engine.ports import Generator
from engine.retrieval.gate import refuse_weak_evidence
from engine.retrieval.retrieve import Retriever

PARTS: Mapping[str, Callable[[Candidate], float]] = {
    "dense": lambda item: item.cosine,
    "bm25": lambda item: item.bm25,
}
SHOWN = 20  # the worst questions that a report lists: as many as an author reads


@dataclass(frozen=True, slots=True)
class Subject:
    """The parts of an engine that are measured, and the set as one of its books."""

    retriever: Retriever
    generator: Generator | None  # None: the retrieval only
    generation: Generation
    passages: Sequence[Passage]  # all of the book
    threshold: float
    top_k: int
    confidence: Callable[[Sequence[Quoted], Draft, Question, Generation], Released]


@dataclass(frozen=True, slots=True)
class Trial:
    """One question and its outcome."""

    kind: QuestionKind
    query: Query
    best_score: float
    found: str  # the beginning of the best passage
    ranks: Mapping[str, float] = field(default_factory=dict)  # by the blend, and by each of its parts
    released: Released | None = None
    refused: str | None = None  # the reason
    cited: tuple[float, float] | None = None  # citation hit and overlap

    @property
    def is_answered(self) -> bool:
        return self.released is not None

    @property
    def is_right(self) -> bool:
        """Whether an answer cites a labelled span, or, where there is none, whether it should be given at all."""
        hit = self.cited is None or self.cited[0] > 0
        return self.is_answered and self.kind == "answerable" and hit


@dataclass(frozen=True, slots=True)
class Mistake:
    """A question with a wrong outcome, described for the book's author."""

    question: str
    expected: str
    found: str
    score: float
    what: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result that is reported; `--json` prints it."""

    name: str
    documents: int
    passages: int
    questions: dict[str, int]
    targets: Literal["documents", "spans"]
    unreachable_targets: int  # spans that no passage contains as a whole
    embedder: str
    generator: str | None
    calibration_id: str
    calibration_kind: str
    threshold: float
    figures: dict[str, Figure]
    curves: dict[str, list[report.CurvePoint]]
    scores: dict[str, list[float]]
    wrong: dict[str, int]  # questions by what went wrong
    reliability: list[ReliabilityBin]
    missed: list[Mistake]
    let_through: list[Mistake]
    failures: list[dict[str, str]]


async def evaluate(labelled: LabelledSet, subject: Subject, progress: Progress) -> Evaluation:
    """Asks the questions one after another. A question that fails is listed and left out of the figures."""
    marking = Marking(labelled, subject.passages)
    asked = list(labelled.questions())
    trials, failures = [], []
    for number, (kind, query) in enumerate(asked, start=1):
        try:
            trials.append(await _ask(kind, query, subject, marking))
        except RequestError as failure:
            failures.append({"question": query.name, "error": failure.detail})
        progress("Asking", number, len(asked))
    return _summary(labelled, subject, marking, trials, failures)


async def _ask(kind: QuestionKind, query: Query, subject: Subject, marking: Marking) -> Trial:
    generation = subject.generation
    question = Question(
        query.text, generation.book_id, RANKED, language=generation.language, embedder=generation.embedder
    )
    found: Retrieved = await subject.retriever.retrieve(question, generation)
    best = found.evidence[0].passage if found.evidence else None
    outcome: Released | Refusal | None = refuse_weak_evidence(found, subject.threshold)
    if subject.generator and outcome is None:
        outcome = await _outcome(question, found, subject)
    released = outcome if isinstance(outcome, Released) else None
    return Trial(
        kind=kind,
        query=query,
        best_score=found.best_score,
        found=_short(f"{best.section}: {best.text}") if best else "nothing",
        ranks=await _ranks(query, found, subject, marking),
        released=released,
        refused=outcome.reason.value if isinstance(outcome, Refusal) else None,
        cited=marking.cited(query, released.excerpts) if released else None,
    )


async def _ranks(query: Query, found: Retrieved, subject: Subject, marking: Marking) -> dict[str, float]:
    """By the blend as it is served, and by the order of each part alone."""
    search = await subject.retriever.prepare(query.text, subject.generation)
    candidates = await subject.retriever.candidates(search)
    ranks = marking.ranks(query, [item.passage.chunk_id for item in found.evidence])
    for part, score in PARTS.items():
        ordered = [item.chunk_id for item in sorted(candidates, key=score, reverse=True)]
        ranks |= {f"{name}_{part}": value for name, value in marking.ranks(query, ordered).items()}
    return ranks


async def _outcome(question: Question, found: Retrieved, subject: Subject) -> Released | Refusal:
    """What a reader would see."""
    generator, evidence = subject.generator, found.evidence[: subject.top_k]
    assert generator
    draft = Draft(generator.name)
    proven: list[Quoted] = []
    excerpts = 0
    async for claim in generator.write(replace(question, wording=found.wording), evidence, draft):
        draft.claims.append(claim)
        if is_proven(claim, evidence, NO_INSTRUCTIONS):
            proven.append(cite.quoted(claim, evidence, excerpts + 1))
            excerpts += len(claim.citations)
    return refuse_unproven(draft, proven, evidence) or subject.confidence(
        proven, draft, question, subject.generation
    )


def _summary(
    labelled: LabelledSet, subject: Subject, marking: Marking, trials: Sequence[Trial], failures: list[dict[str, str]]
) -> Evaluation:  # fmt: skip
    kinds: Sequence[QuestionKind] = ("answerable", *OTHERS)
    scores = {kind: [trial.best_score for trial in trials if trial.kind == kind] for kind in kinds}
    calibration = subject.generation.calibration
    answered = [(trial.released.confidence, trial.is_right) for trial in trials if trial.released]
    return Evaluation(
        name=labelled.name,
        documents=len(labelled.documents),
        passages=len(subject.passages),
        questions=dict(Counter(kind for kind, _ in labelled.questions())),
        targets="spans" if marking.by_span else "documents",
        unreachable_targets=sum(map(marking.unreachable, labelled.queries.values())),
        embedder=subject.generation.embedder,
        generator=subject.generator.name if subject.generator else None,
        calibration_id=calibration.calibration_id,
        calibration_kind=calibration.kind,
        threshold=subject.threshold,
        figures=dict(_figures(trials, scores, subject)),
        curves={kind: report.curve(scores["answerable"], scores[kind]) for kind in OTHERS if scores[kind]},
        scores={kind: [round(score, 5) for score in values] for kind, values in scores.items() if values},
        wrong=dict(Counter(filter(None, map(_what_went_wrong, trials)))) if subject.generator else {},
        reliability=reliability.bins([c for c, _ in answered], [right for _, right in answered]),
        missed=_missed(trials, subject, marking),
        let_through=_let_through(trials, subject),
        failures=failures,
    )  # fmt: skip


def _figures(
    trials: Sequence[Trial], scores: Mapping[QuestionKind, Sequence[float]], subject: Subject
) -> Iterator[tuple[str, Figure]]:
    """The figures for which the set has questions."""
    answerable = [trial for trial in trials if trial.kind == "answerable"]
    for name in ("recall@5", "mrr@10", "ndcg@10", *(f"ndcg@10_{part}" for part in PARTS)):
        yield name, mean_figure([trial.ranks[name] for trial in answerable])
    yield "kept", mean_figure([score >= subject.threshold for score in scores["answerable"]])
    others = [kind for kind in OTHERS if scores[kind]]
    for kind in others:
        yield f"let_through_{kind}", mean_figure([score >= subject.threshold for score in scores[kind]])
        yield f"auroc_{kind}", auroc_figure(scores["answerable"], scores[kind])
    if subject.generator is None:
        return
    for kind in ("answerable", *others):
        yield f"answered_{kind}", mean_figure([trial.is_answered for trial in trials if trial.kind == kind])
    answered = [(trial.released.confidence, trial.is_right) for trial in trials if trial.released]
    yield (
        "calibration_error",
        reliability.calibration_error([c for c, _ in answered], [r for _, r in answered]),
    )
    cited = [trial.cited for trial in answerable if trial.cited]
    if any(trial.query.spans for trial in answerable):
        yield "citation_hit", mean_figure([hit for hit, _ in cited])
        yield "excerpt_overlap", mean_figure([share for _, share in cited])


def _what_went_wrong(trial: Trial) -> str | None:
    if trial.kind != "answerable":
        return "answered, though the book does not" if trial.is_answered else None
    if trial.refused:
        return f"refused: {trial.refused}"
    if trial.is_right:
        return None
    return (
        "another sentence of the right passages" if trial.ranks["recall@5"] else "other passages were found"
    )


def _missed(trials: Sequence[Trial], subject: Subject, marking: Marking) -> list[Mistake]:
    """Answerable questions that were not found or stayed below the gate, worst first."""
    answerable = (trial for trial in trials if trial.kind == "answerable")
    threshold = subject.threshold
    missed = [trial for trial in answerable if trial.ranks["recall@5"] < 1 or trial.best_score < threshold]
    missed.sort(key=lambda trial: (trial.ranks["ndcg@10"], trial.best_score))
    return [_mistake(trial, _expected(trial, marking), _fault(trial)) for trial in missed[:SHOWN]]


def _let_through(trials: Sequence[Trial], subject: Subject) -> list[Mistake]:
    """Questions outside the book that passed the gate; those that were answered come first."""
    through = [trial for trial in trials if trial.kind in OTHERS and trial.best_score >= subject.threshold]
    through.sort(key=lambda trial: (not trial.is_answered, -trial.best_score))
    return [
        _mistake(trial, "a refusal", "answered" if trial.is_answered else "passed the gate")
        for trial in through[:SHOWN]
    ]


def _mistake(trial: Trial, expected: str, what: str) -> Mistake:
    return Mistake(trial.query.text, expected, trial.found, round(trial.best_score, 4), what)


def _expected(trial: Trial, marking: Marking) -> str:
    targets = marking.targets(trial.query)
    if all(isinstance(target, str) for target in targets):
        said = f": {' / '.join(trial.query.answers)}" if trial.query.answers else ""
        return _short(f"{', '.join(map(str, targets))}{said}")
    return _short(" / ".join(span.text or span.doc for span in trial.query.spans))


def _fault(trial: Trial) -> str:
    if not trial.ranks["mrr@10"]:
        return f"not among the first {RANKED}"
    if trial.ranks["recall@5"] < 1:
        return f"not all among the first {RECALLED}"
    return "found, but below the gate"


def _short(words: str) -> str:
    return words if len(words) <= SHOWN_CHARACTERS else f"{words[: SHOWN_CHARACTERS - 1]}…"
