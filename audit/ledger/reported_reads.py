"""Records of the reads that auditors' logins reported, which may not write any themselves.

A report is taken and its record is written in one transaction, so that each report becomes exactly one record however often
an engine dies on the way. The login and the time are those that the database noted; all else is the word of that login, which
may be any JSON, and is not believed where it would speak for somebody else.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg

from audit.ledger.database_writer import WRITE, arguments
from audit.ledger.entry import Entry
from audit.proof.keys import RowSigner
from audit.proof.record import PERSONAL, SALT_BYTES, HashedRow, Trail, hashed, row_of
from audit.proof.row_signature import signed

PATIENCE = timedelta(minutes=15)  # a read that has not ended by then was interrupted
READ_MAX = 100  # the others come next time
UNREADABLE_CHARACTERS_MAX = 2_000

_TAKE = (
    "SELECT read_id, read_at, login, command, details::text, records, has_ended FROM audit_take_reads(%s, %s)"
)


class _Report(NamedTuple):
    read_id: UUID
    read_at: datetime
    login: str
    command: str
    details: str  # JSON
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
                await self._write(connection, reads)
        return len(reads)

    async def _write(self, connection: psycopg.AsyncConnection, reads: Sequence[_Report]) -> None:
        """Together; if the database does not take them so, each as it takes it."""
        entries = await asyncio.to_thread(lambda: [self._entry(each) for each in reads])
        if await _is_taken(connection, entries):
            return
        for read, entry in zip(reads, entries, strict=True):
            if not await _is_taken(connection, [entry]):
                await connection.execute(WRITE, arguments([self._unreadable(read)]))

    def _entry(self, read: _Report) -> Entry:
        try:
            return self._signed(read, _details(read))
        except (
            ValueError,
            TypeError,
            RecursionError,
        ):  # JSON that Python cannot read, or without a canonical form
            return self._unreadable(read)

    def _unreadable(self, read: _Report) -> Entry:
        """Its first characters as text, and not its number, which may have no canonical form either: it must not hold up others."""
        text = read.details[:UNREADABLE_CHARACTERS_MAX]
        return self._signed(read, {"access": _shaped({"filter": text}, read._replace(records=None))})

    def _signed(self, read: _Report, details: dict[str, Any]) -> Entry:
        """The record is of now: the month of the read may have been archived since."""
        now = self._clock()
        made = _made(read, now, details)
        return Entry.closed(read.read_id, signed(made, read.read_id, self._key.at(now)))


async def _is_taken(connection: psycopg.AsyncConnection, entries: Sequence[Entry]) -> bool:
    try:
        async with connection.transaction():
            await connection.execute(WRITE, arguments(entries))
    except psycopg.DatabaseError:
        return False
    return True


def _made(read: _Report, now: datetime, details: dict[str, Any]) -> HashedRow:
    trail = Trail(
        log_id=read.read_id, query_id=uuid4(), timestamp=now, endpoint=f"affidavit {read.command}",
        outcome="recorded" if read.has_ended else "abandoned", success=read.has_ended,
        details=details | {"read_at": read.read_at.isoformat()},
    )  # fmt: skip
    return hashed(row_of(trail), secrets.token_bytes(SALT_BYTES))


def _details(read: _Report) -> dict[str, Any]:
    """In its own name and as an auditor. An approval is never taken from here: the log has the one that counts."""
    said = json.loads(read.details)
    said = said if isinstance(said, dict) else {"said": said}
    details = {name: value for name, value in said.items() if name not in {"access", "asks", "approves"}}
    if isinstance(access := said.get("access"), dict):
        details["access"] = _shaped(access, read)
    if isinstance(asks := said.get("asks"), dict):
        details["asks"] = {**asks, **_own(read)}
    return details


def _shaped(access: dict[str, Any], read: _Report) -> dict[str, Any]:
    """As all other accesses: what no column is named of counts as all."""
    columns, asked_for, basis = access.get("columns"), access.get("filter"), access.get("basis")
    named = {name for name in columns if isinstance(name, str)} if isinstance(columns, list) else set[str]()
    return {
        "filter": asked_for if isinstance(asked_for, str) else json.dumps(asked_for, ensure_ascii=False),
        "columns": sorted(PERSONAL & named or PERSONAL),
        "basis": basis if isinstance(basis, str) else None, "records": read.records, "second": None, **_own(read),
    }  # fmt: skip


def _own(read: _Report) -> dict[str, str]:
    return {"who": read.login, "role": "auditor"}
