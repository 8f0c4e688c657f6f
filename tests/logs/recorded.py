"""Rows as the writer inserts them and as an auditor reads them, without the writer."""

import json
import secrets
from collections.abc import Iterable
from datetime import date
from typing import Any
from uuid import UUID

import psycopg

from audit.proof.keys import Signer
from audit.proof.record import SALT_BYTES, Row, Trail, hashed, row_of
from audit.proof.row_signature import signed

_READ = """
SELECT row_to_json(found) FROM (
    SELECT *, to_char(timestamp AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS timestamp_utc
    FROM audit_logs WHERE log_id = %s
) AS found
"""


def write(connection: psycopg.Connection, *trails: Trail, key: Signer | None = None) -> Row:
    """Insert them, each with a salt, its hash and, with a key, its signature; the last one as it was written."""
    made = [hashed(row_of(trail), secrets.token_bytes(SALT_BYTES)) for trail in trails]
    if key:
        made = [signed(each, trail.log_id, key) for each, trail in zip(made, trails, strict=True)]
    texts = [each.text for each in made]
    rows: list[Row] = [
        json.loads(text) | {"spooled": trail.spooled} for text, trail in zip(texts, trails, strict=True)
    ]
    connection.execute(
        "INSERT INTO audit_logs SELECT * FROM json_populate_recordset(NULL::audit_logs, %s::json)",
        (json.dumps(rows),),
    )
    return rows[-1]


def read_back(connection: psycopg.Connection, log_id: UUID) -> Row:
    (row,) = connection.execute(_READ, (log_id,)).fetchone() or ({},)
    found: Row = row | {"timestamp": row["timestamp_utc"]}
    return {name: value for name, value in found.items() if name != "timestamp_utc"}


def make_months(connection: psycopg.Connection, months: Iterable[date]) -> None:
    for month in months:
        connection.execute("SELECT audit_make_month(%s)", (month,))


def quotation(n: int, chunk_id: str, excerpt: str, **fields: Any) -> dict[str, Any]:
    return {
        "n": n, "chunk_id": chunk_id, "section": "Joints", "chapter": "Bodies", "filename": "02-bodies.md",
        "page": "12", "url": "/docs/bodies#joints", "excerpt": excerpt, "start": 5, "end": 5 + len(excerpt), "score": 0.83,
    } | fields  # fmt: skip
