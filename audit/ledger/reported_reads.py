"""Records of the reads that auditors' logins reported, which may not write any themselves.

A report is taken and its record is written in one transaction, so that each report becomes exactly one record however often
an engine dies on the way. The login and the time are those that the database noted; all else is the word of that login, which
may be any JSON, and is not believed where it would speak for somebody else.
"""

import asyncio
import json
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg

from audit.ledger.database_writer import WRITE, arguments
from audit.ledger.entry import Entry
from audit.proof.keys import RowSigner
from audit.proof.record import SALT_BYTES, HashedRow, Trail, hashed, row_of
from audit.proof.row_signature import signed

PATIENCE = timedelta(minutes=15)  # a read that has not ended by then was interrupted
READ_MAX = 100  # the others come next time
UNREADABLE_CHARACTERS_MAX = 2_000

_TAKE = "SELECT read_id, read_at, login, command, details, records, has_ended FROM audit_take_reads(%s, %s)"


class _Report(NamedTuple):
    read_id: UUID
    read_at: datetime
    login: str
    command: str
    details: Any
    records: int | None
    has_ended: bool


class ReportedReads:
    def __init__(self, key: RowSigner, clock: Callable[[], datetime]) -> None:
        self._key = key
        self._clock = clock

    async def record(self, connection: psycopg.AsyncConnection) -> int:
        async with connection.transaction():
            cursor = await connection.execute(_TAKE, (PATIENCE, READ_MAX))
            if reads := [_Report(*row) for row in await cursor.fetchall()]:
                entries = await asyncio.to_thread(lambda: [self._entry(each) for each in reads])
                await connection.execute(WRITE, arguments(entries))
        return len(reads)

    def _entry(self, read: _Report) -> Entry:
        """The record is of now: the month of the read may have been archived since."""
        now = self._clock()
        try:
            made = _made(read, now, _details(read))
        except (
            ValueError,
            TypeError,
            RecursionError,
        ):  # JSON without a canonical form; it must not hold up others
            text = json.dumps(str(read.details))[:UNREADABLE_CHARACTERS_MAX]
            made = _made(read, now, {"access": {"who": read.login, "filter": text}})
        return Entry.closed(read.read_id, signed(made, read.read_id, self._key.at(now)))


def _made(read: _Report, now: datetime, details: dict[str, Any]) -> HashedRow:
    trail = Trail(
        log_id=read.read_id, query_id=uuid4(), timestamp=now, endpoint=f"affidavit {read.command}",
        outcome="recorded" if read.has_ended else "abandoned", success=read.has_ended,
        details=details | {"read_at": read.read_at.isoformat()},
    )  # fmt: skip
    return hashed(row_of(trail), secrets.token_bytes(SALT_BYTES))


def _details(read: _Report) -> dict[str, Any]:
    """In its own name and as an auditor. An approval is never taken from here: the log has the one that counts."""
    said = read.details if isinstance(read.details, dict) else {"said": read.details}
    own = {"who": read.login, "role": "auditor"}
    details = {name: value for name, value in said.items() if name not in {"access", "asks", "approves"}}
    if isinstance(access := said.get("access"), dict):
        details["access"] = {**access, **own, "records": read.records, "second": None}
    if isinstance(asks := said.get("asks"), dict):
        details["asks"] = {**asks, **own}
    return details
