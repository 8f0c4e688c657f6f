"""No word of an erased record stays in the search index of its month, in its statistics, or where it waits to be entered."""

from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

import psycopg
import pytest

from audit.definitions.comparison import differences
from audit.erasure.target import ErasureTarget
from audit.search.word_index import build_missing
from engine.storage.database import AUDITOR, Database, reading
from engine.wiring import shipped_definitions
from tests.logs.archiving import archiver_of
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log

CANARY = "zyxwvcanary"
INDEX = "audit_search_2025_02"


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        made.write(
            FEBRUARY, 12, user_query_text=f"Who is {CANARY}?", answer_text=CANARY, end_user="user:canary"
        )
        assert await made.seal() == {}
        await build(made)
        yield made


async def build(log: SealedLog) -> list[date]:
    async with await psycopg.AsyncConnection.connect(log.url, autocommit=True) as owner:
        await owner.execute("SET ROLE affidavit_owner")
        return await build_missing(owner, date(2025, 4, 1))


def bytes_of_index(log: SealedLog) -> bytes:
    with psycopg.connect(log.url, autocommit=True) as inside:
        inside.execute("CHECKPOINT")
        found = inside.execute(
            "SELECT pg_read_binary_file(pg_relation_filepath(%s::regclass))", (INDEX,)
        ).fetchone()
    assert found
    return bytes(found[0])


def statistics(log: SealedLog) -> str:
    with psycopg.connect(log.url) as inside:
        return str(inside.execute("SELECT * FROM pg_stats WHERE schemaname = 'public'").fetchall())


async def test_an_erased_word_is_not_in_the_index_any_more(log: SealedLog) -> None:
    # Seen red: without the rebuilding of the index after VACUUM, its key outlives the record.
    assert CANARY.encode() in bytes_of_index(log)
    async with log.erasing() as (eraser, event):
        await eraser.erase(ErasureTarget(("user:canary",)), "a wish", event)
        assert "audit_logs_2025_02" in await eraser.vacuum()
    assert CANARY.encode() not in bytes_of_index(log)
    assert CANARY not in statistics(log)
    assert await build(log) == []


async def test_the_index_has_no_statistics_of_words(log: SealedLog) -> None:
    with psycopg.connect(log.url, autocommit=True) as inside:
        inside.execute("ANALYZE")
        found = inside.execute(
            "SELECT count(*) FROM pg_statistic WHERE starelid = %s::regclass", (INDEX,)
        ).fetchone()
    assert found == (0,)


async def test_a_month_with_an_index_is_as_it_was_shipped_and_is_archived_and_restored(
    log: SealedLog,
) -> None:
    with reading(log.url, AUDITOR) as connection:
        assert differences(connection, shipped_definitions()) == []
    assert log.inspect().verdict == "VALID"
    archiver = archiver_of(log)
    done = await archiver.archive(date(2025, 3, 1))
    assert [outcome.state for outcome in done] == ["dropped", "dropped"]
    assert await build(log) == []
    await archiver.restore(FEBRUARY)
    assert await build(log) == [FEBRUARY]
