"""An archiver on a log of its own, and what a test may see of its months."""

from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg

from audit.archive.archiver import Archiver
from engine.admission.operator_events import OperatorEvents
from engine.storage.database import ARCHIVER, changing, reading
from engine.wiring import now
from tests.logs.sealed_log import SealedLog, quiet

NO_GRACE = timedelta()


def archiver_of(log: SealedLog, **given: Any) -> Archiver:
    """Its months are old enough, and are dropped as soon as they may be."""

    async def seal() -> bool:
        return not await log.seal()

    archiver = Archiver(
        connect=partial(changing, log.url, ARCHIVER),
        reading=partial(reading, log.url, ARCHIVER),
        vault=log.vault,
        key=log.key,
        public_keys=lambda: log.keys,
        seal=seal,
        event=OperatorEvents(log.open_ledger, now, uuid4).event,
        folder=log.folder / "archiving",
        warm=timedelta(days=365),
        grace=NO_GRACE,
        code_version="test",
        clock=now,
        progress=quiet,
        say=lambda _: None,
    )
    return replace(archiver, **given)


def steps(log: SealedLog, month: date) -> list[str]:
    with psycopg.connect(log.url) as connection:
        rows = connection.execute(
            "SELECT state FROM audit_archives WHERE month = %s ORDER BY step", (month,)
        ).fetchall()
    return [state for (state,) in rows]


def events(log: SealedLog) -> list[tuple[str, str, dict[str, Any]]]:
    with psycopg.connect(log.url) as connection:
        return connection.execute(
            "SELECT endpoint, outcome, details FROM audit_logs WHERE endpoint LIKE 'affidavit %' ORDER BY timestamp"
        ).fetchall()


def tables(log: SealedLog) -> set[str]:
    """The months that have a table, attached or not."""
    with psycopg.connect(log.url) as connection:
        rows = connection.execute(
            "SELECT relname FROM pg_class WHERE relname ~ '^audit_logs_\\d{4}_\\d{2}$' AND relkind = 'r'"
        ).fetchall()
    return {name for (name,) in rows}


def attached(log: SealedLog) -> set[str]:
    with psycopg.connect(log.url) as connection:
        rows = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'audit_logs'::regclass"
            " AND NOT inhdetachpending"
        ).fetchall()
    return {name for (name,) in rows}


def rows_of(log: SealedLog, month: date) -> list[dict[str, Any]]:
    """As the auditor sees them."""
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_auditor")
        return [
            row
            for (row,) in connection.execute(
                "SELECT to_jsonb(l) FROM audit_logs l WHERE date_trunc('month', timestamp AT TIME ZONE 'UTC') = %s"
                " ORDER BY log_id",
                (month,),
            )
        ]
