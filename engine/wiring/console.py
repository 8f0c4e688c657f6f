"""Assembles a console that only reads, against any database of the settings, for whom `serve` cannot be reached.

It needs neither keys nor a model: only the auditor's role. Who signs in has the code that the command printed. A read of
personal columns is put on record before it is shown, as `audit query` does it; other pages leave no record.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NoReturn
from uuid import UUID, uuid4

from psycopg_pool import AsyncConnectionPool

from audit.access.access import Access
from audit.coverage.recent import RecentCoverage
from audit.coverage.verifications import VerificationRun
from audit.errors import AuditError, LedgerUnavailableError
from audit.proof.record import Trail
from engine.admission.flood import FloodCounter
from engine.admission.overload.concurrency_limit import ConcurrencyLimit
from engine.admission.overload.turnstile import Turnstile
from engine.admission.proxies import TrustedProxies
from engine.answer import Engine
from engine.errors import AffidavitError, ForbiddenError, UnauthenticatedError
from engine.house import House
from engine.models import Client
from engine.retrieval.library import StoredLibrary
from engine.settings import Settings
from engine.signing import public_keys_file
from engine.storage.database import Database
from engine.wiring import access, audit_log, charts, providers, reports, signing
from engine.wiring.access import reader_of, recording_read
from engine.wiring.house import coverage_of, open_console_pool, rules_of
from engine.wiring.providers import closed_by, now
from engine.wiring.verification import newest_run

PAGE_S, RECORD_S = 30.0, 10.0  # one person waits, and nobody else
CODE_BYTES = 16
LIFETIME_S = 10 * 3600.0


class AbsentPart:
    """A null object for each part that a console alone does not have."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ForbiddenError("This console only reads. Use the console of `affidavit serve` for this.")


@dataclass(slots=True)
class LocalSessions:
    """The sessions of this process alone."""

    client: Client
    _begun: dict[str, float] = field(default_factory=dict)

    async def begin(self, _: str) -> str:
        secret = secrets.token_urlsafe(32)
        self._begun[secret] = time.monotonic()
        return secret

    async def holder(self, secret: str | None) -> Client:
        begun = self._begun.get(secret or "")
        if begun is None or time.monotonic() - begun > LIFETIME_S:
            raise UnauthenticatedError
        return self.client

    async def end(self, secret: str) -> None:
        self._begun.pop(secret, None)


@dataclass(frozen=True, slots=True)
class CodeKeyring:
    """One code, for the person at the terminal."""

    code: str
    client: Client

    async def authenticate(self, secret: str | None) -> Client:
        if not hmac.compare_digest((secret or "").encode(), self.code.encode()):
            raise UnauthenticatedError
        return self.client


@dataclass(frozen=True, slots=True)
class ReadsLedger:
    """Records the reads of personal columns, and nothing else."""

    settings: Settings
    database: Database

    async def open(self, trail: Trail) -> None: ...

    async def note(self, trail: Trail) -> None: ...

    def has_record(self, _: UUID) -> bool:
        return False

    async def close(self, trail: Trail, _: datetime) -> None:
        """Before the page leaves: what cannot be recorded is not shown."""
        details = trail.details if isinstance(trail.details, dict) else {}
        if "access" not in details:
            return
        about = {name: value for name, value in details.items() if name != "access"} | {
            "page": trail.endpoint
        }
        read = Access(**details["access"])
        try:
            async with recording_read(self.settings, self.database, "console", read, **about):
                pass
        except (AffidavitError, AuditError, OSError) as failure:
            raise LedgerUnavailableError("The read cannot be recorded") from failure


@dataclass(frozen=True, slots=True)
class RunsOfOthers:
    """Shows what others have verified."""

    reading: AsyncConnectionPool
    can_start: bool = False

    async def start(self, client_id: str, key_id: str | None) -> bool:  # noqa: ARG002
        raise ForbiddenError("This console only reads. Run `affidavit audit verify`.")

    async def newest(self) -> VerificationRun | None:
        return await newest_run(self.reading)


async def _pinned_keys(settings: Settings, pool: AsyncConnectionPool) -> list[str]:
    """None where nobody put the file of public keys: then nothing that was signed can be judged here."""
    if not public_keys_file(settings).exists():
        return []
    return await signing.key_texts(settings, pool)


@asynccontextmanager
async def open_console(settings: Settings, database: Database) -> AsyncIterator[tuple[House, str]]:
    """The house, and the code to sign in with."""
    absent: Any = AbsentPart()
    reader = await asyncio.to_thread(reader_of, database)
    client, code = Client(reader.login, "console", frozenset({"audit"})), secrets.token_urlsafe(CODE_BYTES)
    ledger: Any = ReadsLedger(settings, database)
    sessions: Any = LocalSessions(client)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(open_console_pool(database, PAGE_S))
        engine = Engine(
            keyring=CodeKeyring(code, client), limiter=closed_by(stack, providers.LIMITERS["memory"](settings)),
            flood=closed_by(stack, FloodCounter(ledger, now, time.monotonic, within_s=RECORD_S)),
            turnstile=Turnstile(ConcurrencyLimit(), time.monotonic), refused_rows=absent,
            recent_keys=absent,
            library=StoredLibrary(pool), retriever=absent, generator=absent, ledger=ledger,
            rules=replace(rules_of(settings), total_s=PAGE_S + RECORD_S, audit_s=RECORD_S),
            clock=now, new_id=uuid4, monotonic=time.monotonic,
        )  # fmt: skip
        coverage = RecentCoverage(partial(coverage_of, settings, database), time.monotonic)
        yield House(
            engine=engine, library=StoredLibrary(pool), index=absent, watched_index=absent, pool=absent,
            default_book=settings.books.default, top_k=settings.retrieval.top_k, body_bytes_max=settings.limits.body_bytes,
            page_enabled=False, proxies=TrustedProxies.named(()), allowed_origins=frozenset(), public_tokens=absent,
            prover=await stack.enter_async_context(audit_log.open_prover(database)), public_keys=partial(_pinned_keys, settings, pool), log_gauges=absent,
            tallies=dict, sessions=None, eraser=absent, operator_events=absent, tracer=None, seals=absent,
            console_sessions=sessions, console_pool=pool, charts=closed_by(stack, charts.ChartDrawer(database)),
            coverage=closed_by(stack, coverage), verifier=RunsOfOthers(pool), access_policy=access.access_policy_of(settings), reports=reports.reports_of(settings, database),
            unmask_requests=partial(access.requests_now, database), is_read_only=True,
        ), code  # fmt: skip
