"""The application container: everything that serves requests, open and ready, and its readiness checks.

The HTTP layer gets a `House` and nothing else, so it needs neither the settings nor a provider's name. wiring/ builds it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from psycopg_pool import AsyncConnectionPool

from audit.access.approvals import UnmaskRequest
from audit.access.policy import Policy
from audit.charts.figures.catalogue import Charts
from audit.checking.prover import Prover
from audit.checking.status import LogGauges
from audit.coverage.recent import RecentCoverage
from audit.coverage.verifications import LogVerifier
from audit.erasure.erase import Eraser
from audit.ledger import partitions
from audit.reports.document import MeasureReport
from engine.admission.console_sessions import ConsoleSessions
from engine.admission.operator_events import OperatorEvents
from engine.admission.proxies import TrustedProxies
from engine.admission.public_tokens import PublicTokens
from engine.admission.sessions import Sessions, Turn
from engine.admission.single_sign_on import SingleSignOn
from engine.answer import Engine
from engine.errors import ConfigurationError, UnknownBookError
from engine.ports import Embedder, Index
from engine.retrieval.library import StoredLibrary
from engine.spans import Tracer
from engine.storage.database import CLEANUP_S
from ingest.watched_index import WHOLE, WatchedIndex

CHECK_S = 5.0  # a cold index worker starts well within it
READY = "ready"
UNAVAILABLE = "unavailable"
SPOOLING = "unavailable; records wait in the spool"  # questions are still answered
SEALING_STOPPED = "stopped; the log of heads is not what was signed, or a witness has seen more of it"
NO_QUORUM = "wait for the quorum of witnesses that is required"
ANSWERING = frozenset({READY, SPOOLING, SEALING_STOPPED, NO_QUORUM})  # states in which questions are answered
UNRECORDABLE = "neither the database nor the spool takes a record: look for a full disk or a wrong clock"
_RECORDS = {"database": "ready", "spool": SPOOLING, None: UNRECORDABLE}


@dataclass(frozen=True, slots=True)
class House:
    """The parts that the routes use."""

    engine: Engine
    library: StoredLibrary
    index: Index
    watched_index: WatchedIndex
    pool: AsyncConnectionPool
    default_book: str
    top_k: int
    body_bytes_max: int
    page_enabled: bool
    proxies: TrustedProxies
    allowed_origins: frozenset[str]
    public_tokens: PublicTokens
    prover: Prover
    public_keys: Callable[[], Awaitable[list[str]]]
    log_gauges: Callable[[], Awaitable[LogGauges]]
    tallies: Callable[[], Mapping[str, float]]
    sessions: Sessions | None
    eraser: Eraser
    operator_events: OperatorEvents
    tracer: Tracer | None
    seals: Callable[[], str]
    console_sessions: ConsoleSessions
    console_pool: AsyncConnectionPool  # what the console's pages read with: the auditor's role, each statement limited in time
    charts: Charts
    reports: MeasureReport
    coverage: RecentCoverage
    verifier: LogVerifier
    access_policy: Policy
    unmask_requests: Callable[[], Awaitable[list[UnmaskRequest]]]
    single_sign_on: SingleSignOn | None = None
    is_read_only: bool = False  # only the console, and it changes nothing

    def turn(self, token: str | None, *, may_begin_anew: bool = False) -> Turn | None:
        """The next turn of a conversation, if conversations are switched on."""
        return Turn(self.sessions, token, may_begin_anew=may_begin_anew) if self.sessions else None

    async def parts(self) -> dict[str, str]:
        """Readiness by part: "ready", or what is missing. The checks also warm the caches for the first reader."""
        database = await _state(self._has_months_ahead, "no month ahead")
        seals = self.seals()
        return {
            "database": SPOOLING if database == UNAVAILABLE and self.engine.ledger.has_spool else database,
            "book": await self._book(),
            "embedder": await _state(self._try_embedding, UNAVAILABLE),
            "records": _RECORDS[await self.engine.ledger.taker()],
            **({} if seals == READY else {"seals": seals}),
        }

    async def _has_months_ahead(self) -> bool:
        return await partitions.count_months_ahead(self.pool, self.engine.clock().date()) > 0

    def missing_index(self) -> str:
        """Why the default book cannot be searched, if its index is the cause."""
        state = self.watched_index.state_of(self.default_book)
        return "" if state == WHOLE else f"the index of {self.default_book} is {state}"

    async def _book(self) -> str:
        """A damaged index may well hold some points."""
        state = await _state(self._has_book, "no book published")
        return self.missing_index() or state if state == READY else state

    async def _has_book(self) -> bool:
        generation = await self.engine.library.live(self.default_book)
        return await self.index.count(generation.generation_id) > 0

    async def _try_embedding(self) -> bool:
        return len(await self.engine.retriever.embedder.embed_query("ready?")) > 0


async def _state(check: Callable[[], Awaitable[bool]], missing: str) -> str:
    try:
        async with asyncio.timeout(CHECK_S), asyncio.timeout(CHECK_S - CLEANUP_S):
            return READY if await check() else missing
    except UnknownBookError:
        return missing
    except Exception:  # noqa: BLE001  a load balancer only needs to know that the part does not work
        return UNAVAILABLE


async def check_books(library: StoredLibrary, embedder: Embedder, others: Collection[str] = ()) -> None:
    """`ConfigurationError` if another embedder made a book: its vectors could not be compared with a question's."""
    for book in await library.books():
        if book.embedder not in {None, embedder.name, *others}:
            raise ConfigurationError(
                f"The book {book.book_id} was ingested with the embedder {book.embedder}, but the settings name"
                f" {embedder.name}. Set providers.embedder back, or ingest the book again."
            )
