"""`affidavit audit search`: the console's search at a terminal, over every tier, and a record of itself."""

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine.storage.database import Database
from tests.command_line import affidavit
from tests.logs.archiving import archiver_of
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, sealed_log


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    """January is archived."""
    async with sealed_log(database, tmp_path) as made:
        await archiver_of(made).archive(FEBRUARY)
        yield made


def search(log: SealedLog, *arguments: object) -> subprocess.CompletedProcess[str]:
    return affidavit("audit", "search", *arguments, data_dir=log.folder, DATABASE_URL=log.url)


def found(log: SealedLog, *arguments: object) -> list[Any]:
    said = search(log, *arguments, "--json")
    assert said.returncode in (0, 1), said.stderr
    return sorted(row["log_id"] for row in json.loads(said.stdout))


async def test_words_and_ids_find_records_of_every_tier(log: SealedLog) -> None:
    february, january = log.rows[FEBRUARY, 3], log.rows[JANUARY, 2]
    assert len(found(log, "IMU misst")) == 12
    assert found(log, "IMU zebra") == []
    receipt = json.dumps({"log_id": february["log_id"], "leaf_hash": february["leaf_hash"]})
    assert found(log, receipt) == [february["log_id"]]
    for text in (january["session_id"], january["leaf_hash"]):
        assert found(log, text) == [january["log_id"]], text
    assert len(found(log, "", "--client", "c", "--book", "b", "--outcome", "answered")) == 17
    assert found(log, "", "--client", "nobody' OR 'a'='a") == []


async def test_a_search_is_a_record_and_says_what_it_leaves_out(log: SealedLog) -> None:
    said = search(log, "IMU", "--from", "2025-01-01")
    assert "Words are not searched in archived months" in said.stderr
    with psycopg.connect(log.url) as inside:
        rows = inside.execute(
            "SELECT details FROM audit_logs WHERE endpoint = 'affidavit audit search'"
        ).fetchall()
    (access,) = [details["access"] for (details,) in rows]
    assert (access["filter"], access["records"]) == ("text “IMU”, from 2025-01-01", 12)
    assert access["columns"] == ["answer_text", "user_query_text"]


async def test_what_a_reader_wrote_does_not_steer_the_terminal(log: SealedLog) -> None:
    log.write(FEBRUARY, 12, user_query_text="steered \x1b[2J\u202e IMU")
    said = search(log, "steered")
    assert "\x1b" not in said.stdout
    assert "\\x1b[2J" in said.stdout


async def test_nothing_found_is_said_and_a_wrong_filter_is_refused(log: SealedLog) -> None:
    said = search(log, "zebra")
    assert (said.returncode, said.stdout.strip()) == (1, "No record fits.")
    assert search(log, "x" * 600).returncode == 2
