"""One question: answered, refused or failed, and never unrecorded. Read this first.

    (1) authenticate  keys.py                  whose key is this
    (2) limit         providers/               may they ask now
    (3) read          http/contracts.py        the body, checked; the question stays word for word
    (4) open          audit/ledger.py          from here on a durable record exists
    (5) retrieve      retrieve.py              embed, search, blend             at most 2.0 s
    (6) gate          gate.py                  enough evidence, or refuse before paying for a model
    (7) generate      providers/               a draft with citations           at most 2.5 s
    (8) verify        verify.py, cite.py       each sentence as it comes; what is not proven does not leave
    (9) close         audit/ledger.py          the row, durable; the receipt    at most 0.5 s

A refusal is a value and takes the same way out as an answer. A failure is an exception; its row is written before it
is raised to the client. Whatever happens on the way is noted in the trail, and the trail is the row.

Whatever else is served about a book or a record (`recorded`), and whatever is turned away before it reaches an endpoint
(`turned_away`), goes in and out by the same doors: authenticated, limited, and one row.

Whoever listens hears each proven sentence as soon as it stands in the open record, so that nothing is shown that was
not recorded before. Whoever leaves takes the request along: it is cancelled down to the sockets, and its row says so.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from engine.admission.flood import FloodCounter
from engine.errors import (
    AffidavitError,
    AuditUnavailableError,
    BadRequestError,
    ForbiddenError,
    InvalidFieldError,
    OutOfTimeError,
    RequestError,
    UnexpectedError,
)
from engine.grounding import cite
from engine.grounding.injection_flags import is_instruction_like
from engine.grounding.verify import Instructions, is_proven, refuse_unproven
from engine.models import (
    Allowance,
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
    Trail,
)
from engine.ports import Clock, Generator, Keyring, Library, Limiter, NewId
from engine.retrieval.gate import refuse_weak_evidence
from engine.retrieval.retrieve import Retriever

HTTP_OK = 200
ASK = frozenset({"ask"})  # what a key must be good for, unless the endpoint says otherwise
WIND_UP_S = 0.05  # of a time limit, to let go of what was waited for

Made = TypeVar("Made")


async def no_question() -> Question:
    """Of a request that asks none."""
    raise BadRequestError


def nobody_follows(_: Trail) -> None: ...


def nobody_hears(_: Allowance) -> None: ...


async def by_itself(_: Client, question: Question) -> Question:
    """A question of no session."""
    return question


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrives, its body still unread. An operator at this machine's terminal needs no key."""

    endpoint: str
    request_id: str
    read: Callable[[], Awaitable[Question]] = no_question
    client_address: str | None = None
    secret: str | None = None
    operator: Client | None = None
    end_user: EndUser | InvalidFieldError | None = (
        None  # the client's reader; an error is raised once it is counted
    )
    hear: Callable[[Allowance], None] = nobody_hears  # what was decided about its limits, to be told
    scopes: frozenset[str] = ASK  # one of them is needed; empty: any key will do
    recall: Callable[[Client, Question], Awaitable[Question]] = (
        by_itself  # what was said before, for its owner
    )
    follow: Callable[[Trail], None] = (
        nobody_follows  # is given the trail as it begins: for figures and the log
    )


@dataclass(frozen=True, slots=True)
class Sources:
    """What a listener hears first: the passages that the answer will be written from."""

    evidence: Sequence[RetrievedPassage]


Listener = Callable[[Sources | Quoted], None]  # keeps what it hears; it must not wait


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers that decide, from config/engine.toml, and the fingerprints that say which numbers they were."""

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


@dataclass(frozen=True, slots=True)
class Engine:
    """The assembled stages. Only wiring.py builds one."""

    keyring: Keyring
    limiter: Limiter
    flood: FloodCounter
    library: Library
    retriever: Retriever
    generator: Generator
    ledger: Ledger
    rules: Rules
    clock: Clock
    new_id: NewId
    monotonic: Callable[[], float]

    async def answer(self, asked: Asked, listen: Listener | None = None) -> Answer:
        """The whole way, within five seconds. Raises a `RequestError` if it fails; its row is written by then."""

        async def decide(trail: Trail) -> Released | Refusal:
            outcome = await self._decide(asked, trail, listen)
            _note_outcome(trail, outcome)
            return outcome

        return Answer(*await self._on_record(asked, decide))

    async def recorded(self, asked: Asked, serve: Callable[[Client, Trail], Awaitable[Made]]) -> Made:
        """What is served without a question, such as a passage: `serve` notes in the trail what it was."""

        async def work(trail: Trail) -> Made:
            client = await self._admit(asked, trail)  # (1) (2)
            await self._open(trail)  # (4)
            made = await serve(client, trail)
            trail.outcome, trail.success, trail.http_status = "served", True, HTTP_OK
            return made

        made, *_ = await self._on_record(asked, work)
        return made

    async def turned_away(self, asked: Asked, failure: RequestError) -> RequestError:
        """What to tell a request that found no endpoint. No key is needed for that; one that is sent counts as used."""

        async def refuse(trail: Trail) -> RequestError:
            if asked.secret:
                await self._admit(asked, trail)
            raise failure

        try:
            return (await self._on_record(asked, refuse))[0]
        except RequestError as told:
            return told

    async def _on_record(
        self, asked: Asked, work: Callable[[Trail], Awaitable[Made]]
    ) -> tuple[Made, Trail, Receipt, int]:
        """The one way in and out: whatever becomes of the work, its row is written before anybody hears of it."""
        started = self.monotonic()
        trail = self._trail(asked)
        asked.follow(trail)
        try:
            async with _strictly_at_most(self.rules.total_s - self.rules.audit_s, "request"):
                made = await _ours(work(trail))
        except RequestError as failure:
            _note_failure(trail, failure)
            if await self.flood.count_if_flooding(trail):
                _named(failure, trail)
            else:
                await self._close(trail, started)
            raise
        except asyncio.CancelledError:
            _note_gone(trail)
            await self._close(trail, started)
            raise
        closing = self.monotonic()
        receipt = await self._close(trail, started)  # (9)
        return made, trail, receipt, _ms(closing, self.monotonic())

    async def _decide(self, asked: Asked, trail: Trail, listen: Listener | None) -> Released | Refusal:
        client = await self._admit(asked, trail)  # (1) (2)
        question = await asked.read()  # (3)
        _note_question(trail, question)
        if not client.may_ask(question.book_id):
            raise ForbiddenError("The API key is valid but not for this book.")
        await self._open(trail)  # (4)
        question = await self._recall(asked, client, question, trail)
        generation = await self._live(question)
        found = await self._retrieve(question, generation, trail)  # (5)
        refusal = refuse_weak_evidence(found, self.rules.threshold)  # (6)
        if refusal:
            return refusal
        return await self._generate(question, found.evidence, trail, listen)  # (7) (8)

    async def _admit(self, asked: Asked, trail: Trail) -> Client:
        client = asked.operator or await self.keyring.authenticate(asked.secret)
        trail.client_id, trail.key_id = client.client_id, client.key_id
        if asked.scopes and not asked.scopes & client.scopes:
            raise ForbiddenError
        reader = asked.end_user
        known = reader if isinstance(reader, EndUser) else None
        trail.end_user = known.name if known else None
        allowance = await self.limiter.admit(client, known)
        trail.limit_decision = allowance.decision
        asked.hear(allowance)
        if allowance.refusal:
            raise allowance.refusal
        if isinstance(reader, InvalidFieldError):
            raise reader
        return client

    async def _open(self, trail: Trail) -> None:
        try:
            async with _at_most(self.rules.audit_s, "audit"):
                await self.ledger.open(trail)
        except (LedgerUnavailableError, OutOfTimeError) as failure:
            raise AuditUnavailableError from failure

    async def _recall(self, asked: Asked, client: Client, question: Question, trail: Trail) -> Question:
        async with _at_most(self.rules.retrieval_s, "session"):
            question = await asked.recall(client, question)
        trail.session_id = question.session_id
        return question

    async def _live(self, question: Question) -> Generation:
        async with _at_most(self.rules.retrieval_s, "book"):
            return await self.library.live(question.book_id)

    async def _retrieve(self, question: Question, generation: Generation, trail: Trail) -> Retrieved:
        _note_generation(trail, generation)
        started = self.monotonic()
        try:
            async with _at_most(self.rules.retrieval_s, "retrieval"):
                found = await self.retriever.retrieve(question, generation)
        finally:
            trail.retrieval_latency_ms = _ms(started, self.monotonic())
        _note_retrieved(trail, found)
        return found

    async def _generate(
        self, question: Question, evidence: Sequence[RetrievedPassage], trail: Trail, listen: Listener | None
    ) -> Released | Refusal:
        trail.model_requested = self.generator.name
        draft = Draft(self.generator.name)
        if listen:
            await self._show(Sources(evidence), trail, listen)
        started = self.monotonic()
        try:
            async with _at_most(self.rules.generation_s, "generation"):
                sentences = await self._proven(question, evidence, draft, trail, listen)
        finally:
            trail.generation_latency_ms = _ms(started, self.monotonic())
            _note_draft(trail, draft)
            trail.prompt_sha256 = self.rules.prompt_sha256 if draft.prompt else None
        return refuse_unproven(draft, sentences, evidence) or self._release(sentences, draft)

    async def _proven(
        self,
        question: Question,
        evidence: Sequence[RetrievedPassage],
        draft: Draft,
        trail: Trail,
        listen: Listener | None,
    ) -> list[Quoted]:
        """The sentences that are proven, each shown to whoever listens once it is on record."""
        sentences: list[Quoted] = []
        excerpts = 0
        async with aclosing(self.generator.write(question, evidence, draft)) as claims:
            async for claim in claims:
                draft.claims.append(claim)
                if not is_proven(claim, evidence, self.rules.instructions):
                    continue
                sentences.append(cite.quoted(claim, evidence, excerpts + 1))
                excerpts += len(claim.citations)
                if listen:
                    trail.released_text = cite.joined(sentences)
                    await self._show(sentences[-1], trail, listen)
        return sentences

    async def _show(self, event: Sources | Quoted, trail: Trail, listen: Listener) -> None:
        """Only what stands in the open record may be seen."""
        try:
            async with _at_most(self.rules.audit_s, "audit"):
                await self.ledger.note(trail)
        except (LedgerUnavailableError, OutOfTimeError) as failure:
            raise AuditUnavailableError from failure
        listen(event)

    def _release(self, sentences: Sequence[Quoted], draft: Draft) -> Released:
        rules = self.rules
        confidence = rules.default_generation_confidence if draft.confidence is None else draft.confidence
        return cite.released(
            sentences, confidence, weights=rules.confidence_weights, levels=rules.confidence_levels
        )

    async def _close(self, trail: Trail, started: float) -> Receipt:
        """Nothing leaves before this is done: no record, no answer."""
        if trail.outcome == "answered":
            trail.answer_id = self.new_id()
        trail.total_latency_ms = _ms(started, self.monotonic())
        return await _unbroken(self._closed(trail))

    async def _closed(self, trail: Trail) -> Receipt:
        try:
            async with _strictly_at_most(self.rules.audit_s, "audit"):
                return await self.ledger.close(trail, self.clock())
        except (LedgerUnavailableError, OutOfTimeError) as failure:
            raise _named(AuditUnavailableError(), trail) from failure

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


class StageTimeoutError(AffidavitError):
    """Which stage was too slow; for the record, not for the client."""


@asynccontextmanager
async def _at_most(seconds: float, stage: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise OutOfTimeError from StageTimeoutError(f"{stage} took longer than {seconds} s")


@asynccontextmanager
async def _strictly_at_most(seconds: float, stage: str) -> AsyncIterator[None]:
    """For what no other limit stands around. The database's driver, once interrupted, waits ten seconds for a server
    that does not answer; interrupted once more, it lets go. So the first time comes a little early."""
    async with _at_most(seconds, stage), asyncio.timeout(max(0.0, seconds - WIND_UP_S)):
        yield


async def _ours(work: Awaitable[Made]) -> Made:
    """Whatever is not a failure that we know is a fault of ours."""
    try:
        return await work
    except RequestError:
        raise
    except Exception as fault:
        raise UnexpectedError from fault


async def _unbroken(closing: Coroutine[Any, Any, Receipt]) -> Receipt:
    """The row is written to its end even if the client leaves in this moment; then its leaving is told on."""
    task = asyncio.ensure_future(closing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _note_question(trail: Trail, question: Question) -> None:
    trail.user_query_text = trail.retrieval_query = question.text
    trail.source_mode = "full-book" if question.selected_text is None else "context-restricted"
    trail.selected_text = question.selected_text
    trail.book_id, trail.top_k = question.book_id, question.top_k
    trail.filters = json.loads(json.dumps(asdict(question.filters)))
    trail.session_id, trail.end_user = question.session_id, trail.end_user or question.end_user
    if is_instruction_like(question.text):
        trail.instruction_like = ["question"]


def _note_generation(trail: Trail, generation: Generation) -> None:
    trail.index_generation, trail.embedder = generation.generation_id, generation.embedder
    trail.calibration_id = generation.calibration.calibration_id
    trail.calibration_kind = generation.calibration.kind


def _note_retrieved(trail: Trail, found: Retrieved) -> None:
    trail.retrieval_query, trail.best_score = found.query, found.best_score
    trail.chunks_retrieved_count = found.considered
    trail.chunks_returned = [asdict(item.candidate) for item in found.evidence]
    trail.filter_message, trail.rerank = found.filter_message, found.rerank
    suspects = [item.passage.chunk_id for item in found.evidence if is_instruction_like(item.passage.text)]
    if suspects:
        trail.instruction_like = [*(trail.instruction_like or []), *suspects]


def _note_draft(trail: Trail, draft: Draft) -> None:
    trail.llm_prompt, trail.llm_response = draft.prompt, draft.raw or None
    trail.model_used, trail.stop_reason = draft.model, draft.stop_reason
    trail.provider_request_id = draft.request_id
    trail.tokens_input, trail.tokens_output = draft.tokens_input, draft.tokens_output


def _note_outcome(trail: Trail, outcome: Released | Refusal) -> None:
    trail.http_status, trail.success = HTTP_OK, isinstance(outcome, Released)
    if isinstance(outcome, Refusal):
        trail.outcome, trail.reason, trail.answer_text = "refused", outcome.reason, outcome.message
        return
    trail.outcome, trail.answer_text = "answered", outcome.text
    trail.citations = [asdict(excerpt) for excerpt in outcome.excerpts]
    trail.confidence_score, trail.confidence_level = outcome.confidence, outcome.confidence_level
    trail.retrieval_confidence = outcome.retrieval_confidence
    trail.generation_confidence = outcome.generation_confidence


def _note_gone(trail: Trail) -> None:
    """The client left, or the server was told to stop: nobody is there to be answered."""
    trail.outcome, trail.success = "client_gone", False
    trail.error_message = "The client closed the connection before the answer was complete"


def _note_failure(trail: Trail, failure: RequestError) -> None:
    trail.outcome, trail.success = "failed", False
    trail.http_status, trail.error_type = failure.status, failure.error_type
    trail.error_message = f"{failure.detail} [{failure.upstream or _cause(failure)}]"
    _named(failure, trail)


def _cause(failure: RequestError) -> str:
    """What lay behind a failure, without the words of a driver or a provider: those may repeat personal text."""
    cause = failure.__cause__
    return str(cause) if isinstance(cause, StageTimeoutError) else type(cause or failure).__name__


def _named(failure: RequestError, trail: Trail) -> RequestError:
    failure.query_id = trail.query_id
    return failure


def _ms(started: float, ended: float) -> int:
    return round((ended - started) * 1000)
