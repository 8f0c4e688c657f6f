"""Orphan cleanup: closes the requests that a dead process left open as `abandoned`, and leaves those of live processes alone.

A request of this process whose end could not be recorded is closed too, as `not_acknowledged`: its client got 503.

A process lives while the database has a session of its name (a lease), under a login that may write, or, on this machine,
while it holds the lock on its spool file: a connection can be lost without its process. No lock of the database serves as
a lease: readers can take an advisory one, and all others need a transaction that would stay open for days. The end of a
request may be in the spool of the machine that died, so others wait for that machine before they close its requests.

Only what the engine signed when it was opened is closed with its signature: anybody who owns the database could open a request.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo

from audit.ledger.database_writer import WRITE, arguments, is_archived
from audit.ledger.delegated_keys import DELEGATIONS
from audit.ledger.entry import Entry
from audit.ledger.spool import Spool, has_lost_entries, is_alive
from audit.proof.keys import KeyRing, PublicKey, RowSigner, Signer
from audit.proof.record import SALT_BYTES, SCHEMA_VERSIONS, SIGNED_FROM, Row, hashed
from audit.proof.row_signature import is_open_signed, signed
from audit.session import AsyncSession

LOCK_PAUSE_S = 0.05  # between two retries to connect
FOREIGN_S = 3600  # a machine that has not come back by then has lost its spool
READ_MAX = 10_000  # far more than a machine has in progress; the others come next time
FORGOTTEN_S = 30  # no request takes that long: one of ours that is still open was lost between two states
UNSIGNED_VERSIONS = {version for version in SCHEMA_VERSIONS if version < SIGNED_FROM}

# The rows are locked, so that of several starts at once each closes what no other does.
_ABANDONED = """
SELECT log_id, owner, trail, signature FROM audit_open WHERE (
    (owner <> %(owner)s AND (spool IS NULL OR spool = %(spool)s OR opened_at < clock_timestamp() - %(foreign)s * interval '1 s')
     AND 'affidavit lease ' || to_hex(owner) <> ALL (ARRAY(SELECT audit_sessions())))
    OR (owner = %(owner)s AND log_id <> ALL (%(living)s)
        AND opened_at < clock_timestamp() - %(forgotten)s * interval '1 s'))
    AND log_id <> ALL (%(forged)s) LIMIT %(most)s
FOR UPDATE SKIP LOCKED
"""
_FORGET = "DELETE FROM audit_open WHERE log_id = %s"
_DIED = "The process died while it worked on this request"
_LOST = f"{_DIED}, and entries of its spool are missing: it may have been answered"
_UNCONFIRMED = "The end of this request could not be recorded in time, so its client got 503 and no answer"
UNACKNOWLEDGED = {
    "outcome": "not_acknowledged", "success": False, "http_status": 503, "error_type": "audit", "error_message": _UNCONFIRMED,
}  # fmt: skip

log = logging.getLogger(__name__)


class LivenessLock:
    """The lease of this process: a connection of its own with a name of its own, opened again when it is lost."""

    def __init__(self, conninfo: str, owner: int) -> None:
        # TCP keepalives, so that a dead network is noticed within seconds and not within hours.
        self._conninfo = make_conninfo(
            conninfo, application_name=f"affidavit lease {owner:x}", connect_timeout=5, keepalives_idle=5,
            keepalives_interval=2, keepalives_count=3,
        )  # fmt: skip
        self.is_held = asyncio.Event()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(psycopg.Error):
                connecting = AsyncSession.connect(self._conninfo, autocommit=True)
                async with await connecting as alive:
                    self.is_held.set()
                    async for _ in alive.notifies():
                        """Nothing notifies us: the loop ends when the connection does."""
            if not self.is_held.is_set():
                await asyncio.sleep(LOCK_PAUSE_S)
            self.is_held.clear()


class Orphans:
    """Finds requests without a live process, and closes those that it finds twice."""

    def __init__(
        self, owner: int, spool: Spool | None, key: RowSigner, public_keys: Callable[[], Sequence[PublicKey]]
    ) -> None:
        self._owner = owner
        self._spool = spool
        self._key = key
        self._public_keys = public_keys
        self._forged: set[UUID] = set()
        self.seen: frozenset[UUID] = frozenset()

    async def close(self, connection: psycopg.AsyncConnection, living: Collection[UUID]) -> int:
        """Close the orphans that are found twice, so that a process can reconnect in between; returns their number."""
        closed = 0
        async with connection.transaction():
            orphans = await self._orphans(connection, living)
            twice = {log_id: found for log_id, found in orphans.items() if log_id in self.seen}
            keys = await asyncio.to_thread(
                self._signers, [row for row, is_signed in twice.values() if is_signed]
            )
            for log_id, (row, is_signed) in twice.items():
                closed += await _close(connection, log_id, row, keys[row["timestamp"]] if is_signed else None)
        self.seen = frozenset(orphans)
        return closed

    def _signers(self, rows: Sequence[Row]) -> dict[str, Signer]:
        """The keys of the rows' times, which began when another process ran."""
        times = {row["timestamp"]: datetime.fromisoformat(row["timestamp"]) for row in rows}
        if times:
            self._key.cover(min(times.values()), max(times.values()))
        return {text: self._key.at(moment) for text, moment in times.items()}

    async def _orphans(
        self, connection: psycopg.AsyncConnection, living: Collection[UUID]
    ) -> dict[UUID, tuple[Row, bool]]:
        values = {
            "owner": self._owner, "spool": self._spool and self._spool.identity, "living": list(living),
            "foreign": FOREIGN_S, "forgotten": FORGOTTEN_S, "forged": list(self._forged), "most": READ_MAX,
        }  # fmt: skip
        cursor = await connection.execute(_ABANDONED, values)
        found = [row for row in await cursor.fetchall() if not self._is_here(row[1])]
        orphans: dict[UUID, tuple[Row, bool]] = {}
        if found:
            lines = await (await connection.execute(DELEGATIONS)).fetchall()
            orphans = await asyncio.to_thread(self._ours, found, [line for (line,) in lines])
        self._report_forged({log_id for log_id, *_ in found} - orphans.keys())
        return orphans

    def _ours(
        self, found: Sequence[tuple[UUID, int, Any, bytes | None]], delegations: Sequence[str]
    ) -> dict[UUID, tuple[Row, bool]]:
        """Those that the engine signed; and those of a version that did not sign, whose rows are not signed either."""
        keys = KeyRing.of(self._public_keys()).with_delegations(delegations)
        ours = {}
        for log_id, owner, trail, signature in found:
            if not isinstance(trail, dict) or trail.get("log_id") != str(log_id):
                continue
            is_signed = is_open_signed(signature, trail, keys)
            if is_signed or (signature is None and trail.get("schema_version") in UNSIGNED_VERSIONS):
                ours[log_id] = (self._ended(trail, owner), is_signed)
        return ours

    def _ended(self, trail: Row, owner: int) -> Row:
        """The row of an orphan. One of ours was refused while this process lived: its client has the status that is recorded."""
        row = {name: value for name, value in trail.items() if value is not None} | {"success": False}
        if owner == self._owner and row["outcome"] == "open":
            return row | UNACKNOWLEDGED
        if row["outcome"] != "open":  # it counts requests that were answered
            ended = (
                "its end could not be recorded" if owner == self._owner else "the process died before its end"
            )
            return row | {"outcome": "abandoned", "error_message": f"{row.get('error_message', '')}; {ended}"}
        is_lost = self._spool is not None and has_lost_entries(self._spool.folder, owner)
        return row | {"outcome": "abandoned", "error_message": _LOST if is_lost else _DIED}

    def _report_forged(self, forged: set[UUID]) -> None:
        if forged and not self._forged:
            log.error(
                "%s open requests were not opened by the engine and stay open, the first is %s. Run `affidavit audit status`.",
                len(forged), min(forged),
            )  # fmt: skip
        self._forged |= forged

    def _is_here(self, owner: int) -> bool:
        return owner != self._owner and self._spool is not None and is_alive(self._spool.folder, owner)


async def _close(connection: psycopg.AsyncConnection, log_id: UUID, row: Row, key: Signer | None) -> int:
    try:
        entry = _entry_of(log_id, row, key)
        async with connection.transaction():
            await connection.execute(WRITE, arguments([entry]))
    except psycopg.errors.UniqueViolation:  # it has its row: only the open record was left
        await connection.execute(_FORGET, (log_id,))
    except (psycopg.DataError, psycopg.errors.CheckViolation, ValueError):
        """It must not block others. It stays open, as `audit status` shows, until its month exists or a person decides."""
    except psycopg.DatabaseError as failure:
        if not is_archived(failure):  # for a person to decide too
            raise
    else:
        return 1
    return 0


def _entry_of(log_id: UUID, row: Row, key: Signer | None) -> Entry:
    made = hashed(row, secrets.token_bytes(SALT_BYTES))
    return Entry.closed(log_id, signed(made, log_id, key) if key else made)
