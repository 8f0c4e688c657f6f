"""Records of the reads that auditors' logins reported, which may not write any themselves.

A report is taken and its record is written in one transaction, so that each report becomes exactly one record however often
an engine dies on the way. The login and the time are those that the database noted.
"""

import asyncio
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from audit.ledger.database_writer import WRITE, arguments
from audit.ledger.entry import Entry
from audit.proof.keys import RowSigner
from audit.proof.record import SALT_BYTES, Trail, hashed, row_of
from audit.proof.row_signature import signed

PATIENCE = timedelta(minutes=15)  # a read that has not ended by then was interrupted
READ_MAX = 1_000  # the others come next time

_TAKE = "SELECT read_id, read_at, login, command, details, records, has_ended FROM audit_take_reads(%s, %s)"


class ReportedReads:
    def __init__(self, key: RowSigner, clock: Callable[[], datetime]) -> None:
        self._key = key
        self._clock = clock

    async def record(self, connection: psycopg.AsyncConnection) -> int:
        async with connection.transaction():
            cursor = await connection.execute(_TAKE, (PATIENCE, READ_MAX))
            if reads := await cursor.fetchall():
                entries = await asyncio.to_thread(lambda: [self._entry(*read) for read in reads])
                await connection.execute(WRITE, arguments(entries))
        return len(reads)

    def _entry(
        self, read_id: UUID, read_at: datetime, login: str, command: str, details: Any, records: int | None,
        has_ended: bool,  # noqa: FBT001  a column
    ) -> Entry:  # fmt: skip
        """The record is of now: the month of the read may have been archived since."""
        access = {**details.get("access", {}), "who": login, "records": records}
        trail = Trail(
            log_id=read_id, query_id=uuid4(), timestamp=self._clock(), endpoint=f"affidavit {command}",
            outcome="recorded" if has_ended else "abandoned", success=has_ended,
            details={**details, "access": access, "read_at": read_at.isoformat()},
        )  # fmt: skip
        made = hashed(row_of(trail), secrets.token_bytes(SALT_BYTES))
        return Entry.closed(read_id, signed(made, read_id, self._key.at(trail.timestamp)))
