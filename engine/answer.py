"""The request pipeline: one question, answered, refused or failed, and always recorded. Read this first.

    (1) authenticate  admission/keys.py             whose API key it is
    (2) limit         providers/limits.py           may this client ask now
    (3) read          http/v1.py                    the body, validated; the question stays word for word
    (4) open          audit/ledger/ledger.py        from here on a durable record exists
    (5) wait          admission/overload/           for its turn, if more is asked than can be answered at once
    (6) retrieve      retrieval/retrieve.py         embed, search, blend             at most 2.0 s
    (7) gate          retrieval/gate.py             enough evidence, or refuse before paying for a model
    (8) generate      providers/                    a draft with citations           at most 2.5 s
    (9) verify        grounding/                    each sentence as it comes; an unproven one is not released
   (10) close         audit/ledger/ledger.py        the row, durable; the receipt    at most 0.5 s

Before each long step, (6), (8) and (10), a question waits for a turn of the event loop (admission/overload/pace.py).

A refusal is a value and is returned like an answer. A failure is an exception; its row is written before the exception
reaches the client. Each step notes what it found in the trail (trail.py), and the trail becomes the row.

Requests without a question, such as one for a passage (`serve`), and requests that no endpoint takes (`reject`) go
through the same steps: authenticated, limited, one row each.

The client's side of a request is its `Exchange` (ports.py). A stream is shown each proven sentence once the open record
holds it, so a client never sees text that was not recorded before. If the client disconnects, the request is cancelled,
down to the sockets, and its row says so.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from engine import trail as noting
from engine.admission.flood import SEVERAL, FloodCounter
from engine.admission.overload.recent_keys import RecentKeys
from engine.admission.overload.refused_rows import RefusedRows
from engine.admission.overload.turnstile import Ticket, Turnstile
from engine.admission.shared_rows import SharedRow
from engine.errors import (
    AuditUnavailableError,
    ForbiddenError,
    InvalidFieldError,
    NotReadyError,
    OutOfTimeError,
    OverloadedError,
    RequestError,
    UnexpectedError,
)
from engine.grounding import cite
from engine.grounding.verify import Instructions, is_proven, refuse_unproven
from engine.models import (
    RECORD_CLOSE,
    Answer,
    Client,
    Draft,
    EndUser,
    Generation,
    Question,
    Quoted,
    Receipt,
    Refusal,
    Released,
    Retrieved,
    RetrievedPassage,
    Sources,
    Stage,
    Trail,
)
from engine.ports import Clock, Exchange, Generator, Keyring, Library, Limiter, NewId, NullExchange
from engine.retrieval.gate import refuse_weak_evidence
from engine.retrieval.retrieve import Retriever
from engine.words import languages

ASK = frozenset({"ask"})  # the scope that an endpoint requires unless it names others
BODY_BEFORE_S = 0.5  # no question can be answered in less, and the key is checked before
CLEANUP_S = 0.05  # of a hard timeout: reserved for cancelling what is still running

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrives, its body still unread. An operator at the terminal of this machine needs no key."""

    endpoint: str
    request_id: str
    exchange: Exchange = field(default_factory=NullExchange)
    client_address: str | None = None
    secret: str | None = None
    origin: str | None = None  # the site whose page asks, as its browser says
    operator: Client | None = None
    identify: Callable[[], Awaitable[Client]] | None = None  # without a key: a session of the console
    end_user: EndUser | InvalidFieldError | None = None  # the reader; an error is raised once it is counted
    scopes: frozenset[str] = ASK  # one of them is required; empty: any key will do
    is_for_pages: bool = False  # also with a public token; a question always is
    ticket: Ticket | None = (
        None  # of a question that was let in where its connection was read (connections/shedding.py)
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of the decisions, from config/engine.toml, and the fingerprints that identify them in a record."""

    total_s: float
    retrieval_s: float
    generation_s: float
    audit_s: float
    threshold: float
    confidence_weights: tuple[float, float]
    confidence_levels: tuple[float, float]
    default_generation_confidence: float
    instructions: Instructions
    settings_sha256: str
    prompt_sha256: str
    code_version: str

    @property
    def wait_s(self) -> float:
        """For its turn, at most: then a generation still has its time, and a retrieval takes far less than its limit."""
        return max(0.0, self.total_s - self.audit_s - self.generation_s)

    @property
    def body_s(self) -> float:
        """For the body to arrive: sooner than the whole request ends, which would say that the question took too long."""
        return max(0.0, self.total_s - self.audit_s - BODY_BEFORE_S)


@dataclass(frozen=True, slots=True)
class Engine:
    """The pipeline with its stages. Only the composition root, wiring/, builds one."""

    keyring: Keyring
    limiter: Limiter
    flood: FloodCounter
    turnstile: Turnstile
    refused_rows: RefusedRows
    recent_keys: RecentKeys
    library: Library
    retriever: Retriever
    generator: Generator
    ledger: Ledger
    rules: Rules
    clock: Clock
    new_id: NewId
    monotonic: Callable[[], float]

    async def answer(self, asked: Asked) -> Answer:
        """Runs all steps within five seconds. Raises a `RequestError` if one fails; by then the row is written."""

        async def decide(trail: Trail) -> Released | Refusal:
            outcome = await self._decide(asked, trail)
            await self.turnstile.pace.step()
            noting.note_outcome(trail, outcome)
            return outcome

        return Answer(*await self._on_record(asked, decide))

    async def serve(self, asked: Asked, work: Callable[[Client, Trail], Awaitable[Result]]) -> Result:
        """Serves a request without a question, such as one for a passage: `work` does it and notes its subject in the trail."""

        async def served(trail: Trail) -> Result:
            client = await self._admit(asked, trail)  # (1) (2)
            if client.public_origin and not asked.is_for_pages:
                raise ForbiddenError(
                    "A public token can only ask questions and give feedback on them. Use an API key, on your server."
                )
            await self._open(trail, asked.exchange)  # (4)
            result = await work(client, trail)
            noting.note_served(trail)
            return result

        result, *_ = await self._on_record(asked, served)
        return result

    async def reject(self, asked: Asked, failure: RequestError) -> RequestError:
        """Record a request that no endpoint takes, and return the failure to send. It needs no key; a key that is sent is
        checked, and its use is counted."""

        async def refuse(trail: Trail) -> RequestError:
            if asked.secret:
                await self._admit(asked, trail)
            raise failure

        try:
            return (await self._on_record(asked, refuse))[0]
        except RequestError as raised:
            return raised

    async def record_turned_away(self, requests: int) -> None:
        """One row for all requests that got a 503 while no process was ready to read them."""
        asked = Asked(SEVERAL, "")
        trail = replace(self._trail(asked), request_id=None, repeat_count=requests)
        noting.note_failure(trail, NotReadyError())
        await self._close(trail, self.monotonic(), asked.exchange)

    def count_refused(self, client: Client) -> tuple[SharedRow, asyncio.Future[None]]:
        """The row of a question that found no room in the queue, and when that row counts it."""
        return self.refused_rows.count(client, self._refused_trail)

    def _refused_trail(self, client: Client | None) -> Trail:
        trail = replace(self._trail(Asked(SEVERAL, "")), request_id=None, repeat_count=0)
        if client:
            trail.client_id, trail.key_id = client.client_id, client.key_id
        noting.note_failure(trail, OverloadedError())
        return trail

    async def _on_record(
        self, asked: Asked, work: Callable[[Trail], Awaitable[Result]]
    ) -> tuple[Result, Trail, Receipt, int]:
        """Runs the work and writes its row before the result or the failure leaves the engine."""
        started = self.monotonic()
        trail = self._trail(asked)
        asked.exchange.follow(trail)
        try:
            async with _hard_timeout(self.rules.total_s - self.rules.audit_s, "request"):
                result = await _known_failures(work(trail))
        except RequestError as failure:
            noting.note_failure(trail, failure)
            if not await self.flood.count_if_flooding(trail):
                await self._close(trail, started, asked.exchange)
            failure.query_id = trail.query_id
            raise
        except asyncio.CancelledError:
            noting.note_client_gone(trail)
            await self._close(trail, started, asked.exchange)
            raise
        finally:
            if asked.ticket:
                asked.ticket.leave()
        closing = self.monotonic()
        receipt = await self._close(trail, started, asked.exchange)  # (10)
        return result, trail, receipt, _ms(closing, self.monotonic())

    async def _decide(self, asked: Asked, trail: Trail) -> Released | Refusal:
        client = await self._admit(asked, trail)  # (1) (2)
        if asked.secret:
            self.recent_keys.note(asked.secret, asked.origin, client)
        question = await asked.exchange.read()  # (3)
        if client.public_origin:
            question = replace(question, end_user=trail.end_user)  # a page could name any reader
        noting.note_question(trail, question)
        if not client.may_ask(question.book_id):
            raise ForbiddenError("The API key is valid but not for this book.")
        ticket = asked.ticket or self._enter(client)
        try:
            await self._open(trail, asked.exchange)  # (4)
            with self._stage("queue", asked.exchange):
                await self.turnstile.wait(ticket, self.rules.wait_s)  # (5)
            return await self._answered(question, client, trail, asked.exchange)
        finally:
            ticket.leave()

    def _enter(self, client: Client) -> Ticket:
        """An operator at the terminal is not turned away by readers."""
        return self.turnstile.enter(client.client_id) if client.key_id else self.turnstile.enter_as_operator()

    async def _answered(
        self, question: Question, client: Client, trail: Trail, exchange: Exchange
    ) -> Released | Refusal:
        question = await self._recall(exchange, client, question, trail)
        generation = await self._live_generation(question)
        question = replace(question, language=generation.language, embedder=generation.embedder)
        outcome = await self._outcome(question, generation, trail, exchange)
        if isinstance(outcome, Released):
            return outcome
        return replace(outcome, language=languages.of_reader(question.text, question.language))

    async def _outcome(
        self, question: Question, generation: Generation, trail: Trail, exchange: Exchange
    ) -> Released | Refusal:
        await self.turnstile.pace.step()
        found = await self._retrieve(question, generation, trail, exchange)  # (6)
        refusal = refuse_weak_evidence(found, self.rules.threshold)  # (7)
        if refusal:
            return refusal
        question = replace(question, wording=found.wording)
        await self.turnstile.pace.step()
        sentences, draft = await self._generate(question, found.evidence, trail, exchange)  # (8) (9)
        return refuse_unproven(draft, sentences, found.evidence) or self.release(
            sentences, draft, question, generation
        )

    async def _admit(self, asked: Asked, trail: Trail) -> Client:
        with self._stage("admission", asked.exchange):
            return await self._admitted(asked, trail)

    async def _admitted(self, asked: Asked, trail: Trail) -> Client:
        client = asked.operator or await self._identified(asked)
        trail.client_id, trail.key_id = client.client_id, client.key_id
        trail.end_user = client.person.name if client.person else None
        if client.public_origin:
            trail.details = {"public_token": client.public_origin}
        if client.public_origin not in (None, asked.origin):
            raise ForbiddenError(
                "This public token is for the pages of another site. Ask from the site that it was made for."
            )
        if asked.scopes and not asked.scopes & client.scopes:
            raise ForbiddenError
        reader = asked.end_user if isinstance(asked.end_user, EndUser) else None
        trail.end_user = reader.name if reader else trail.end_user
        allowance = await self.limiter.admit(client, reader)
        trail.limit_decision = allowance.decision
        asked.exchange.note_allowance(allowance)
        if allowance.refusal:
            raise allowance.refusal
        if isinstance(asked.end_user, InvalidFieldError):
            raise asked.end_user
        return client

    async def _identified(self, asked: Asked) -> Client:
        return await (asked.identify() if asked.identify else self.keyring.authenticate(asked.secret))

    async def _open(self, trail: Trail, exchange: Exchange) -> None:
        with self._stage("record_open", exchange):
            await self._recorded(self.ledger.open(trail))

    async def _recall(self, exchange: Exchange, client: Client, question: Question, trail: Trail) -> Question:
        async with _timeout(self.rules.retrieval_s, "session"):
            question = await exchange.recall(client, question)
        noting.note_session(trail, question)
        return question

    async def _live_generation(self, question: Question) -> Generation:
        async with _timeout(self.rules.retrieval_s, "book"):
            return await self.library.live(question.book_id)

    async def _retrieve(
        self, question: Question, generation: Generation, trail: Trail, exchange: Exchange
    ) -> Retrieved:
        noting.note_generation(trail, generation)
        started = self.monotonic()
        try:
            with self._stage("retrieval", exchange):
                async with _timeout(self.rules.retrieval_s, "retrieval"):
                    found = await self.retriever.retrieve(question, generation)
        finally:
            trail.retrieval_latency_ms = _ms(started, self.monotonic())
        noting.note_retrieved(trail, found)
        return found

    async def _generate(
        self, question: Question, evidence: Sequence[RetrievedPassage], trail: Trail, exchange: Exchange
    ) -> tuple[list[Quoted], Draft]:
        trail.model_requested = self.generator.name
        draft = Draft(self.generator.name)
        await self._show(Sources(evidence), trail, exchange)
        started = self.monotonic()
        try:
            with self._stage("generation", exchange):
                async with _timeout(self.rules.generation_s, "generation"):
                    sentences = await self._prove(question, evidence, draft, trail, exchange)
        finally:
            trail.generation_latency_ms = _ms(started, self.monotonic())
            noting.note_draft(trail, draft, self.rules.prompt_sha256)
        return sentences, draft

    async def _prove(
        self,
        question: Question,
        evidence: Sequence[RetrievedPassage],
        draft: Draft,
        trail: Trail,
        exchange: Exchange,
    ) -> list[Quoted]:
        """The sentences whose citations hold, each shown as soon as it is on record."""
        sentences: list[Quoted] = []
        excerpts = 0
        async with aclosing(self.generator.write(question, evidence, draft)) as claims:
            async for claim in claims:
                draft.claims.append(claim)
                if not is_proven(claim, evidence, self.rules.instructions):
                    continue
                sentences.append(cite.quoted(claim, evidence, excerpts + 1))
                excerpts += len(claim.citations)
                if exchange.is_stream:
                    trail.released_text = cite.joined(sentences)
                await self._show(sentences[-1], trail, exchange)
        return sentences

    async def _show(self, event: Sources | Quoted, trail: Trail, exchange: Exchange) -> None:
        """Sends a sentence to the stream, but only after the open record contains it."""
        if exchange.is_stream:
            with self._stage("record_note", exchange):
                await self._recorded(self.ledger.note(trail))
            exchange.show(event)

    def release(
        self, sentences: Sequence[Quoted], draft: Draft, question: Question, generation: Generation
    ) -> Released:
        """The proven sentences as an answer with its confidence."""
        rules = self.rules
        confidence = rules.default_generation_confidence if draft.confidence is None else draft.confidence
        return cite.released(
            sentences, confidence, weights=rules.confidence_weights, levels=rules.confidence_levels,
            level_max=draft.level_max if generation.may_be_high else "medium",
            language=languages.of_reader(question.text, question.language),
        )  # fmt: skip

    async def _recorded(self, writing: Awaitable[None]) -> None:
        try:
            async with _timeout(self.rules.audit_s, "audit"):
                await writing
        except (LedgerUnavailableError, OutOfTimeError) as failure:
            raise AuditUnavailableError from failure

    async def _close(self, trail: Trail, started: float, exchange: Exchange) -> Receipt:
        """Makes the row durable. If that fails, there is no response."""
        if trail.outcome == "answered":
            trail.answer_id = self.new_id()
        trail.total_latency_ms = _ms(started, self.monotonic())
        left_s = max(self.rules.audit_s, self.rules.total_s - (self.monotonic() - started))
        return await _shielded(self._closed(trail, left_s, exchange))

    async def _closed(self, trail: Trail, left_s: float, exchange: Exchange) -> Receipt:
        """The ledger gives up within the time for a record, unless only the end of a commit can tell what the row says."""
        try:
            with self._stage(RECORD_CLOSE, exchange):
                async with _hard_timeout(left_s, "audit"):
                    return await self.ledger.close(trail, self.clock())
        except (LedgerUnavailableError, OutOfTimeError) as failure:
            unavailable = AuditUnavailableError()
            if self.ledger.has_record(trail.log_id):  # else nobody could find it
                unavailable.query_id = trail.query_id
            raise unavailable from failure

    @contextmanager
    def _stage(self, name: str, exchange: Exchange) -> Iterator[None]:
        """Measures a stage, however it ends."""
        started, is_done = self.monotonic(), False
        try:
            yield
            is_done = True
        finally:
            exchange.note_stage(Stage(name, started, self.monotonic(), is_done))

    def _trail(self, asked: Asked) -> Trail:
        return Trail(
            log_id=self.new_id(),
            query_id=self.new_id(),
            timestamp=self.clock(),
            endpoint=asked.endpoint,
            request_id=asked.request_id,
            client_address=asked.client_address,
            threshold=self.rules.threshold,
            settings_sha256=self.rules.settings_sha256,
            code_version=self.rules.code_version,
        )


@asynccontextmanager
async def _timeout(seconds: float, stage: str) -> AsyncIterator[None]:
    """Time limit of a stage. The record names the stage; the client only learns that the question took too long."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise OutOfTimeError(upstream=f"{stage} took longer than {seconds} s") from None


@asynccontextmanager
async def _hard_timeout(seconds: float, stage: str) -> AsyncIterator[None]:
    """A hard timeout. It cancels twice, the first time a little early: psycopg, once cancelled, waits up to ten
    seconds for a server that does not answer; cancelled again, it gives up."""
    async with _timeout(seconds, stage), asyncio.timeout(max(0.0, seconds - CLEANUP_S)):
        yield


async def _known_failures(work: Awaitable[Result]) -> Result:
    """Turns any exception but a `RequestError` into an `UnexpectedError`: it is a fault of the engine."""
    try:
        return await work
    except RequestError:
        raise
    except Exception as fault:
        raise UnexpectedError from fault


async def _shielded(closing: Coroutine[Any, Any, Receipt]) -> Receipt:
    """Shields the write from cancellation: if the client disconnects now, the row is still written first."""
    task = asyncio.ensure_future(closing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _ms(started: float, ended: float) -> int:
    return round((ended - started) * 1000)
