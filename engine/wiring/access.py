"""Who reads, and the record of each read of personal columns: written by this process, or reported by an auditor's login."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from audit.access.access import Access
from audit.access.reporting import end_read, report_read
from audit.proof.record import PERSONAL
from engine.settings import Settings
from engine.signing import has_signing_key
from engine.storage.database import AUDITOR, Database, changing, reading
from engine.wiring.audit_log import operator_events_of

OPERATOR_ROLE, AUDITOR_ROLE = "operator", "auditor"
_READER = "SELECT session_user::text, pg_has_role(session_user, 'affidavit_engine', 'MEMBER')"


@dataclass(frozen=True, slots=True)
class Reader:
    """A database login. An operator's may write records."""

    login: str
    is_operator: bool

    @property
    def role(self) -> str:
        return OPERATOR_ROLE if self.is_operator else AUDITOR_ROLE


def reader_of(database: Database) -> Reader:
    with reading(database.url, AUDITOR) as connection:
        found = connection.execute(_READER).fetchone()
    assert found
    return Reader(*found)


def access_of(
    database: Database, asked_for: str, columns: Collection[str] = PERSONAL, basis: str | None = None
) -> Access:
    reader = reader_of(database)
    return Access(reader.login, asked_for, columns, reader.role, basis)


@asynccontextmanager
async def recording_read(
    settings: Settings, database: Database, command: str, access: Access, **about: Any
) -> AsyncIterator[Access]:
    """Durable before the block begins. The block says how many records were shown."""
    is_embedded = not settings.database.url.get_secret_value()  # which makes its key at first use
    if is_embedded or (access.role == OPERATOR_ROLE and has_signing_key(settings)):
        details = {"access": access.as_details()} | about
        async with operator_events_of(database).event(command, **details) as trail:
            yield access
            trail.details = {"access": access.as_details()} | about
        return
    async with changing(database.url, AUDITOR) as connection:
        read_id = await report_read(connection, command, {"access": access.as_details()} | about)
        yield access
        await end_read(connection, read_id, access.records)
