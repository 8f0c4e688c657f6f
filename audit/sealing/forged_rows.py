"""Finds rows and open requests that the engine did not sign, and sets them aside.

Nobody ever seals them, so they would hold up their month's archive, and the erasure of whom they name, for ever. The table
`audit_set_aside` keeps what is not personal of them; the event of the log says why they left.
"""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import AsyncConnection

from audit.ledger.orphans import UNSIGNED_VERSIONS
from audit.proof.keys import PublicKey
from audit.proof.row_signature import is_of_unknown_key, is_open_signed, is_row_signed
from audit.sealing.log_tables import UnsealedRow, fetch

AT_ALL_TIMES = datetime(9999, 12, 31, tzinfo=UTC)

_UNSEALED = """
SELECT log_id, timestamp, leaf_hash, schema_version, signature FROM audit_unsealed_of(%s::text[], %s::uuid[], %s)
"""
_IS_SIGNED = "SELECT EXISTS (SELECT FROM audit_checkpoints WHERE note LIKE E'%%\\nsigned %%')"
_OPEN = "SELECT log_id, opened_at, trail, signature FROM audit_open"
_PUT_ASIDE = "SELECT audit_put_aside(%s::json, %s::uuid[], %s)"


async def rows_not_ours(connection: AsyncConnection, keys: Sequence[PublicKey]) -> list[UnsealedRow]:
    """All that none of these keys signed, for an operator who knows that these are all."""
    unsealed = await split_unsealed(connection, keys, None, (), AT_ALL_TIMES)
    return unsealed.forged + unsealed.unknown


class Unsealed(NamedTuple):
    """Unsealed rows, by what the sealer will do with them."""

    waiting: list[UnsealedRow]  # for the sealer, which will take them
    unknown: list[
        UnsealedRow
    ]  # signed by a key that is not known here: the sealer takes them once it is, or never
    forged: list[UnsealedRow]  # and those never


async def split_unsealed(
    connection: AsyncConnection,
    keys: Sequence[PublicKey],
    names: Sequence[str] | None,
    queries: Sequence[UUID],
    until: datetime,
) -> Unsealed:
    found = await fetch(connection, _UNSEALED, (None if names is None else list(names), list(queries), until))
    rows = [UnsealedRow(*row) for row in found]
    ((is_signed,),) = await fetch(connection, _IS_SIGNED) if rows else [(True,)]
    unsealed = Unsealed([], [], [])
    for row in rows:
        if is_of_unknown_key(row.signature, keys):
            unsealed.unknown.append(row)
        elif _is_forged(row, keys, from_now_on=is_signed):
            unsealed.forged.append(row)
        else:
            unsealed.waiting.append(row)
    return unsealed


async def forged_open(connection: AsyncConnection, keys: Sequence[PublicKey]) -> list[tuple[date, UUID]]:
    """The open requests that the engine did not open, each with its month."""
    return [
        (opened_at.astimezone(UTC).date().replace(day=1), log_id)
        for log_id, opened_at, trail, signature in await fetch(connection, _OPEN)
        if not _is_ours(log_id, trail, signature, keys)
    ]


async def put_aside(
    connection: AsyncConnection, rows: Sequence[UnsealedRow], opened: Sequence[UUID], event: UUID
) -> list[dict[str, Any]]:
    """Takes them out of the log, and returns them as they were. The caller commits."""
    named = json.dumps([{"log_id": str(row.log_id), "timestamp": row.timestamp.isoformat()} for row in rows])
    return [row for (row,) in await fetch(connection, _PUT_ASIDE, (named, list(opened), event))]


def _is_ours(log_id: UUID, trail: Any, signature: bytes | None, keys: Sequence[PublicKey]) -> bool:
    """As the next start of an engine decides which open requests it closes: see audit/ledger/orphans.py."""
    if not isinstance(trail, dict) or trail.get("log_id") != str(log_id):
        return False
    is_old = signature is None and trail.get("schema_version") in UNSIGNED_VERSIONS
    return is_old or is_open_signed(signature, trail, keys)


def _is_forged(row: UnsealedRow, keys: Sequence[PublicKey], *, from_now_on: bool) -> bool:
    """A row of a version that did not sign is none before the log's first tree of signed rows."""
    if row.signature is None and row.schema_version in UNSIGNED_VERSIONS and not from_now_on:
        return False
    return not is_row_signed(row.signature, str(row.log_id), row.leaf_hash, row.timestamp, keys)
