"""A labelled set in, figures and curves out. The questions go to the parts themselves, so nothing is recorded.

A set is a folder with `corpus.jsonl` ({"_id", "title", "text"}), `queries.jsonl` ({"_id", "text", "answerable", "answers",
"spans"}) and `qrels.tsv` (query-id, corpus-id, score; above 0 is relevant).

A question's *targets* are its relevant documents. Where documents are long, so that a document is not yet a place, they
are its labelled spans instead. A passage *hits* a document that it was cut from, and a span that it holds from the first
letter to the last. What is ranked are the ten best passages as the retriever gives them. `MEANING` says what each figure
is; its 95 % interval is the same figure over 1,000 seeded resamples of the questions.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from audit.progress import Progress
from engine.errors import RequestError
from engine.evaluation import labels, report
from engine.evaluation.labels import LabelsError
from engine.grounding import cite
from engine.grounding.verify import NO_INSTRUCTIONS, is_proven, refuse_unproven
from engine.models import Draft, Excerpt, Generation, Passage, Question, Retrieved
from engine.ports import Generator
from engine.retrieval.gate import refuse_weak_evidence
from engine.retrieval.retrieve import Retriever

RANKED = 10  # what the figures look at, and the most that a request may ask for
RECALLED = 5
RESAMPLES = 1000
SEED = 17
SHOWN = 20  # questions that went worst: as many as an author reads
CUT = 2.0  # passages a document, from which on a document is too long to be a place
CELL = 160  # letters of a label in a table

Kind = Literal["answerable", "unanswerable", "out_of_scope"]
OTHERS: tuple[Kind, ...] = ("unanswerable", "out_of_scope")

MEANING = {
    "recall@5": ("recall@5", "the share of a question's targets that the first five passages hit"),
    "mrr@10": ("MRR@10", "1 / the rank of the first passage that hits a target"),
    "ndcg@10": (
        "nDCG@10",
        "each target counts where it is hit first, by 1 / log2(1 + rank); as a share of what the best order gives",
    ),
    "kept": ("kept by the gate", "the share of the answerable questions whose best score reaches the gate"),
    "let_through": ("let through", "the share of these questions whose best score reaches the gate"),
    "auroc": ("AUROC", "how often an answerable question scores higher than one of these; a tie counts half"),
    "answered": (
        "answered",
        "the share of these questions that leave generation and verification with an answer",
    ),
    "citation_hit": (
        "citation hit",
        "of the answered questions with labelled spans, those with an excerpt that overlaps one",
    ),
    "excerpt_overlap": (
        "excerpt overlap",
        "of the same questions, the share of the letters of their spans that the excerpts cover",
    ),
}

Floats = NDArray[np.float64]
Row = TypeVar("Row", "Document", "Query")


class Document(BaseModel):
    """A line of corpus.jsonl."""

    name: str = Field(alias="_id", min_length=1)
    title: str = ""
    text: str


class Span(BaseModel):
    """Where an answer stands: `document.text[start:end]`."""

    doc: str
    start: int = Field(ge=0)
    end: int
    text: str | None = None


class Query(BaseModel):
    """A line of queries.jsonl."""

    name: str = Field(alias="_id", min_length=1)
    text: str = Field(min_length=1)
    answerable: bool
    answers: list[str] = []
    spans: list[Span] = []


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """All that was read and found consistent."""

    name: str
    documents: Mapping[str, Document]
    queries: Mapping[str, Query]
    relevant: Mapping[str, set[str]]  # documents of a query
    out_of_scope: Mapping[str, Query]

    def questions(self) -> Iterator[tuple[Kind, Query]]:
        for query in self.queries.values():
            yield ("answerable" if query.answerable else "unanswerable"), query
        for query in self.out_of_scope.values():
            yield "out_of_scope", query


class Place(NamedTuple):
    """A stretch of a document, counted in letters: white space is the one thing that reading changes."""

    document: str
    start: int
    end: int

    def holds(self, other: "Place") -> bool:
        return self.document == other.document and self.start <= other.start and other.end <= self.end

    def overlaps(self, other: "Place") -> bool:
        return self.document == other.document and self.start < other.end and other.start < self.end


Target = str | Place  # a document, or a span


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: the parts of an engine, and the set as a book of it."""

    retriever: Retriever
    generator: Generator | None  # None: the retrieval only
    generation: Generation
    passages: Sequence[Passage]  # all of the book
    threshold: float
    top_k: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A question that was put to the book, and what came of it."""

    kind: Kind
    query: Query
    best_score: float
    found: str  # how the best passage begins
    ranks: Mapping[str, float] = field(default_factory=dict)
    excerpts: tuple[Excerpt, ...] = ()
    cited: tuple[float, float] | None = None  # citation hit and overlap

    @property
    def is_answered(self) -> bool:
        return bool(self.excerpts)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its 95 % interval, and how many questions it is about. Without questions there is no number."""

    value: float | None
    low: float | None
    high: float | None
    questions: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """A question that went wrong, in words for the author of the book."""

    question: str
    expected: str
    found: str
    score: float
    what: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All that is reported; `--json` prints it."""

    name: str
    documents: int
    passages: int
    questions: dict[str, int]
    targets: Literal["documents", "spans"]
    unreachable_targets: int  # spans that no passage holds whole
    embedder: str
    generator: str | None
    calibration_id: str
    calibration_kind: str
    threshold: float
    figures: dict[str, Figure]
    curves: dict[str, list[report.CurvePoint]]
    scores: dict[str, list[float]]
    missed: list[Wrong]
    let_through: list[Wrong]
    failures: list[dict[str, str]]


async def evaluate(labelled: LabelledSet, subject: Subject, progress: Progress) -> Evaluation:
    """Every question asked once, one after another. One that fails is named and left out of the figures."""
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


async def _ask(kind: Kind, query: Query, subject: Subject, marking: "Marking") -> Trial:
    question = Question(query.text, subject.generation.book_id, RANKED)
    found: Retrieved = await subject.retriever.retrieve(question, subject.generation)
    best = found.evidence[0].passage if found.evidence else None
    excerpts: tuple[Excerpt, ...] = ()
    if subject.generator and refuse_weak_evidence(found, subject.threshold) is None:
        excerpts = await _excerpts(question, found, subject)
    return Trial(
        kind=kind,
        query=query,
        best_score=found.best_score,
        found=_short(f"{best.section}: {best.text}") if best else "nothing",
        ranks=marking.ranks(query, [item.passage.chunk_id for item in found.evidence]),
        excerpts=excerpts,
        cited=marking.cited(query, excerpts),
    )


async def _excerpts(question: Question, found: Retrieved, subject: Subject) -> tuple[Excerpt, ...]:
    """What a reader would be shown of the book; nothing if there is no answer."""
    generator, evidence = subject.generator, found.evidence[: subject.top_k]
    assert generator
    draft = Draft(generator.name)
    proven = []
    async for claim in generator.write(question, evidence, draft):
        draft.claims.append(claim)
        if is_proven(claim, evidence, NO_INSTRUCTIONS):
            proven.append(claim)
    if refuse_unproven(draft, proven, evidence):
        return ()
    citations = [citation for claim in proven for citation in claim.citations]
    return tuple(cite.excerpt(citation, evidence, n) for n, citation in enumerate(citations, start=1))


# --- The labels


def read(folder: Path, out_of_scope: Path | None = None) -> LabelledSet:
    """The set of a folder, checked: every label must lead to a place that exists."""
    if not (folder / "corpus.jsonl").is_file():
        raise LabelsError(
            f"{folder} has no corpus.jsonl, so there is no book to ask. A labelled set is a folder with corpus.jsonl,"
            " queries.jsonl and qrels.tsv. Questions without a corpus are asked of another set:"
            f" affidavit eval SET --out-of-scope {folder / 'queries.jsonl'}"
        )
    documents = _by_name(folder / "corpus.jsonl", Document)
    queries = _by_name(folder / "queries.jsonl", Query, lambda query: _check_spans(query, documents))
    relevant = _relevant(folder / "qrels.tsv", documents, queries)
    for query in queries.values():
        relevant[query.name] |= {span.doc for span in query.spans}
        if query.answerable and not relevant[query.name]:
            raise LabelsError(
                f"{folder / 'queries.jsonl'}: {query.name} is answerable, but neither qrels.tsv nor a span says where."
            )
    others = _by_name(out_of_scope, Query) if out_of_scope else {}
    return LabelledSet(folder.resolve().name, documents, queries, relevant, others)


def book(labelled: LabelledSet) -> bytes:
    """The corpus as a site's export: the one format whose reader keeps every letter, and the titles."""
    pages = [_page(document) for document in labelled.documents.values()]
    site = {"title": labelled.name, "url": "https://example.org", "baseUrl": "/", "trailingSlash": None}
    return json.dumps({"version": 1, "site": site, "pages": pages}).encode()


def _page(document: Document) -> dict[str, Any]:
    blocks = [{"kind": "prose", "text": text} for text in document.text.split("\n\n") if text.strip()]
    title = document.title.strip() or document.name
    section = {"level": 1, "anchor": None, "path": [title], "blocks": blocks}
    return {
        "permalink": f"/{document.name}", "source": document.name, "title": title, "version": "current",
        "locale": "en", "position": None, "frontMatter": {}, "sections": [section],
    }  # fmt: skip


def _by_name(file: Path, kind: type[Row], check: Callable[[Row], None] = lambda _: None) -> dict[str, Row]:
    named: dict[str, Row] = {}

    def check_all(row: Row) -> None:
        if row.name in named:
            raise ValueError(f"the _id {row.name} is there twice")
        check(row)

    for row in labels.rows(file, kind, check_all):
        named[row.name] = row
    return named


def _check_spans(query: Query, documents: Mapping[str, Document]) -> None:
    for span in query.spans:
        if span.doc not in documents:
            raise ValueError(f"a span lies in {span.doc}, which is not in corpus.jsonl")
        held = documents[span.doc].text[span.start : span.end]
        if not held.strip() or span.text not in {None, held}:
            raise ValueError(
                f"a span does not fit: {span.doc} has {held[:CELL]!r} from {span.start} to {span.end}"
            )


def _relevant(
    file: Path, documents: Mapping[str, Document], queries: Mapping[str, Query]
) -> defaultdict[str, set[str]]:
    found = defaultdict[str, set[str]](set)
    for number, line in labels.lines(file) if file.is_file() else ():
        try:
            query, document, score = line.decode().split("\t")
            is_relevant = (query, document) != ("query-id", "corpus-id") and float(score) > 0
        except ValueError:
            raise LabelsError(
                f"{file}:{number}: not three columns with tabs: query-id, corpus-id, score"
            ) from None
        if is_relevant and (query not in queries or document not in documents):
            raise LabelsError(
                f"{file}:{number}: {query} or {document} is not in queries.jsonl or corpus.jsonl"
            )
        if is_relevant:
            found[query].add(document)
    return found


# --- Where things stand


class Marking:
    """Which passage hits which target."""

    def __init__(self, labelled: LabelledSet, passages: Sequence[Passage]) -> None:
        self._letters_before = {name: _letters_before(item.text) for name, item in labelled.documents.items()}
        self._passages = {passage.chunk_id: passage for passage in passages}
        self._places = _places(passages)
        self._of_document = defaultdict[str, list[Place]](list)
        for place in self._places.values():
            self._of_document[place.document].append(place)
        has_spans = any(query.spans for query in labelled.queries.values())
        self.by_span = has_spans and len(passages) >= CUT * len(labelled.documents)
        self._relevant = labelled.relevant

    def targets(self, query: Query) -> list[Target]:
        if not query.answerable:
            return []
        spans: list[Target] = list(self._spans(query))
        return spans if self.by_span and spans else sorted(self._relevant[query.name])

    def unreachable(self, query: Query) -> int:
        """Targets that a border between passages cuts, or that reading lost."""
        targets = self.targets(query)
        return len(targets) - len(set[int]().union(*self._reachable(targets)))

    def ranks(self, query: Query, chunk_ids: Sequence[str]) -> dict[str, float]:
        targets = self.targets(query)
        if not targets:
            return {}
        hits = [_hit(self._places[name], targets) for name in chunk_ids[:RANKED]]
        return {
            "recall@5": recall(hits[:RECALLED], len(targets)),
            "mrr@10": reciprocal_rank(hits),
            "ndcg@10": ndcg(hits, self._reachable(targets)),
        }

    def cited(self, query: Query, excerpts: Sequence[Excerpt]) -> tuple[float, float] | None:
        spans = self._spans(query)
        if not spans or not excerpts:
            return None
        places = [self._excerpt(item) for item in excerpts]
        hit = any(place.overlaps(span) for place in places for span in spans)
        return float(hit), overlap(places, spans)

    def _reachable(self, targets: Sequence[Target]) -> list[set[int]]:
        documents = {target if isinstance(target, str) else target.document for target in targets}
        hits = (
            _hit(place, targets) for document in sorted(documents) for place in self._of_document[document]
        )
        return [hit for hit in hits if hit]

    def _spans(self, query: Query) -> list[Place]:
        spans = []
        for span in query.spans:
            before = self._letters_before[span.doc]
            spans.append(Place(span.doc, before[span.start], before[span.end]))
        return list(dict.fromkeys(spans))

    def _excerpt(self, excerpt: Excerpt) -> Place:
        before = _letters_before(self._passages[excerpt.chunk_id].text)
        place = self._places[excerpt.chunk_id]
        return Place(place.document, place.start + before[excerpt.start], place.start + before[excerpt.end])


def _places(passages: Sequence[Passage]) -> dict[str, Place]:
    """Counted, never searched for: the same words may stand twice. A document's sentences are numbered through."""
    sentences: dict[str, dict[int, int]] = defaultdict(dict)
    for passage in passages:
        before = _letters_before(passage.text)
        for number, sentence in enumerate(passage.sentences, start=passage.start_sentence):
            sentences[passage.filename][number] = before[sentence.end] - before[sentence.start]
    starts = {
        name: [0, *accumulate(counted[number] for number in sorted(counted))]
        for name, counted in sentences.items()
    }
    return {
        passage.chunk_id: Place(
            passage.filename,
            starts[passage.filename][passage.start_sentence],
            starts[passage.filename][passage.end_sentence + 1],
        )
        for passage in passages
    }


def _letters_before(text: str) -> list[int]:
    """For each place in a text, and its end: how many letters stand before it."""
    return [0, *accumulate(not character.isspace() for character in text)]


def _hit(place: Place, targets: Sequence[Target]) -> set[int]:
    return {
        number
        for number, target in enumerate(targets)
        if (place.document == target if isinstance(target, str) else place.holds(target))
    }


# --- The figures. `hits` says for each rank which targets are hit there.


def recall(hits: Sequence[set[int]], targets: int) -> float:
    return len(set[int]().union(*hits)) / targets


def reciprocal_rank(hits: Sequence[set[int]]) -> float:
    return next((1 / rank for rank, here in enumerate(hits, start=1) if here), 0.0)


def ndcg(hits: Sequence[set[int]], passages: Iterable[set[int]]) -> float:
    """Against the best order that the book's own passages allow; 0 if none of them hits anything."""
    best = _gain(_best_order(list(passages)))
    return _gain(hits) / best if best else 0.0


def _gain(hits: Sequence[set[int]]) -> float:
    seen = set[int]()
    gain = 0.0
    for rank, here in enumerate(hits, start=1):
        gain += len(here - seen) / math.log2(1 + rank)
        seen |= here
    return gain


def _best_order(passages: Sequence[set[int]]) -> list[set[int]]:
    """Always the passage that adds most."""
    seen = set[int]()
    order = []
    for _ in range(RANKED):
        best = max(passages, key=lambda here: len(here - seen), default=set[int]())
        if not best - seen:
            break
        order.append(best)
        seen |= best
    return order


def overlap(places: Sequence[Place], spans: Sequence[Place]) -> float:
    """The share of the spans' letters that the places cover; a letter counts once."""
    wanted = {(span.document, letter) for span in spans for letter in range(span.start, span.end)}
    covered = {(place.document, letter) for place in places for letter in range(place.start, place.end)}
    return len(wanted & covered) / len(wanted)


def auroc(higher: Floats, lower: Floats) -> float:
    """The chance that one of the first scores above one of the second; a tie counts half."""
    below = np.sort(lower)
    less, up_to = np.searchsorted(below, higher, "left"), np.searchsorted(below, higher, "right")
    return float((less + up_to).mean() / (2 * len(below)))


def mean_figure(values: Sequence[float]) -> Figure:
    return _figure([np.asarray(values, np.float64)], lambda sample: float(sample[0].mean()))


def auroc_figure(higher: Sequence[float], lower: Sequence[float]) -> Figure:
    groups = [np.asarray(higher, np.float64), np.asarray(lower, np.float64)]
    return _figure(groups, lambda sample: auroc(sample[0], sample[1]))


def _figure(groups: Sequence[Floats], measure: Callable[[Sequence[Floats]], float]) -> Figure:
    """Each group is resampled for itself: how many there are of a kind was decided by whoever made the set."""
    count = sum(map(len, groups))
    if not all(map(len, groups)):
        return Figure(None, None, None, count)
    random = np.random.default_rng(SEED)
    resampled = [
        measure([group[random.integers(0, len(group), len(group))] for group in groups])
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Figure(measure(groups), float(low), float(high), count)


def _summary(
    labelled: LabelledSet, subject: Subject, marking: Marking, trials: Sequence[Trial], failures: list[dict[str, str]]
) -> Evaluation:  # fmt: skip
    scores = {
        kind: [trial.best_score for trial in trials if trial.kind == kind] for kind in ("answerable", *OTHERS)
    }
    calibration = subject.generation.calibration
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
        missed=_missed(trials, subject, marking),
        let_through=_let_through(trials, subject),
        failures=failures,
    )  # fmt: skip


def _figures(
    trials: Sequence[Trial], scores: Mapping[Kind, Sequence[float]], subject: Subject
) -> Iterator[tuple[str, Figure]]:
    """Only those that the set has questions for."""
    answerable = [trial for trial in trials if trial.kind == "answerable"]
    for name in ("recall@5", "mrr@10", "ndcg@10"):
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
    cited = [trial.cited for trial in answerable if trial.cited]
    if any(trial.query.spans for trial in answerable):
        yield "citation_hit", mean_figure([hit for hit, _ in cited])
        yield "excerpt_overlap", mean_figure([share for _, share in cited])


# --- What went wrong


def _missed(trials: Sequence[Trial], subject: Subject, marking: Marking) -> list[Wrong]:
    """Answerable, but not found or not let through; the worst first."""
    missed = [
        trial
        for trial in trials
        if trial.kind == "answerable"
        and (trial.ranks["recall@5"] < 1 or trial.best_score < subject.threshold)
    ]
    missed.sort(key=lambda trial: (trial.ranks["ndcg@10"], trial.best_score))
    return [_wrong(trial, _expected(trial, marking), _fault(trial)) for trial in missed[:SHOWN]]


def _let_through(trials: Sequence[Trial], subject: Subject) -> list[Wrong]:
    """Not in the book, but past the gate; those that were even answered first."""
    through = [trial for trial in trials if trial.kind in OTHERS and trial.best_score >= subject.threshold]
    through.sort(key=lambda trial: (not trial.is_answered, -trial.best_score))
    return [
        _wrong(trial, "a refusal", "answered" if trial.is_answered else "passed the gate")
        for trial in through[:SHOWN]
    ]


def _wrong(trial: Trial, expected: str, what: str) -> Wrong:
    return Wrong(trial.query.text, expected, trial.found, round(trial.best_score, 4), what)


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
    return words if len(words) <= CELL else f"{words[: CELL - 1]}…"


# --- What is shown


def rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """The figures as a table for the terminal."""
    return [
        {
            "figure": _named(name)[0],
            "value": "-" if figure.value is None else f"{figure.value:.3f}",
            "95 % interval": _interval(figure),
            "questions": f"{figure.questions:,}",
        }
        for name, figure in evaluation.figures.items()
    ]


def page(evaluation: Evaluation) -> str:
    """The report: one HTML file."""
    return report.page(
        f"Evaluation: {evaluation.name}",
        report.paragraph(about(evaluation)),
        report.heading("Figures"),
        report.table(
            ["Figure", "Value", "95 % interval", "Questions", "What it is"],
            [_figure_row(name, figure) for name, figure in evaluation.figures.items()],
        ),
        *(report.gate(evaluation.curves, evaluation.scores, evaluation.threshold) if evaluation.curves else ()),
        *_wrongs("Answerable, and missed", "Nothing was missed.", evaluation.missed),
        *(_wrongs("Not in the book, and let through", "Nothing was let through.", evaluation.let_through)
          if evaluation.curves else ()),
        *_failures(evaluation.failures),
    )  # fmt: skip


def about(evaluation: Evaluation) -> str:
    """What was asked of what, in a few sentences."""
    asked = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in evaluation.questions.items())
    cut = evaluation.unreachable_targets
    return (
        f"{evaluation.documents:,} documents in {evaluation.passages:,} passages; questions: {asked}. Targets are"
        f" {evaluation.targets}{f', of which {cut} lie in no passage as a whole' if cut else ''}. Embedder"
        f" {evaluation.embedder}, calibration {evaluation.calibration_kind} ({evaluation.calibration_id}), generator"
        f" {evaluation.generator or 'not asked'}, gate at {evaluation.threshold:.2f}."
    )


def _figure_row(name: str, figure: Figure) -> list[object]:
    label, meaning = _named(name)
    return [
        label,
        "-" if figure.value is None else figure.value,
        _interval(figure),
        figure.questions,
        meaning,
    ]


def _named(name: str) -> tuple[str, str]:
    start = next(start for start in MEANING if name.startswith(start))
    label, meaning = MEANING[start]
    kind = name.removeprefix(start).replace("_", " ").strip()
    return f"{label}, {kind}" if kind else label, meaning


def _interval(figure: Figure) -> str:
    """In one line: its spaces do not break."""
    return "-" if figure.low is None else f"{figure.low:.3f}\u00a0to\u00a0{figure.high:.3f}"


def _wrongs(title: str, nothing: str, wrongs: Sequence[Wrong]) -> tuple[report.Markup, ...]:
    if not wrongs:
        return report.heading(title), report.paragraph(nothing)
    listed = [[item.question, item.expected, item.found, item.score, item.what] for item in wrongs]
    columns = ["Question", "Expected", "Found first", "Score", "What went wrong"]
    return report.heading(title), report.table(columns, listed, f"The worst {len(wrongs)}, worst first.")


def _failures(failures: Sequence[Mapping[str, str]]) -> tuple[report.Markup, ...]:
    if not failures:
        return ()
    listed = [[item["question"], item["error"]] for item in failures]
    return report.heading("Not measured"), report.table(["Question", "Why"], listed)
