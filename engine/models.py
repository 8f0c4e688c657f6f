"""The domain model: immutable values, except for the draft and the trail, which are filled step by step.

The trail is the audit record that is being written, so every step notes there what it did.
"""

import math
import re
from collections.abc import Mapping, Sequence
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
from engine.refusals import RefusalReason

Vector = NDArray[np.float32]  # one text
Windows = NDArray[np.float32]  # a row for each window of a long text; the best cosine of all windows counts

Curve = tuple[tuple[float, float], ...]  # a piecewise linear function, as rising points (raw, meaning)

CalibrationKind = Literal["shipped", "self", "labelled"]
ConfidenceLevel = Literal["high", "medium", "low"]
SentenceKind = Literal[
    "statement", "lead_in", "item", "header", "row", "code",
    "question", "exercise", "objective", "navigation", "reference", "caption", "label",
]  # fmt: skip
# Text that helps its reader through the book and states nothing: it is searched, and never quoted as an answer.
NEVER_AN_ANSWER: frozenset[SentenceKind] = frozenset(
    {"question", "exercise", "objective", "navigation", "reference", "caption", "label"}
)
Tier = Literal["anonymous", "authenticated"]

PERSON = "oidc:"  # begins the names of people who signed in at an identity provider, and of no key's client
RECORD_CLOSE = "record_close"  # the stage after which a request's row is durable

RATE = re.compile(r"[1-9][0-9]{0,8}/(second|minute|hour|day)")  # such as "100/minute"


class Stage(NamedTuple):
    """A stage of a request, by the monotonic clock. A stage that failed or was cancelled is not done."""

    name: str
    started_s: float
    ended_s: float
    is_done: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """A person, as an identity provider vouches for them (OpenID Connect)."""

    issuer: str
    subject: str
    groups: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As records have it, in the personal column `end_user`. An issuer has no space, so no two people share a name."""
        return f"{PERSON}{self.issuer} {self.subject}"


@dataclass(frozen=True, slots=True)
class Client:
    """The caller: the holder of an API key, a person in the console, or an operator at this machine's terminal."""

    client_id: str
    key_id: str | None
    scopes: frozenset[str]
    rate_limit: str | None = None
    books: frozenset[str] = frozenset()  # the books that the key is restricted to; empty: no restriction
    ends_at: datetime | None = None  # when the key expires
    public_origin: str | None = None  # the site whose page asks with a public token of this key
    person: Identity | None = None  # who signed in to the console at an identity provider, without a key

    @property
    def limited_as(self) -> str | None:
        """What its requests are counted by. None: an operator, who has no limit."""
        return self.client_id if self.person else self.key_id

    def may_ask(self, book_id: str) -> bool:
        return not self.books or book_id in self.books


@dataclass(frozen=True, slots=True)
class EndUser:
    """A reader, as named by the client, in a canonical spelling, so that the rate limit counts each reader once."""

    name: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class Quota:
    """The state of a rate limit."""

    policy: str
    limit: int
    window_s: int
    remaining: int
    reset_s: int  # until more requests are allowed


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rate limiter's decision on a request, with the quota that is closest to exhaustion."""

    decision: str  # for the record
    quota: Quota | None = None
    refusal: RequestError | None = None


@dataclass(frozen=True, slots=True)
class Filters:
    """The part of the book to search."""

    chapter: str | None = None
    section: str | None = None
    module: int | None = None
    difficulty: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question, word for word: it is searched, shown to the model and recorded as it was received."""

    text: str
    book_id: str
    top_k: int
    selected_text: str | None = None
    filters: Filters = Filters()
    session_id: UUID | None = None
    session_not_continued: str = ""  # what was sent as the id of one, where a new session may begin instead
    end_user: str | None = None
    language: str = "en"  # of the book's live edition: its words are compared as in this language
    embedder: str = ""  # of the book's live edition
    context: str = ""  # earlier questions of the session: searched with this one, never shown to the model
    ignored_fields: tuple[str, ...] = ()  # the names of what a chat widget sent besides, and nobody read
    wording: "Wording | None" = None  # as it was searched, for a generator that compares words


@dataclass(frozen=True, slots=True)
class Wording:
    """A question as it is searched: with its spelling corrected, and the clauses that ask if it is long."""

    text: str
    clauses: tuple[str, ...] = ()
    corrected: dict[str, str] = field(default_factory=dict)
    vectors: Mapping[str, Vector] = field(
        default_factory=dict, compare=False, repr=False
    )  # what was embedded

    @property
    def searched(self) -> tuple[str, ...]:
        return (self.text, *self.clauses)


class Sentence(NamedTuple):
    """The place of a sentence: `passage.text[start:end]`, under this heading, on this page."""

    start: int
    end: int
    heading: str
    anchor: str
    page: str
    kind: SentenceKind = "statement"  # of an edition from before kinds were stored


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk of the book, the unit that is retrieved and cited."""

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
    passages: int = 0  # that have it; 0: of an edition that was made before they were stored


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The statistics of BM25, frozen with the generation."""

    terms: dict[str, Term]
    passages: int
    average_length: float  # that the weights were made with
    words: int = 0  # of all passages: the true average is this / passages
    changed: int = 0  # passages that came or went since this average and these ids were made


@dataclass(frozen=True, slots=True)
class Calibration:
    """The curves that map a generation's raw scores to comparable ones."""

    calibration_id: str
    kind: CalibrationKind
    embedder: str
    dimension: int
    normalisation: str  # the version of the lexical score's normalisation
    similarity: Curve  # of a cosine
    lexical: Curve  # of an attainment
    separation: float | None = None  # AUROC of questions inside the book against questions outside it


@dataclass(frozen=True, slots=True)
class Generation:
    """One immutable edition of a book's index."""

    generation_id: UUID
    book_id: str
    embedder: str
    dimension: int
    calibration: Calibration
    lexicon: Lexicon
    language: str = "en"  # ISO 639
    is_language_known: bool = True  # False: made before languages were found

    @property
    def may_be_high(self) -> bool:
        """Whether "high" is allowed: what a confidence is worth was measured in English, or with the book's own labels."""
        return self.language == "en" or self.calibration.kind == "labelled"


@dataclass(frozen=True, slots=True)
class Point:
    """A passage as the index stores it."""

    chunk_id: str
    windows: Windows
    terms: dict[int, float]
    payload: dict[str, Any]  # what searches filter by, and the passage's position in the book's order

    def check(self) -> None:
        """`ValueError` for a NaN, a zero or an empty vector: vector stores accept them, and then return nonsense."""
        norms = np.linalg.norm(self.windows, axis=1) if self.windows.size else np.zeros(1)
        if not np.all(np.isfinite(norms)) or np.any(norms == 0):
            raise ValueError(f"Passage {self.chunk_id} has no usable vector")
        if not all(map(math.isfinite, self.terms.values())):
            raise ValueError(f"Passage {self.chunk_id} has an unusable weight")


def point_id(chunk_id: str) -> str:
    """The id of a passage's point. Vector stores demand a UUID: it is the first half of the passage's hash."""
    return str(UUID(hex=chunk_id[:32]))


def is_point_of(stored_id: object, chunk_id: str) -> bool:
    return str(stored_id).replace("-", "") == chunk_id[:32]


class Hit(NamedTuple):
    """A search result of the index: a passage with both exact raw scores."""

    chunk_id: str
    cosine: float
    bm25: float
    position: int | None = (
        None  # in the book's order; None: of a generation that was stored without positions
    )


class Candidate(NamedTuple):
    """A hit with its calibrated scores."""

    chunk_id: str
    cosine: float
    similarity: float
    bm25: float
    attainment: float
    lexical: float
    score: float  # the gate compares this one
    rank_score: float  # the order follows this one, which counts words beyond the end of the lexical curve
    position: int | None  # of the passage in the book; of equal ones the first comes first
    rerank: float | None = None


@dataclass(frozen=True, slots=True)
class RetrievedPassage:
    """A retrieved passage with its scores. The generator may cite these passages and no others."""

    passage: Passage
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Sources:
    """The first event of a stream: the passages that the answer will be written from."""

    evidence: Sequence[RetrievedPassage]


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The result of a retrieval, best passage first."""

    evidence: tuple[RetrievedPassage, ...]
    best_score: float  # of all candidates for the question without its context, kept or not: the gate compares this score
    considered: int
    query: str  # the text that was searched for
    wording: Wording | None = None  # of a question about the whole book
    searched: str | None = None  # the part of the book that was searched; None: the whole book
    filter_message: str | None = None
    rerank: str | None = None  # the reranker's model, or the reason why its order is not used
    is_selection_found: bool = True
    is_keyword_match: bool = False  # one sentence holds all words of a search by keywords
    is_underspecified: bool = False  # the question names nothing that could be searched for
    is_language_read: bool = True  # False: the question's language cannot be compared with the book's


@dataclass(frozen=True, slots=True)
class Citation:
    """A generator's reference to sentences of a passage, `end` exclusive. It is not verified yet."""

    passage: int
    start: int
    end: int
    cited_text: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence of a draft."""

    text: str
    citations: tuple[Citation, ...]
    cited_share: float = 1.0  # the share of its letters in blocks with a citation


@dataclass(slots=True)
class Draft:
    """The output of a generator, filled while it writes. Nothing of it is shown before it is verified."""

    model: str
    claims: list[Claim] = field(default_factory=list)
    is_complete: bool = False
    has_abstained: bool = False
    abstained_for: RefusalReason | None = None  # the reason, if it is a particular one
    confidence: float | None = None
    level_max: ConfidenceLevel = "high"  # of what this generator writes
    raw: str = ""
    prompt: str | None = None
    stop_reason: str | None = None
    request_id: str | None = None
    tokens_input: int = 0
    tokens_output: int = 0


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A quotation, sliced by us from the stored passage: `passage.text[start:end]`."""

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
        return chapter_id_of(self.filename)


def chapter_id_of(filename: str) -> str:
    """`module-1/chapter-2` for `module-1/chapter-2.md`: unique in its book."""
    return str(PurePosixPath(filename).with_suffix(""))


@dataclass(frozen=True, slots=True)
class Quoted:
    """A verified sentence with its quotations, as readers see it."""

    text: str
    excerpts: tuple[Excerpt, ...]
    words: str  # the text without the marks of its sources


@dataclass(frozen=True, slots=True)
class Released:
    """A verified answer with its quotations."""

    text: str
    excerpts: tuple[Excerpt, ...]
    retrieval_confidence: float
    generation_confidence: float
    confidence: float
    confidence_level: ConfidenceLevel
    sentences: tuple[Quoted, ...]
    language: str = "en"  # of the reader


@dataclass(frozen=True, slots=True)
class Refusal:
    """A deliberate refusal. It is a value, not an error."""

    reason: RefusalReason
    nearest: tuple[RetrievedPassage, ...] = ()
    searched: str | None = None  # the part of the book that was searched; None: the whole book
    language: str = "en"  # of the reader

    @property
    def message(self) -> str:
        return self.reason.message(self.searched, self.language)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request, with the receipt of its audit record."""

    outcome: Released | Refusal
    trail: Trail
    receipt: Receipt
    audit_latency_ms: int = 0
    session_token: str | None = None  # of a session that starts with this request; returned only once
    session_message: str | None = None  # set if the turn could not be stored in its session

    @property
    def took_ms(self) -> int:
        """The milliseconds from the request to its receipt."""
        return (self.trail.total_latency_ms or 0) + self.audit_latency_ms
