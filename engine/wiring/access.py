"""Who reads, whether they may, and the record of each read of personal columns.

An operator's process writes the record itself. A login with an auditor's rights alone reports the read to the database.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from audit.access.access import Access
from audit.access.approvals import REQUESTS, UnmaskRequest
from audit.access.policy import LEAD, Policy
from audit.access.reporting import end_read, report_read
from audit.errors import MaskedError
from audit.proof.record import PERSONAL
from engine.errors import DatabaseUnavailableError, StatementError
from engine.settings import Settings
from engine.signing import has_signing_key
from engine.storage.database import AUDITOR, Database, changing, reading
from engine.wiring.audit_log import operator_events_of
from engine.wiring.providers import now

_READER = "SELECT session_user::text, pg_has_role(session_user, 'affidavit_engine', 'MEMBER')"


@dataclass(frozen=True, slots=True)
class Reader:
    """A database login. An operator's may write records."""

    login: str
    is_operator: bool
    role: str


def access_policy_of(settings: Settings) -> Policy:
    given = settings.access
    return Policy(
        frozenset(given.masked_roles), given.basis_required, given.second_person, frozenset(given.leads),
        timedelta(minutes=given.approval_minutes),
    )  # fmt: skip


def reader_of(database: Database) -> Reader:
    with reading(database.url, AUDITOR) as connection:
        ((login, is_operator),) = connection.execute(_READER).fetchall()
    other = "operator" if is_operator else "auditor"
    return Reader(login, is_operator, LEAD if login in database.settings.access.leads else other)


def access_of(
    database: Database,
    asked_for: str,
    columns: Collection[str] = PERSONAL,
    basis: str | None = None,
    approval: UUID | None = None,
) -> Access:
    """What this login asks for. `approval` is a request that a second person has approved."""
    reader = reader_of(database)
    second = _approver(database, reader, approval) if approval else None
    return Access(reader.login, asked_for, columns, reader.role, basis, second)


def _approver(database: Database, reader: Reader, approval: UUID) -> str:
    for request in unmask_requests(database):
        if (request.request_id, request.who) == (approval, reader.login) and request.approved_by:
            return request.approved_by
    raise MaskedError(
        f"Nobody has approved the request {approval} of {reader.login}, or it is too old: see `affidavit audit access list`."
    )


def unmask_requests(database: Database) -> list[UnmaskRequest]:
    """Those that still count, the oldest first."""
    since = now() - access_policy_of(database.settings).approval
    with reading(database.url, AUDITOR) as connection:
        return [UnmaskRequest(*row) for row in connection.execute(REQUESTS, (since,))]


async def requests_now(database: Database) -> list[UnmaskRequest]:
    """For the console's pages."""
    try:
        return await asyncio.to_thread(unmask_requests, database)
    except StatementError as failure:
        raise DatabaseUnavailableError from failure


@asynccontextmanager
async def recording_read(
    settings: Settings, database: Database, command: str, access: Access, **about: Any
) -> AsyncIterator[UUID]:
    """The name of the record, which is durable before the block begins; the block sets `access.records`.

    `MaskedError` if the policy does not let this login see what it asks for.
    """
    access_policy_of(settings).check(access)
    async with noting_read(settings, database, command, access, **about) as log_id:
        yield log_id


@asynccontextmanager
async def noting_read(
    settings: Settings, database: Database, command: str, access: Access, **about: Any
) -> AsyncIterator[UUID]:
    """The same of what is read and not shown."""
    if access.columns:
        about |= {"access": access.as_details()}
    async with noting(settings, database, command, **about) as noted:
        yield noted.log_id
        if access.columns:
            noted.details["access"] = access.as_details()


@dataclass(slots=True)
class Noted:
    """A record that is being made: its name, and its details, to which the block may add."""

    log_id: UUID
    details: dict[str, Any]


@asynccontextmanager
async def noting(settings: Settings, database: Database, command: str, **about: Any) -> AsyncIterator[Noted]:
    """A record of this command, which an auditor's login only reports. It is durable before the block begins."""
    if writes_records(settings, database):
        async with operator_events_of(database).event(command, **about) as trail:
            noted = Noted(trail.log_id, dict(about))
            yield noted
            trail.details = noted.details
        return
    async with changing(database.url, AUDITOR) as connection:
        noted = Noted(await report_read(connection, command, about), dict(about))
        yield noted
        more = {name: value for name, value in noted.details.items() if name not in about}
        await end_read(connection, noted.log_id, noted.details.get("access", {}).get("records"), more)


async def ask_to_unmask(settings: Settings, database: Database, basis: str) -> UUID:
    """The name of the request, which is a record of the log and nothing else."""
    reader = reader_of(database)
    asks = {"who": reader.login, "role": reader.role, "basis": basis}
    async with noting(settings, database, "audit access ask", asks=asks) as noted:
        return noted.log_id


async def approve_unmasking(database: Database, request_id: UUID) -> UnmaskRequest:
    """`MaskedError` if this login is no second person for it."""
    reader = reader_of(database)
    found = next((one for one in unmask_requests(database) if one.request_id == request_id), None)
    if found is None:
        raise MaskedError(
            f"There is no request {request_id}, or it is too old. A new one takes up to a minute to be seen."
        )
    if reader.role != LEAD:
        raise MaskedError(f"{reader.login} is not among the logins of access.leads, so it cannot approve.")
    if refusal := found.refusal_of(reader.login):
        raise MaskedError(refusal)
    approves = {"request": str(request_id), "who": reader.login}
    async with operator_events_of(database).event("audit access approve", approves=approves):
        return found


def writes_records(settings: Settings, database: Database) -> bool:
    """Whether this process can write and sign records. The embedded database makes its key at first use."""
    is_embedded = not settings.database.url.get_secret_value()
    return is_embedded or (reader_of(database).is_operator and has_signing_key(settings))
