"""What PostgreSQL stores and gives back has the canonical text and the hash that it had before."""

import json
from typing import Any
from uuid import uuid4

import psycopg
from hypothesis import given
from hypothesis import strategies as st

from audit.ledger import partitions
from audit.proof.canonical import canonical_json
from audit.proof.record import COLUMNS, Row, Trail, bytes_of, leaf_hash, text_of
from engine.storage.database import Database
from engine.wiring import now
from tests.build import steady, values
from tests.logs.recorded import read_back, write


def test_canonical_form_survives_the_database(database: Database) -> None:
    """`jsonb` has an order of its own, and numbers without an exponent: 1e308 comes back as 309 digits."""
    with psycopg.connect(database.url) as connection:

        @steady
        @given(values)
        def survives(value: Any) -> None:
            for column in ("jsonb", "json"):
                written = canonical_json(json.loads(text_of({"a": value})))
                query = f"SELECT (%s::{column})::text"
                (read,) = connection.execute(query.encode(), (written.decode(),)).fetchone() or ("",)
                assert canonical_json(json.loads(read)) == written

        survives()


async def test_rows_read_back_from_the_database_prove_themselves(database: Database) -> None:
    """A value of each kind that hypothesis thinks of, through json_populate_recordset, the table and row_to_json."""
    async with database.pool("affidavit_engine") as pool:
        await partitions.make_months_ahead(pool, now().date())
    doubles = st.floats(allow_nan=False, allow_infinity=False)
    texts = st.text()
    with psycopg.connect(database.url) as connection:

        @steady
        @given(
            st.fixed_dictionaries(
                {
                    "user_query_text": texts,
                    "answer_text": st.none() | texts,
                    "confidence_score": doubles,
                    "best_score": st.none() | doubles,
                    "chunks_returned": st.none() | st.lists(values),
                    "filters": st.dictionaries(texts, values),
                    "success": st.none() | st.booleans(),
                    "top_k": st.integers(-(2**31), 2**31 - 1),
                    "instruction_like": st.none() | st.lists(texts),
                    "session_id": st.none() | st.uuids(),
                    "error_message": st.none() | texts,
                    "timestamp": st.integers(0, 999_999).map(lambda n: now().replace(microsecond=n)),
                }
            )
        )
        def proves_itself(fields: dict[str, Any]) -> None:
            asked = Trail(log_id=uuid4(), query_id=uuid4(), endpoint="test", **fields)
            written = write(connection, asked)
            found = read_back(connection, asked.log_id)
            assert bytes_of(found["leaf_hash"]) == leaf_hash(found)
            assert as_json(found) == as_json(written)

        proves_itself()
        connection.rollback()


def as_json(kept: Row) -> bytes:
    return canonical_json({name: kept[name] for name in COLUMNS if kept.get(name) is not None})
