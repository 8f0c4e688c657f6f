"""The seams: what the house needs from outside, said in its own nouns. Each has one provider for each vendor."""

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from engine.models import (
    Allowance,
    Claim,
    Client,
    Curve,
    Draft,
    EndUser,
    Filters,
    Generation,
    Hit,
    Passage,
    Point,
    Question,
    RetrievedPassage,
    Vector,
    Windows,
)

Clock = Callable[[], datetime]
NewId = Callable[[], UUID]


class Embedder(Protocol):
    """Text to unit vectors. `name` is recorded with each generation: another name is another space."""

    name: str
    dimension: int
    curve: Curve  # what its raw cosines mean, as long as no book has said it better

    async def embed_query(self, text: str) -> Vector: ...

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        """At ingest: slow and patient, where a query is quick or fails."""

    async def embed_questions(self, texts: Sequence[str]) -> list[Vector]:
        """Many questions at ingest, as patient as with passages; each as `embed_query` would embed it."""

    def count_tokens(self, text: str) -> int: ...

    def cost(self) -> str:
        """What was paid for so far, in words; empty if nothing is."""

    async def close(self) -> None: ...


class Index(Protocol):
    """Vectors and BM25 weights of every generation."""

    async def create(self, generation: UUID, dimension: int) -> None:
        """Begin a generation; one left half-built under the same id is thrown away."""

    async def upsert(self, generation: UUID, points: Sequence[Point]) -> None: ...

    async def seal(self, generation: UUID) -> int:
        """Make the generation durable and fast; how many points it holds."""

    async def search(
        self,
        generation: UUID,
        dense: Vector,
        terms: dict[int, float],
        limit: int,
        filters: Filters,
        among: Sequence[str] = (),
    ) -> list[Hit]:
        """The best `limit` by each score, every one of them with both exact scores; `among` these passages, if named."""

    async def announce(self, book_id: str, generation: UUID) -> None:
        """The generation is published: let the store's own tools find it under the book's name."""

    async def drop(self, generation: UUID) -> None:
        """Forget a generation that nobody reads any more, finished or not; no error if it is forgotten already."""

    async def count(self, generation: UUID) -> int:
        """How many points the generation holds; the cheapest proof that it can be searched."""

    async def close(self) -> None: ...


class Reranker(Protocol):
    """A second opinion on the order. `name` is the model that is asked for."""

    name: str

    async def rerank(self, question: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the question, in the order given; `RerankFailedError` if it cannot say."""

    async def close(self) -> None: ...


class Generator(Protocol):
    """A question and its evidence to a draft. `name` is the model that is asked for."""

    name: str

    def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncGenerator[Claim, None]:
        """Each sentence as soon as it is finished. All else that is known goes into the draft as it becomes known, so
        that the record can say how far an unfinished one came."""

    async def close(self) -> None: ...


class Library(Protocol):
    """Which books exist, and their passages."""

    async def live(self, book_id: str) -> Generation:
        """The generation that readers see; `UnknownBookError` if there is none."""

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, Passage]: ...

    async def documents_containing(
        self, generation: UUID, needles: Sequence[str], after: str = ""
    ) -> list[list[Passage]]:
        """The next documents by name whose folded text contains all needles, each as its passages in order."""


class Keyring(Protocol):
    """API keys."""

    async def authenticate(self, secret: str | None) -> Client:
        """Whose key this is; `UnauthenticatedError` if nobody's."""


class Limiter(Protocol):
    """How often somebody may ask."""

    async def admit(self, client: Client, reader: EndUser | None) -> Allowance:
        """What was decided for this client and for the reader behind it. A no is a value: it has a quota too."""

    async def close(self) -> None: ...
