"""Rows that the engine did not sign hold up neither an erasure nor a month's archive."""

import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from audit.erasure.target import ErasureTarget, spellings
from audit.errors import ErasureTooEarlyError
from audit.proof.keys import SigningKey, public_file
from audit.proof.record import Row
from audit.proof.verdict import Verdict
from engine import wiring
from engine.storage.database import Database
from engine.wiring import now
from tests.logs.archiving import archiver_of, steps
from tests.logs.recorded import make_months, write
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, sealed_log, whole_trail

PERSON = ErasureTarget(spellings("user:7"))


@pytest.fixture
async def log(anyio_backend: str, database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        with psycopg.connect(made.url) as connection:
            make_months(connection, [now().date()])
        yield made


def forge(log: SealedLog, place: int = 400, **given: object) -> Row:
    """Inserted by a superuser, with a hash that fits, and without the engine's signature."""
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        return write(connection, whole_trail(JANUARY, place, end_user="user:7", **given))


def forge_open(log: SealedLog, known: object) -> str:
    with psycopg.connect(log.url) as connection:
        (log_id,) = connection.execute(
            "INSERT INTO audit_open (log_id, opened_at, owner, trail) VALUES (gen_random_uuid(), '2025-01-10', 1, %s)"
            " RETURNING log_id::text",
            (json.dumps(known),),
        ).fetchone() or ("",)
    return str(log_id)


def ask(log: SealedLog, statement: str, *values: object) -> list[tuple[object, ...]]:
    with psycopg.connect(log.url) as connection:
        return connection.execute(statement.encode(), values).fetchall()


# Seen red with no row taken for forged, as before: ErasureTooEarlyError, however often it was asked for.
@pytest.mark.parametrize("version", [3, 4])
async def test_a_forged_row_that_names_a_person_does_not_keep_them_from_being_forgotten(
    log: SealedLog, version: int
) -> None:
    log.write(FEBRUARY, 20, end_user="user:7")
    assert await log.seal() == {}
    forged = forge(log, schema_version=version)
    async with log.erasing(within_s=0.5) as (eraser, event):
        done = await eraser.erase(PERSON, "a wish", event)
    assert done.records == 2
    (words,) = done.left
    assert str(forged["log_id"]) in words and "did not sign" in words
    assert ask(log, "SELECT count(*) FROM audit_logs WHERE end_user = 'user:7'") == [(0,)]
    ((kept,),) = ask(log, "SELECT kept FROM audit_set_aside WHERE log_id = %s", forged["log_id"])
    assert isinstance(kept, dict) and kept["leaf_hash"] == forged["leaf_hash"]
    assert not {"end_user", "user_query_text", "answer_text", "salt"} & kept.keys()
    assert log.inspect().findings == []


# Seen red with a row of an unknown key taken for forged: where the new public key arrived late, an erasure took an answer that the
# engine had given out of the log, and the verdict was TAMPERED from then on.
async def test_an_erasure_sets_nothing_aside_that_an_engine_with_a_newer_key_may_have_signed(
    log: SealedLog, tmp_path: Path
) -> None:
    newer = SigningKey.create(tmp_path / "newer.key")
    with psycopg.connect(log.url) as connection:
        row = write(connection, whole_trail(FEBRUARY, 20, end_user="user:7"), key=newer)
    async with log.erasing(within_s=0.2) as (eraser, event):
        with pytest.raises(ErasureTooEarlyError, match=r"a key that the \.pub here lacks"):
            await eraser.erase(PERSON, "a wish", event)
        ended = await eraser.end_retention(now(), "its time is over", event, lambda *_: None)
    assert str(row["log_id"]) not in str(ended.left)
    assert ask(log, "SELECT count(*) FROM audit_logs WHERE end_user = 'user:7'") == [(1,)]
    with public_file(log.folder / "signing.key").open("a") as known:
        known.write(f"{newer.public}\n")
    assert await log.seal() == {}
    assert (await log.erase(PERSON)).records == 1
    assert log.inspect().findings == []


# Seen red with the rows printed after the commit: on a full disk the evidence was gone.
async def test_nothing_is_set_aside_of_which_the_operator_gets_no_copy(log: SealedLog) -> None:
    forged = forge(log)

    def fail(rows: list[Row]) -> None:
        assert [row["log_id"] for row in rows] == [forged["log_id"]]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        await wiring.set_aside(log.database, "ticket 4711", fail)
    assert ask(log, "SELECT count(*) FROM audit_logs WHERE log_id = %s", forged["log_id"]) == [(1,)]
    assert ask(log, "SELECT count(*) FROM audit_set_aside") == [(0,)]
    assert ask(log, "SELECT outcome FROM audit_logs WHERE endpoint = 'affidavit audit set-aside'") == [
        ("failed",)
    ]


# Seen red with every unsealed row taken for forged.
async def test_a_row_of_the_engines_that_waits_for_its_seal_is_not_set_aside(log: SealedLog) -> None:
    forge(log)
    log.write(FEBRUARY, 21, end_user="user:7")
    assert len(await wiring.set_aside(log.database, "ticket 4711")) == 1
    assert await log.seal() == {}
    assert ask(log, "SELECT count(*) FROM audit_logs WHERE end_user = 'user:7'") == [(1,)]


# Seen red with no row taken for forged, as before: the month was never archived.
async def test_a_months_archive_names_its_forged_rows_and_goes_on_once_they_are_set_aside(
    log: SealedLog,
) -> None:
    forged = forge(log)
    known = {"end_user": "user:7", "user_query_text": "who?", "schema_version": 4}
    opened = {forge_open(log, known), forge_open(log, [1])}
    (january, _) = await archiver_of(log).archive(FEBRUARY.replace(month=3))
    assert not january.is_well
    assert str(forged["log_id"]) in january.words and "affidavit audit set-aside" in january.words
    done = await wiring.set_aside(log.database, "ticket 4711")
    assert {row["log_id"] for row in done} == {forged["log_id"], *opened}
    assert done[0]["user_query_text"]  # the operator's copy
    assert ask(log, "SELECT count(*) FROM audit_open") == [(0,)]
    await archiver_of(log).archive(FEBRUARY.replace(month=3))
    assert steps(log, JANUARY)[-1] == "dropped"


# Seen red with the names of personal columns taken out of whatever it is: "cannot delete from scalar", for every forged row.
@pytest.mark.parametrize("known", ["Who is Jane Doe?", 7, None, ["Who is Jane Doe?"]])
async def test_an_open_request_that_is_no_object_is_set_aside_and_nothing_of_it_is_kept(
    log: SealedLog, known: object
) -> None:
    opened = forge_open(log, known)
    (taken,) = await wiring.set_aside(log.database, "ticket 4711")
    assert (taken["log_id"], taken["trail"]) == (opened, known)
    assert ask(log, "SELECT kept -> 'trail' FROM audit_set_aside") == [(None,)]


# Seen red the same way.
async def test_a_row_that_came_into_a_frozen_month_is_set_aside_too(log: SealedLog) -> None:
    await archiver_of(log, grace=wiring.now() - now().replace(year=2020)).archive(FEBRUARY)
    assert steps(log, JANUARY)[-1] == "detached"
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            'INSERT INTO audit_logs_2025_01 SELECT (json_populate_record(l, \'{"log_id": "00000000-0000-0000-0000-000000000007",'
            ' "signature": null}\')).* FROM audit_logs_2025_01 l LIMIT 1'
        )
    (january,) = await archiver_of(log).archive(FEBRUARY)
    assert not january.is_well and "affidavit audit set-aside" in january.words
    assert len(await wiring.set_aside(log.database, "ticket 4711")) == 1
    (january,) = await archiver_of(log).archive(FEBRUARY)
    assert january.is_well and steps(log, JANUARY)[-1] == "dropped"


# Seen red without `_check_set_aside`.
async def test_a_row_that_the_engine_signed_is_not_set_aside_unnoticed(log: SealedLog) -> None:
    row = log.rows[FEBRUARY, 3]
    log.attack(
        f"INSERT INTO audit_set_aside SELECT log_id, timestamp, to_jsonb(l), now(), log_id FROM audit_logs l WHERE log_id = '{row['log_id']}'"
    )
    assert [(one.verdict, one.log_id) for one in log.inspect().findings] == [
        (Verdict.TAMPERED, row["log_id"])
    ]


# Seen red with a trigger that does not look for a leaf.
@pytest.mark.parametrize("role", ["affidavit_engine", "affidavit_sealer", "affidavit_auditor"])
async def test_nobody_but_the_archiver_sets_aside_and_never_a_sealed_row(log: SealedLog, role: str) -> None:
    row = log.rows[FEBRUARY, 3]
    named = json.dumps([{"log_id": row["log_id"], "timestamp": row["timestamp"]}])
    call = "SELECT audit_put_aside(%s::json, '{}', gen_random_uuid())"
    for who in (role, "affidavit_archiver"):
        with psycopg.connect(log.url) as connection:
            connection.execute(f"SET ROLE {who}".encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(call, (named,))
