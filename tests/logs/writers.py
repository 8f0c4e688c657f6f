"""Logs and ledgers for tests: each with a database, a key, and a spool where one is named, of its own."""

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg_pool import AsyncConnectionPool

from audit.ledger.ledger import Ledger, SpoolSettings
from audit.proof.keys import SigningKey
from audit.proof.record import COLUMNS, Trail
from engine.storage.database import Database
from engine.wiring import now

KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
MEBIBYTE = 1024 * 1024


def ledger_on(
    pool: AsyncConnectionPool, folder: Path | None = None, *, bytes_max: int = MEBIBYTE, within_s: float = 5.0
) -> Ledger:
    return Ledger(
        pool, KEY, now, public_keys=lambda: [KEY.public], within_s=within_s,
        spooling=SpoolSettings(folder, bytes_max) if folder else None,
    )  # fmt: skip


def trail(**fields: Any) -> Trail:
    name = uuid4()
    given: dict[str, Any] = {"log_id": name, "query_id": name, "timestamp": now(), "endpoint": "test"}
    return Trail(**(given | fields))


def rebuilt(row: dict[str, Any]) -> Trail:
    return Trail(**{name: row[name] for name in COLUMNS})


def open_records(log: Database, *log_ids: UUID) -> int:
    with psycopg.connect(log.url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM audit_open WHERE log_id = ANY(%s)", (list(log_ids),)
        ).fetchone()
    assert row is not None
    return int(row[0])
