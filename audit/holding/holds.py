"""Adds, releases and lists legal holds. What enforces them is in the database: `sql/0031_holds.sql`.

A change is committed within its event of the log: so a record that says `recorded` has its line, and a line without its
record was not made here.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.errors import HoldRefusedError, HoldUnavailableError
from audit.holding.hold import SALT_BYTES, Line, Scope, check_people, signed_line, subject_of
from audit.holding.tables import HOLDS, REQUESTS, SUBJECTS
from audit.proof.keys import RowSigner
from audit.proof.record import Trail

LOCK_WAIT_S = 30  # a hold waits for the erasure of a person that began before it

_CHANGE = "SELECT audit_change_hold(%s::json, %s::text[], %s)"
_COUNT = "SELECT audit_count_held(%s)"
_DELAYING = "SELECT audit_holds_delaying(%s)"

# An event of the log by its command and what it is about; durable when the block has ended.
HoldEvent = Callable[..., AbstractAsyncContextManager[Trail]]


@dataclass(frozen=True, slots=True)
class WaitingErasure:
    """A request for an erasure that waits for the end of holds; of none: it is carried out next."""

    request_id: UUID
    at: datetime
    basis: str
    user: str | None
    query_id: UUID | None
    holds: list[UUID] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold with all that is known of it; `user` as it was asked for, until the person is erased."""

    hold_id: UUID
    state: str  # active, released
    user: str | None
    query_id: UUID | None
    client_id: str | None
    since: datetime | None
    until: datetime | None
    added_at: datetime
    actor: str
    basis: str
    records: int
    released_at: datetime | None = None
    released_by: str | None = None
    approved_by: str | None = None
    release_basis: str | None = None


@dataclass(frozen=True, slots=True)
class ListedHolds:
    """Works in the auditor's role, on autocommit connections."""

    pool: AsyncConnectionPool

    async def all(self) -> list[Hold]:
        """Every hold, the oldest first."""
        names = {one: names for one, names, _ in await self._fetch(SUBJECTS)}
        lines = await self._lines(HOLDS)
        ends = {line["hold_id"]: line for line in lines if line["change"] == "released"}
        return [
            _hold(line, names, ends.get(line["hold_id"]), await self._count(line["hold_id"]))
            for line in lines
            if line["change"] == "added"
        ]

    async def waiting(self) -> list[WaitingErasure]:
        """The erasures that were asked for and not carried out yet."""
        lines = await self._lines(REQUESTS)
        done = {line["request_id"] for line in lines if line["change"] == "done"}
        names = {one: names for one, names, _ in await self._fetch(SUBJECTS)}
        return [
            await self._waiting(line, names.get(line["request_id"], []))
            for line in lines
            if line["request_id"] not in done
        ]

    async def has_names(self) -> bool:
        """Whether a list of them would name a reader."""
        return bool(await self._fetch(f"{SUBJECTS} LIMIT 1"))

    async def _waiting(self, line: Line, names: list[str]) -> WaitingErasure:
        held_by = [hold_id for (hold_id,) in await self._fetch(_DELAYING, (line["request_id"],))]
        user = max(names, default=None)  # of all spellings the one with its kind, in small letters
        return WaitingErasure(line["request_id"], line["at"], line["basis"], user, line["query_id"], held_by)

    async def _lines(self, statement: str) -> list[Line]:
        async with self._connected() as connection, connection.cursor(row_factory=dict_row) as cursor:
            return [*await (await cursor.execute(statement.encode())).fetchall()]

    async def _fetch(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        async with self._connected() as connection:
            return await (await connection.execute(statement.encode(), values)).fetchall()

    async def _count(self, hold_id: UUID) -> int:
        ((found,),) = await self._fetch(_COUNT, (hold_id,))
        return int(found)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """The driver's messages are not passed on: they may contain a name."""
        try:
            async with self.pool.connection() as connection:
                yield connection
        except psycopg.errors.UniqueViolation:
            raise HoldRefusedError("The hold is released already.") from None
        except psycopg.errors.NoDataFound:
            raise HoldRefusedError("There is no such hold: see `affidavit audit hold list`.") from None
        except psycopg.errors.LockNotAvailable:
            raise HoldUnavailableError(
                f"An erasure that began before has not ended within {LOCK_WAIT_S} s. No hold was changed: try again."
            ) from None
        except (psycopg.Error, PoolTimeout) as failure:
            raise HoldUnavailableError(
                f"The database is unavailable ({type(failure).__name__}). No hold was changed: try again."
            ) from None


@dataclass(frozen=True, slots=True)
class Holds(ListedHolds):
    """Works in the archiver's role."""

    key: RowSigner
    new_id: Callable[[], UUID]

    async def add(self, scope: Scope, actor: str, basis: str, event: HoldEvent) -> tuple[UUID, int]:
        """Hold what this covers, now and later, until the release. Returns its id, and how many records it covers now."""
        scope.check()
        check_people(actor, None, scope.names)
        hold_id, salt = self.new_id(), secrets.token_bytes(SALT_BYTES)
        subject = subject_of(scope.names, salt) if scope.names else None
        members = {"hold_id": hold_id, "change": "added", "actor": actor, "basis": basis, "subject": subject}
        given = (list(scope.names), salt) if scope.names else (None, None)
        await self._change("audit hold add", members | scope.criteria(), given, event)
        return hold_id, await self._count(hold_id)

    async def release(
        self, hold_id: UUID, actor: str, approved_by: str, basis: str, event: HoldEvent
    ) -> None:
        """Needs two people. `HoldRefusedError` if it is one, if there is no such hold, or if it was released before."""
        members = {
            "hold_id": hold_id, "change": "released", "actor": actor, "approved_by": approved_by, "basis": basis
        }  # fmt: skip
        await self._change("audit hold release", members, (None, None), event)

    async def _change(
        self,
        command: str,
        members: dict[str, Any],
        given: tuple[list[str] | None, bytes | None],
        event: HoldEvent,
    ) -> None:
        """A refused release leaves its record too."""
        about = {name: str(value) for name, value in members.items() if value is not None}
        async with event(command, hold=about) as trail:
            if members["change"] == "released":
                _check_release(members["actor"], members["approved_by"])
            line = signed_line("hold", self.key, at=trail.timestamp, event=trail.log_id, **members)
            async with self._connected() as connection, connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'".encode())
                await connection.execute(_CHANGE.encode(), (json.dumps(line), *given))
            trail.reason = f"hold {members['hold_id']}: {members['change']}"


def _check_release(actor: str, approved_by: str) -> None:
    try:
        check_people(actor, approved_by)
    except ValueError as wrong:
        raise HoldRefusedError(str(wrong)) from None


def _hold(line: Line, names: dict[UUID, list[str]], end: Line | None, records: int) -> Hold:
    whom = names.get(line["hold_id"], [])
    user = (whom[0] if whom else "erased") if line["subject"] else None
    released = (
        {
            "released_at": end["at"], "released_by": end["actor"], "approved_by": end["approved_by"],
            "release_basis": end["basis"],
        } if end else {}
    )  # fmt: skip
    return Hold(
        hold_id=line["hold_id"], state="released" if end else "active", user=user, query_id=line["query_id"],
        client_id=line["client_id"], since=line["since"], until=line["until"], added_at=line["at"],
        actor=line["actor"], basis=line["basis"], records=records, **released,
    )  # fmt: skip
