"""The nouns of the house. All frozen but the trail, which is the audit record being written."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from audit.proof.record import Receipt as Receipt
from audit.proof.record import Trail as Trail
from engine.errors import RequestError

Vector = NDArray[np.float32]  # one text
Windows = NDArray[np.float32]  # one row for each window of a long text; their best cosine counts

Curve = tuple[tuple[float, float], ...]  # rising points (raw, meaning), with straight lines between them

SourceMode = Literal["full-book", "context-restricted"]

Tier = Literal["anonymous", "authenticated"]

RATE = re.compile(r"[1-9][0-9]{0,8}/(second|minute|hour|day)")  # as in the settings
BOOK_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks: the holder of an API key, or somebody at this machine's terminal."""

    client_id: str
    key_id: str | None
    scopes: frozenset[str]
    rate_limit: str | None = None
    books: frozenset[str] = frozenset()  # the only ones that may be asked; none named: all of them
    ends_at: datetime | None = None  # from then on the key is refused

    def may_ask(self, book_id: str) -> bool:
        return not self.books or book_id in self.books


@dataclass(frozen=True, slots=True)
class EndUser:
    """A reader as their site names them, in one spelling, so that nobody is counted twice."""

    name: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class Rates:
    """How often somebody may ask, such as "100/minute"."""

    per_key: str
    anonymous: str
    authenticated: str

    def of(self, tier: Tier) -> str:
        return self.anonymous if tier == "anonymous" else self.authenticated


@dataclass(frozen=True, slots=True)
class Quota:
    """How much is left of a limit."""

    policy: str
    limit: int
    window_s: int
    remaining: int
    reset_s: int  # until there is more


@dataclass(frozen=True, slots=True)
class Allowance:
    """What was decided about a request's limits, and the one of them that is nearest to its end."""

    decision: str  # for the record
    quota: Quota | None = None
    refusal: RequestError | None = None


@dataclass(frozen=True, slots=True)
class Filters:
    """Which part of the book to search."""

    chapter: str | None = None
    section: str | None = None
    module: int | None = None
    difficulty: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, word for word: it is searched, shown to the model and recorded as it came."""

    text: str
    book_id: str
    top_k: int
    selected_text: str | None = None
    filters: Filters = Filters()
    session_id: UUID | None = None
    end_user: str | None = None
    context: str = (
        ""  # what was asked before in the session: searched along, never shown to the model as the question
    )


class Sentence(NamedTuple):
    """Where a sentence stands: `passage.text[start:end]` is it, under this heading of this page."""

    start: int
    end: int
    heading: str
    anchor: str
    page: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of the book that can be found and cited."""

    chunk_id: str
    book_id: str
    parent_document_id: str
    filename: str
    chapter: str
    section: str
    chunk_index: int
    text: str
    sentences: tuple[Sentence, ...]
    start_page: str
    end_page: str
    start_sentence: int
    end_sentence: int
    url: str
    content_hash: str
    module: int | None = None
    difficulty: str | None = None
    tags: tuple[str, ...] = ()

    def sentence_text(self, number: int) -> str:
        sentence = self.sentences[number]
        return self.text[sentence.start : sentence.end]


class Term(NamedTuple):
    """A word of the book's vocabulary."""

    term_id: int
    idf: float


@dataclass(frozen=True, slots=True)
class Lexicon:
    """BM25's statistics, frozen with the generation."""

    terms: dict[str, Term]
    passages: int
    average_length: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the raw scores of a generation mean."""

    calibration_id: str
    kind: Literal["shipped", "self", "labelled"]
    embedder: str
    dimension: int
    normalisation: str  # of the lexical score
    similarity: Curve  # of a cosine
    lexical: Curve  # of an attainment
    separation: float | None = None  # AUROC of what is in the book against what is not


@dataclass(frozen=True, slots=True)
class Generation:
    """One immutable edition of a book's index."""

    generation_id: UUID
    book_id: str
    embedder: str
    dimension: int
    calibration: Calibration
    lexicon: Lexicon


@dataclass(frozen=True, slots=True)
class Point:
    """A passage as the index holds it."""

    chunk_id: str
    windows: Windows
    terms: dict[int, float]
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found, with both exact raw scores."""

    chunk_id: str
    cosine: float
    bm25: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A hit with what its scores mean."""

    chunk_id: str
    cosine: float
    similarity: float
    bm25: float
    attainment: float
    lexical: float
    score: float
    rerank: float | None = None


@dataclass(frozen=True, slots=True)
class RetrievedPassage:
    """A passage that was kept, and why."""

    passage: Passage
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What was found for a question, best first, and how."""

    evidence: tuple[RetrievedPassage, ...]
    best_score: float  # of all candidates for the question by itself, kept or not: the gate looks at it
    considered: int
    query: str  # what was searched with
    searched: str | None = None  # the part of the book that was searched; None for all of it
    filter_message: str | None = None
    rerank: str | None = None  # the reranker's model, or what kept it from being used
    is_selection_found: bool = True


@dataclass(frozen=True, slots=True)
class Citation:
    """A generator's claim that these sentences of this passage say so; `end` is exclusive."""

    passage: int
    start: int
    end: int
    cited_text: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence of a draft."""

    text: str
    citations: tuple[Citation, ...]
    cited_share: float = 1.0  # of its letters, that stand in blocks with a citation


@dataclass(slots=True)
class Draft:
    """What a generator has written so far; it fills this in as it goes. Nothing of it is true until it is verified."""

    model: str
    claims: list[Claim] = field(default_factory=list)
    is_complete: bool = False
    has_abstained: bool = False
    confidence: float | None = None
    raw: str = ""
    prompt: str | None = None
    stop_reason: str | None = None
    request_id: str | None = None
    tokens_input: int = 0
    tokens_output: int = 0


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A quotation, cut by us from the stored passage: `passage.text[start:end]`."""

    n: int
    chunk_id: str
    section: str
    chapter: str
    filename: str
    page: str
    url: str
    excerpt: str
    start: int
    end: int
    score: float

    @property
    def chapter_id(self) -> str:
        """`module-1/chapter-2` for `module-1/chapter-2.md`: unique in its book."""
        return str(PurePosixPath(self.filename).with_suffix(""))


@dataclass(frozen=True, slots=True)
class Quoted:
    """A proven sentence with its quotations, as readers see it."""

    text: str
    excerpts: tuple[Excerpt, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """A verified answer with its quotations."""

    text: str
    excerpts: tuple[Excerpt, ...]
    retrieval_confidence: float
    generation_confidence: float
    confidence: float
    confidence_level: Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A considered no. A value, not an error."""

    reason: str
    message: str
    nearest: tuple[RetrievedPassage, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What leaves the house: never without a receipt."""

    outcome: Released | Refusal
    trail: Trail
    receipt: Receipt
    audit_latency_ms: int = field(default=0)
    session_token: str | None = None  # of a session that begins here; said once
    session_message: str | None = None  # if it could not be kept in its session

    @property
    def took_ms(self) -> int:
        """From the request to its receipt."""
        return (self.trail.total_latency_ms or 0) + self.audit_latency_ms
