"""Ports (as in ports and adapters): the protocols that providers implement, in terms of our own models.

Each vendor's adapter is one file in engine/providers/.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from engine import models
from engine.errors import BadRequestError

Clock = Callable[[], datetime]
NewId = Callable[[], UUID]


class Embedder(Protocol):
    """Embeds text as unit vectors. `name` is recorded with each generation, because vectors of two names are not comparable."""

    name: str
    dimension: int
    curve: models.Curve  # the default calibration of its cosines, used until a book has its own
    languages: frozenset[str]  # that it was trained on, as ISO 639 codes; empty: any

    async def embed_query(self, text: str) -> models.Vector: ...

    async def embed_passages(self, texts: Sequence[str]) -> list[models.Windows]:
        """Embeds the passages of an ingest, with retries and backoff; a query fails fast instead. A line of a text is a
        window: a part that means something by itself."""

    async def embed_questions(self, texts: Sequence[str]) -> list[models.Vector]:
        """Embeds questions for an ingest, with retries; each vector is the one that `embed_query` would return."""

    def count_tokens(self, text: str) -> int: ...

    def unread(self, text: str) -> float:
        """The share of the text's tokens that are unknown to the model."""

    def cost(self) -> str:
        """The usage billed so far, as text; empty if the embedder is free."""

    async def close(self) -> None: ...


class Searchable(Protocol):
    """What a retrieval needs of an index."""

    async def search(
        self,
        generation: UUID,
        dense: models.Vector,
        terms: dict[int, float],
        limit: int,
        filters: models.Filters,
        among: Sequence[str] = (),
    ) -> list[models.Hit]:
        """The top `limit` by each score, every hit with both exact scores; restricted to the passages in `among`, if given."""


class Index(Searchable, Protocol):
    """A vector store: dense vectors and sparse BM25 weights of every generation."""

    async def create(self, generation: UUID, dimension: int) -> None:
        """Starts to build a generation, and discards an unfinished one of the same id. What was sealed before is searched
        until the new one is sealed."""

    async def extend(self, generation: UUID, dimension: int, of: UUID, without: Sequence[str]) -> None:
        """Starts as `create` does, with all points of a sealed generation but those of these passages, and without a change
        to that one. `IndexDamagedError` if it is not there."""

    async def upsert(self, generation: UUID, points: Sequence[models.Point]) -> None: ...

    async def seal(self, generation: UUID) -> int:
        """Makes the generation durable and optimised, switches to it at once, and returns its number of points."""

    def points(self, generation: UUID) -> AsyncIterator[list[models.Point]]:
        """All that is stored of a generation, as it is stored, in batches."""

    async def describe(self) -> str:
        """The vector store and its version, for the operator."""

    async def announce(self, book_id: str, generation: UUID) -> None:
        """Points the book's alias to the published generation, for the vector store's own tools."""

    async def drop(self, generation: UUID) -> None:
        """Deletes a generation, finished or not. Idempotent."""

    async def count(self, generation: UUID) -> int:
        """The number of points in a generation; `IndexDamagedError` if it is not there or cannot be opened. It also serves
        as the health check of the index."""

    async def close(self) -> None: ...


class Reranker(Protocol):
    """Reorders candidates with a second model. `name` is the requested model."""

    name: str

    async def rerank(self, question: str, texts: Sequence[str]) -> list[float]:
        """A relevance score for each text, in the given order; `RerankFailedError` if there is none."""

    async def close(self) -> None: ...


class Generator(Protocol):
    """Writes a draft from a question and its passages. `name` is the requested model; the description is for the operator."""

    name: str
    description: str

    def write(
        self, question: models.Question, evidence: Sequence[models.RetrievedPassage], draft: models.Draft
    ) -> AsyncGenerator[models.Claim, None]:
        """Yields each sentence as soon as it is complete. Everything else goes into the draft as it arrives, so that the
        record of a failed request contains the unfinished draft."""

    async def close(self) -> None: ...


class Library(Protocol):
    """Read access to books and passages."""

    async def live(self, book_id: str) -> models.Generation:
        """The published generation; `UnknownBookError` if there is none."""

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, models.Passage]: ...

    async def documents_containing(
        self, generation: UUID, needles: Sequence[str], after: str = ""
    ) -> list[list[models.Passage]]:
        """A page of the documents whose folded text contains all needles, by name; each as its passages in order."""


class Keyring(Protocol):
    """Authenticates API keys and public tokens."""

    async def authenticate(self, secret: str | None) -> models.Client:
        """The client of this key; `UnauthenticatedError` if the key is invalid."""


class IdentityProvider(Protocol):
    """Signs people in (OpenID Connect). A failure of the provider is an `IdentityProviderError`."""

    async def sign_in_address(self, state: str, nonce: str, challenge: str) -> str:
        """Where the browser goes to sign in; it comes back with `state`."""

    async def identity(self, answer: Mapping[str, str], verifier: str, nonce: str) -> models.Identity:
        """Who came back with this answer. `UnauthenticatedError` if the provider refused, or vouches for nobody."""

    async def examine(self) -> str:
        """What is there, for `affidavit doctor`."""

    async def close(self) -> None: ...


class Limiter(Protocol):
    async def admit(self, client: models.Client, reader: models.EndUser | None) -> models.Allowance:
        """Counts a request of this client and its reader. A refusal is a value too, because it carries a quota."""

    def set_rates(self, *, per_key: str, anonymous: str, authenticated: str) -> None:
        """From the next request on. A rate that is another one now counts from zero."""

    async def close(self) -> None: ...


class RemoteSigner(Protocol):
    """An Ed25519 key elsewhere, of one or several versions. It waits for a network: never ask it while a request waits.

    What fails is a `NoSigningKeyError` in our words; what is set up wrongly is a `ConfigurationError`.
    """

    def public_keys(self) -> list[bytes]:
        """The raw keys that it signs with, the newest last."""
        ...

    def sign(self, message: bytes, public: bytes) -> bytes:
        """At most 4,096 bytes. Nobody has checked the signature yet."""
        ...


class Exchange(Protocol):
    """The client's side of one request, called in this order. Only `read` and `recall` may wait."""

    is_stream: bool  # the client is shown each sentence as it is released

    def follow(self, trail: models.Trail) -> None:
        """The trail of the request, from its start: for the metrics and the log."""

    def note_allowance(self, allowance: models.Allowance) -> None:
        """What the limiter decided, for the rate-limit headers."""

    def note_stage(self, stage: models.Stage) -> None:
        """How long a stage took, for the metrics and the trace."""

    async def read(self) -> models.Question:
        """The body, validated."""

    async def recall(self, client: models.Client, question: models.Question) -> models.Question:
        """The question with what was asked before in its session, for the session's owner."""

    def show(self, event: models.Sources | models.Quoted) -> None:
        """A part of the answer that the record holds; called on a stream only."""


async def no_question() -> models.Question:
    """The body of a request that asks no question."""
    raise BadRequestError


class NullExchange:
    """Null object: no session, no stream, no listeners. The terminal's exchange, and the base of the others."""

    is_stream = False

    def __init__(self, read: Callable[[], Awaitable[models.Question]] = no_question) -> None:
        self._read = read

    def follow(self, trail: models.Trail) -> None: ...

    def note_allowance(self, allowance: models.Allowance) -> None: ...

    def note_stage(self, stage: models.Stage) -> None: ...

    async def read(self) -> models.Question:
        return await self._read()

    async def recall(self, client: models.Client, question: models.Question) -> models.Question:  # noqa: ARG002
        return question

    def show(self, event: models.Sources | models.Quoted) -> None: ...
