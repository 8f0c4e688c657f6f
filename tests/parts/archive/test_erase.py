"""Who is forgotten is found nowhere any more, and everything that was proven stays proven."""

import asyncio
import base64
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pyarrow as pa
import pytest
from psycopg import errors, sql

from audit import auditor
from audit.archive.archiver import Archiver
from audit.archive.box import open_box
from audit.erasure.target import ErasureTarget, check_basis, spellings
from audit.errors import ErasureTooEarlyError, ErasureUnavailableError, NothingToEraseError
from audit.ledger.entry import Entry
from audit.ledger.spool import ASIDE_FILE, Spool, line_of
from audit.proof.canonical import canonical_text
from audit.proof.record import PERSONAL, Trail, commitments, hashed, row_of
from audit.proof.row_signature import is_open_signed, signed
from audit.proof.verdict import Verdict
from engine import wiring
from engine.admission.end_user import visitor
from engine.house import House
from engine.storage.database import Database
from engine.wiring import now
from tests.command_line import affidavit
from tests.conftest import CAMPAIGN_ROUNDS, ROOT, Records, campaign_only
from tests.in_process import application
from tests.logs.archiving import archiver_of
from tests.logs.recorded import make_months, write
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, places, sealed_log, whole_trail

CANARY = "canary-8c1d"
READER = "9a3c7f10-2b4d-4e6f-8a9b-0c1d2e3f4a5b"
NAMED = f"user:{READER}"
ERASED_LEAVES = (2, 7)  # of February: the reader's


def personal(mark: str) -> dict[str, Any]:
    """Each personal column with a word of its own that is looked for afterwards."""
    texts = {
        name: f"{mark} {name}"
        for name in PERSONAL - {"chunks_returned", "citations", "filters", "details", "end_user"}
    }
    return texts | {
        "chunks_returned": [{"chunk_id": f"{mark} chunk", "cosine": 0.1 + 0.2}], "filters": {"chapter": f"{mark} filter"},
        "details": {"sql": f"{mark} detail"},
        "citations": [{"n": 1, "excerpt": f"{mark} excerpt", "start": 0, "end": 10}], "end_user": NAMED,
    }  # fmt: skip


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    """Two of February's records are the reader's."""
    async with sealed_log(database, tmp_path_factory.mktemp("erased")) as made:
        await add_theirs(made)
        made.keep()
        yield made


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    yield whole
    whole.restore()


@pytest.fixture
async def leaving(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    """The same, for months that leave."""
    async with sealed_log(database, tmp_path) as made:
        await add_theirs(made)
        yield made


async def add_theirs(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        make_months(connection, [now().date()])
        for place in ERASED_LEAVES:
            trail = whole_trail(FEBRUARY, 100 + place, **personal(CANARY))
            log.rows[FEBRUARY, 100 + place] = write(connection, trail, key=log.key)
    assert await log.seal() == {}


def theirs(log: SealedLog) -> list[dict[str, Any]]:
    return [log.rows[FEBRUARY, 100 + place] for place in ERASED_LEAVES]


def ask(log: SealedLog, query: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(log.url) as connection:
        return connection.execute(query.encode(), values).fetchall()


def everywhere(log: SealedLog) -> Iterator[tuple[str, str]]:
    """Every row of every table of the database, catalogues and samples included, as text; and every file of the log."""
    with psycopg.connect(log.url, autocommit=True) as connection:
        connection.execute("SET bytea_output = escape")
        tables = connection.execute(
            "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE relkind IN ('r', 'm') AND nspname NOT IN ('pg_toast', 'before')"  # what each test is put back from
        ).fetchall()
        for (table,) in tables:
            for (text,) in connection.execute(f"SELECT t::text FROM ONLY {table} t".encode()):
                yield table, text
    for path in log.folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes().decode(errors="replace")


def found(log: SealedLog, *marks: str) -> set[str]:
    return {place for place, text in everywhere(log) if any(mark in text for mark in marks)}


# Seen red with `end_user` left out of the columns that are emptied, and with no ANALYZE: samples of the texts stay in
# pg_statistic.
async def test_g10_who_is_forgotten_is_found_nowhere_any_more(log: SealedLog) -> None:
    with psycopg.connect(log.url, autocommit=True) as connection:
        connection.execute("ANALYZE audit_logs, audit_logs_2025_02")
    assert found(log, CANARY, READER) == {"audit_logs_2025_02", "pg_statistic"}
    async with log.erasing() as (eraser, event):
        done = await eraser.erase(ErasureTarget(spellings(READER)), "GDPR Art. 17, ticket 4711", event)
        await eraser.vacuum()
    assert (done.records, done.left) == (2, [])
    assert found(log, CANARY, READER) == set()


async def test_g10_every_older_proof_and_the_log_stay_good(log: SealedLog) -> None:
    neighbour = log.rows[FEBRUARY, 3]
    before = {row["log_id"]: await log.prove(row) for row in (*theirs(log), neighbour)}
    await log.erase(ErasureTarget(spellings(NAMED)))
    for proof in before.values():
        assert auditor.check(proof, log.keys).verdict is Verdict.VALID
    report = log.inspect()
    assert (report.verdict, report.counted["records were erased, and are proven"]) == (Verdict.VALID, 2)
    for row in theirs(log):
        proof = await log.prove(row)
        assert auditor.check(proof, log.keys).verdict is Verdict.ERASED
        assert CANARY.encode() not in proof
    assert await log.prove(neighbour) == before[neighbour["log_id"]]
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID


async def test_what_was_done_stands_in_the_log_without_whom(log: SealedLog) -> None:
    done = await log.erase(ErasureTarget(spellings(NAMED)), "ticket 4711")
    ((log_id, outcome, reason, text),) = ask(
        log,
        "SELECT log_id, outcome, reason, l::text FROM audit_logs l WHERE endpoint = 'affidavit audit erase'",
    )
    assert (outcome, reason) == ("recorded", f"erasure {done.erasure_id}: 2 records")
    lines = ask(log, "SELECT erasure_id, event, basis, e::text FROM audit_erasures e")
    assert [line[:3] for line in lines] == [(done.erasure_id, log_id, "ticket 4711")] * 2
    assert READER not in text + str(lines)


@pytest.mark.parametrize(
    "recorded",
    [
        NAMED,
        READER,
        NAMED.upper().replace("USER", "user"),
        UUID(READER).hex,
        f"anon:{READER}",
        f"user:{READER.upper()}",
    ],
)
def test_a_reader_is_found_however_they_were_spelled(recorded: str) -> None:
    assert recorded in spellings(READER)
    assert recorded in spellings(NAMED) or recorded.startswith("anon:")


def test_an_address_is_found_however_it_was_spelled() -> None:
    for recorded in ("anon:2001:db8::1", "2001:db8::1", "anon:2001:0db8:0000:0000:0000:0000:0000:0001"):
        assert recorded in spellings("anon:2001:DB8::1")
    assert spellings("anon:198.51.100.7") == ("198.51.100.7", "anon:198.51.100.7")


# Seen red with RESET ROLE: the connection went back to the pool as its login, here a superuser.
async def test_after_a_vacuum_an_eraser_has_no_more_rights_than_before(log: SealedLog) -> None:
    async with log.erasing() as (eraser, _):
        await eraser.vacuum()
        async with eraser.pool.connection() as first, eraser.pool.connection() as second:
            for connection in (first, second):
                found = await (await connection.execute("SELECT current_user")).fetchone()
                assert found == ("affidavit_archiver",)


# Seen red without the network: an erasure of a visitor's IPv6 address found nothing of theirs, and said so with no word.
@pytest.mark.parametrize("address", ["2001:db8:1:2:3:4:5:6", "2001:DB8:1:2::", "::1"])
def test_a_visitor_is_found_by_their_address_although_a_network_of_ipv6_is_one_reader(address: str) -> None:
    assert visitor(address).name in spellings(f"anon:{address}")


@pytest.mark.parametrize("nobody", ["", " ", "user:", "anon:"])
def test_nobody_cannot_be_forgotten(nobody: str) -> None:
    with pytest.raises(ValueError, match="Name a reader"):
        spellings(nobody)


@pytest.mark.parametrize(
    "basis", ["", "  ", f"wish of {READER}", f"Wish of {READER.upper()}", "mail of jane@example.org"]
)
def test_a_basis_that_names_the_person_is_refused(basis: str) -> None:
    with pytest.raises(ValueError, match="basis"):
        check_basis(basis, ErasureTarget(spellings(READER)))
    check_basis("GDPR Art. 17, ticket 4711", ErasureTarget(spellings(READER)))


async def test_one_query_is_forgotten_and_the_second_time_it_says_so(log: SealedLog) -> None:
    first, second = theirs(log)
    target = ErasureTarget(query_id=UUID(first["query_id"]))
    done = await log.erase(target)
    again = await log.erase(target)
    assert (done.records, done.already) == (1, 0)
    assert (again.records, again.already, again.is_empty) == (0, 1, True)
    assert ask(log, "SELECT log_id::text FROM audit_erasures") == [(first["log_id"],)]
    assert ask(log, "SELECT count(*) FROM audit_logs WHERE endpoint = 'affidavit audit erase'") == [(1,)]
    with pytest.raises(NothingToEraseError):
        await log.erase(ErasureTarget(query_id=uuid4()))
    assert await log.prove(second)


async def test_the_views_show_what_is_left(log: SealedLog) -> None:
    await log.erase(ErasureTarget(spellings(NAMED)))
    ids = [row["query_id"] for row in theirs(log)]
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_auditor")
        rows = connection.execute(
            "SELECT user_query_text, end_user, answer_text, erased_at IS NOT NULL FROM audit_questions"
            " WHERE query_id = ANY (%s::uuid[])", (ids,)
        ).fetchall()  # fmt: skip
        cited = connection.execute(
            "SELECT count(*) FROM audit_citations WHERE query_id = ANY (%s::uuid[])", (ids,)
        ).fetchone()
    assert rows == [(None, None, None, True)] * 2
    assert cited == (0,)


def test_what_is_personal_is_the_same_in_the_database(database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        (columns,) = connection.execute("SELECT audit_personal_columns()").fetchone() or ()
    assert set(columns) == PERSONAL


# --- who may


CHANGES = {
    "another column too": "reason = 'x', erased_at = e.erased_at, salt = NULL, {emptied}",
    "not all of it": "erased_at = e.erased_at, salt = NULL",
    "no erasure": "salt = NULL, {emptied}",
    "another time": "erased_at = e.erased_at + interval '1 s', salt = NULL, {emptied}",
    "the hash": "leaf_hash = '', erased_at = e.erased_at, salt = NULL, {emptied}",
}


# Seen red with a trigger that lets the owner change whatever there is an erasure of.
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_not_even_the_owner_changes_more_than_an_erasure_may(log: SealedLog, change: str) -> None:
    """Also where a line of an erasure stands ready."""
    emptied = ", ".join(f"{name} = NULL" for name in PERSONAL)
    target = log.log_id(FEBRUARY, 3)
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_owner")
        connection.execute(
            "INSERT INTO audit_erasures VALUES (gen_random_uuid(), %s, NULL, '2025-02-01', %s, now(), 'b', gen_random_uuid(), '', '')",
            (target, json.dumps(commitments(log.rows[FEBRUARY, 3]))),
        )
        with pytest.raises(errors.InsufficientPrivilege, match="insert-only: UPDATE is refused"):
            connection.execute(
                f"UPDATE audit_logs l SET {change.format(emptied=emptied)} FROM audit_erasures e"
                f" WHERE e.log_id = l.log_id AND l.log_id = '{target}'".encode()
            )


@pytest.mark.parametrize("role", ["postgres", "affidavit_engine", "affidavit_auditor", "affidavit_sealer"])
async def test_nobody_else_erases(log: SealedLog, role: str) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute(f"SET ROLE {role}".encode())
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("UPDATE audit_logs SET end_user = NULL, erased_at = now()")


async def test_a_line_of_an_erasure_without_all_that_stands_for_the_record_is_refused(log: SealedLog) -> None:
    row = log.rows[FEBRUARY, 3]
    line = {
        "erasure_id": str(uuid4()), "log_id": row["log_id"], "query_id": row["query_id"], "timestamp": row["timestamp"],
        "month": "2025-02-01", "erased_at": now().isoformat(), "basis": "b", "event": str(uuid4()), "key_id": "",
        "signature": "", "commitments": {"end_user": "0" * 64},
    }  # fmt: skip
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_archiver")
        with pytest.raises(errors.InsufficientPrivilege, match="insert-only"):
            connection.execute("SELECT audit_erase(%s::json)", (json.dumps([line]),))


# --- what is not as it should be


async def test_what_is_not_sealed_is_not_erased(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        write(connection, whole_trail(FEBRUARY, 200, **personal(CANARY)), key=log.key)
    async with log.erasing(within_s=0.5) as (eraser, event):
        with pytest.raises(
            ErasureTooEarlyError, match="1 of the records are not sealed yet, so nothing was erased"
        ):
            await eraser.erase(ErasureTarget(spellings(NAMED)), "a wish", event)
    assert ask(log, "SELECT count(*) FROM audit_erasures") == [(0,)]


async def test_a_record_that_is_sealed_while_it_is_waited_for_is_erased(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        write(connection, whole_trail(FEBRUARY, 200, **personal(CANARY)), key=log.key)
    async with log.erasing(within_s=20) as (eraser, event):
        erasing = asyncio.create_task(eraser.erase(ErasureTarget(spellings(NAMED)), "a wish", event))
        assert await log.seal() == {}
        assert (await erasing).records == 3
    assert found(log, CANARY) == set()


async def test_a_record_that_was_tampered_with_stays_as_evidence(log: SealedLog) -> None:
    first, _ = theirs(log)
    log.attack(f"UPDATE audit_logs SET answer_text = 'else' WHERE log_id = '{first['log_id']}'")
    done = await log.erase(ErasureTarget(spellings(NAMED)))
    assert done.records == 1
    (words,) = done.left
    assert first["log_id"] in words and "evidence" in words
    assert {place[0] for place in places(log.inspect())} == {"TAMPERED"}


# --- at the same time


async def test_two_at_once_erase_once(log: SealedLog) -> None:
    async with log.erasing() as (one, event), log.erasing() as (other, of_other):
        target = ErasureTarget(spellings(NAMED))
        done = await asyncio.gather(one.erase(target, "a", event), other.erase(target, "b", of_other))
    assert sum(each.records for each in done) == 2
    assert ask(log, "SELECT count(*) FROM audit_erasures") == [(2,)]
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID


async def test_what_is_written_meanwhile_is_neither_lost_nor_half_erased(log: SealedLog) -> None:
    """The reader goes on asking, and the sealer goes on sealing; the last erasure finds all that was asked before it."""
    stop = asyncio.Event()

    async def go_on() -> int:
        count = 0
        while not stop.is_set():
            with psycopg.connect(log.url) as connection:
                write(connection, whole_trail(FEBRUARY, 300 + count, **personal(CANARY)), key=log.key)
            assert await log.seal() == {}
            count += 1
        return count

    going_on = asyncio.create_task(go_on())
    erased = 0
    for _ in range(4):
        erased += (await log.erase(ErasureTarget(spellings(NAMED)))).records
    stop.set()
    written = await going_on
    erased += (await log.erase(ErasureTarget(spellings(NAMED)))).records
    assert erased == written + 2
    assert found(log, CANARY) <= {"pg_statistic"}
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID


async def test_the_archive_makes_no_key_of_a_record_that_is_being_erased(log: SealedLog) -> None:
    """Seen red with an erasure that takes no lock."""
    with psycopg.connect(log.url) as making:
        making.execute("SELECT audit_lock('erasure')")
        async with log.erasing() as (eraser, event):
            erasing = asyncio.create_task(eraser.erase(ErasureTarget(spellings(NAMED)), "a", event))
            await until(
                lambda: bool(
                    ask(log, "SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted")
                )
            )
            making.execute(
                "INSERT INTO audit_row_keys (log_id, query_id, month, key)"
                " SELECT log_id, query_id, '2025-02-01', sha256(salt) FROM audit_logs WHERE end_user IS NOT NULL"
                " AND timestamp < '2025-03-01' AND timestamp >= '2025-02-01'"
            )
            making.commit()
            assert (await erasing).records == 2
    ids = [row["log_id"] for row in theirs(log)]
    assert ask(log, "SELECT count(*) FROM audit_row_keys WHERE log_id = ANY (%s::uuid[])", ids) == [(0,)]
    assert ask(log, "SELECT count(*) > 0 FROM audit_row_keys") == [(True,)]


async def until(is_so: Any) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110  nobody tells us
            await asyncio.sleep(0.02)


class KilledError(BaseException):
    """The process is no more."""


# At each statement to the database, and before and after each row of the event.
@pytest.mark.parametrize("at", [campaign_only(at) if at % 6 else at for at in range(24)])
async def test_a_process_that_dies_anywhere_leaves_all_or_nothing_and_the_next_run_ends_it(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    steps = 0
    execute = psycopg.AsyncConnection.execute

    async def dying(connection: Any, *given: Any, **named: Any) -> Any:
        nonlocal steps
        if isinstance(given[0], sql.Composed):  # a session that begins, in a task of the pool
            return await execute(connection, *given, **named)
        steps += 1
        if steps == at:
            await connection.close()
            raise KilledError
        return await execute(connection, *given, **named)

    target = ErasureTarget(spellings(NAMED))
    async with log.erasing() as (eraser, event):
        monkeypatch.setattr(psycopg.AsyncConnection, "execute", dying)
        with suppress(KilledError, ErasureUnavailableError, Exception):
            await eraser.erase(target, "a", event)
        monkeypatch.undo()
    ((erased, half),) = ask(
        log, "SELECT count(*) FILTER (WHERE erased_at IS NOT NULL), count(*) FILTER (WHERE (erased_at IS NULL) <> (salt IS NOT NULL))"
        " FROM audit_logs"
    )  # fmt: skip
    assert (erased in {0, 1, 2}, half) == (True, 0)
    assert ask(log, "SELECT count(*) FROM audit_erasures") == [(erased,)]
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID
    done = await log.erase(target)
    assert erased + done.records == 2
    assert found(log, CANARY) <= {"pg_statistic"}


# `audit erase`, in a process that the operating system kills at its n-th statement since it began to erase.
KILLED = """
import os, signal, sys
import psycopg
from engine.cli.main import main
at, begun = int(sys.argv.pop(1)), False
execute = psycopg.AsyncConnection.execute

async def dying(connection, query, *given, **named):
    global at, begun
    begun = begun or "audit_open_to_empty" in str(query)
    at -= begun
    if not at:
        os.kill(os.getpid(), signal.SIGKILL)
    return await execute(connection, query, *given, **named)

psycopg.AsyncConnection.execute = dying
main()
"""


# Seen red with an erasure that is committed before the record of it is written.
@pytest.mark.parametrize("at", range(4, 11, 1 if CAMPAIGN_ROUNDS else 2))
@pytest.mark.campaign
async def test_g10_killed_in_the_middle_nothing_is_half_erased_and_the_next_run_ends_it(
    log: SealedLog, at: int
) -> None:
    arguments = ("audit", "erase", "--user", READER, "--basis", "ticket 4711", "--data-dir", str(log.folder))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(at), *arguments, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "DATABASE_URL": log.url},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await process.wait() == -signal.SIGKILL
    ((erased,),) = ask(log, "SELECT count(*) FROM audit_logs WHERE erased_at IS NOT NULL")
    assert ask(log, "SELECT count(*) FROM audit_erasures") == [(erased,)]
    assert ask(log, "SELECT count(*) FROM audit_logs WHERE (erased_at IS NULL) <> (salt IS NOT NULL)") == [
        (0,)
    ]
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID
    assert erased_by(*arguments[2:6], log=log)["records"] == 2 - erased
    assert found(log, CANARY, READER) == set()
    assert log.inspect().verdict is Verdict.VALID


# --- beside the log


async def conversation(log: SealedLog, user_id: UUID | None, *query_ids: str) -> UUID:
    """A session with a turn for each query."""
    with psycopg.connect(log.url) as connection:
        (session_id,) = connection.execute(
            "INSERT INTO chat_sessions (client_id, user_id, session_token) VALUES ('site', %s, %s) RETURNING id",
            (user_id, uuid4().hex),
        ).fetchone() or (uuid4(),)
        for query_id in query_ids:
            for role in ("user", "assistant"):
                (message_id,) = connection.execute(
                    "INSERT INTO chat_messages (session_id, query_id, book_id, role, content) VALUES (%s, %s, 'b', %s, %s)"
                    " RETURNING id",
                    (session_id, query_id, role, f"{CANARY} said"),
                ).fetchone() or (None,)
            connection.execute(
                "INSERT INTO source_citations (message_id, chapter_id, chapter_title, relevance_score, excerpt, position)"
                " VALUES (%s, 'c', 't', 1, %s, 1)",
                (message_id, f"{CANARY} quoted"),
            )
    found: UUID = session_id
    return found


# Seen red with sessions found by `user_id` alone.
@pytest.mark.parametrize("user_id", [UUID(READER), None], ids=["theirs by name", "theirs by a token"])
async def test_conversations_go_and_the_records_of_their_turns(log: SealedLog, user_id: UUID | None) -> None:
    """Also of a turn that named nobody."""
    unnamed = log.rows[FEBRUARY, 3]
    await conversation(log, user_id, theirs(log)[0]["query_id"], unnamed["query_id"])
    other = await conversation(log, uuid4(), log.rows[FEBRUARY, 4]["query_id"])
    done = await log.erase(ErasureTarget(spellings(NAMED)))
    assert (done.records, done.conversations) == (3, 1)
    assert ask(log, "SELECT id FROM chat_sessions") == [(other,)]
    assert ask(log, "SELECT end_user FROM audit_logs WHERE log_id = %s", unnamed["log_id"]) == [(None,)]


async def test_who_claims_a_session_of_another_does_not_take_it_along(log: SealedLog) -> None:
    """Any client may write any session_id into a question."""
    victim = log.rows[FEBRUARY, 3]
    await conversation(log, uuid4(), victim["query_id"])
    with psycopg.connect(log.url) as connection:
        made = whole_trail(FEBRUARY, 400, end_user=NAMED, session_id=UUID(victim["session_id"]))
        write(connection, made, key=log.key)
    assert await log.seal() == {}
    done = await log.erase(ErasureTarget(spellings(NAMED)))
    assert (done.records, done.conversations) == (3, 0)
    assert ask(log, "SELECT erased_at FROM audit_logs WHERE log_id = %s", victim["log_id"]) == [(None,)]


async def test_of_a_conversation_one_turn_is_forgotten(log: SealedLog) -> None:
    first, second = theirs(log)
    session_id = await conversation(log, UUID(READER), first["query_id"], second["query_id"])
    await log.erase(ErasureTarget(query_id=UUID(first["query_id"])))
    assert ask(log, "SELECT DISTINCT session_id, query_id::text FROM chat_messages") == [
        (session_id, second["query_id"])
    ]


def open_record(log: SealedLog) -> Trail:
    """Of a process of another machine."""
    trail = whole_trail(FEBRUARY, 500, outcome="open", timestamp=now(), **personal(CANARY))
    entry = Entry.opened(trail, owner=1, spool=uuid4(), key=log.key)
    with psycopg.connect(log.url) as connection:
        connection.execute("SELECT audit_write(%s::json, NULL, '{}', NULL)", (f"[{entry.text}]",))
    return trail


async def test_what_is_open_and_never_ends_is_emptied_and_said(log: SealedLog) -> None:
    """Its machine may come back with the end of it."""
    open_record(log)
    async with log.erasing(within_s=0.3) as (eraser, event):
        done = await eraser.erase(ErasureTarget(spellings(NAMED)), "a wish", event)
    assert (done.records, done.open) == (2, 1)
    assert "another machine" in done.left[0]
    assert found(log, CANARY, READER) <= {"pg_statistic"}
    ((trail, signature),) = ask(log, "SELECT trail, signature FROM audit_open")
    assert is_open_signed(signature, trail, log.keys)
    assert (trail["user_query_text"], "end_user" in trail, trail["endpoint"]) == ("", False, "/v1/query")


async def test_what_is_open_and_ends_is_waited_for(log: SealedLog) -> None:
    trail = open_record(log)

    async def end() -> None:
        row = hashed(row_of(replace(trail, outcome="answered")), b"\1" * 32)
        closed = Entry.closed(trail.log_id, signed(row, trail.log_id, log.key))
        with psycopg.connect(log.url) as connection:
            connection.execute(
                "SELECT audit_write(NULL, NULL, %s, %s::json)",
                ([trail.log_id], f'[{closed.text[:-1]},"spooled":false}}]'),
            )
        assert await log.seal() == {}

    async with log.erasing(within_s=20) as (eraser, event):
        erasing = asyncio.create_task(eraser.erase(ErasureTarget(spellings(NAMED)), "a wish", event))
        await end()
        done = await erasing
    assert (done.records, done.open, done.left) == (3, 0, [])


def entry_of(**given: Any) -> Entry:
    trail = whole_trail(FEBRUARY, 600, **(personal(CANARY) | given))
    return Entry.closed(trail.log_id, hashed(row_of(trail), b"\1" * 32))


async def test_what_was_set_aside_is_blotted_out_in_its_place(log: SealedLog, tmp_path: Path) -> None:
    """Nobody who appends meanwhile is disturbed. Seen red with lines that are left whose JSON is damaged."""
    other, damaged = (
        entry_of(end_user="user:another"),
        line_of(entry_of()).replace(b'"endpoint":', b'"endpoint"'),
    )
    stranger = b"0123 cut"
    lines = [line_of(entry_of()), line_of(other), damaged, stranger + b"\n"]
    (tmp_path / ASIDE_FILE).write_bytes(b"".join(lines))
    async with log.erasing(within_s=0.3, spool=tmp_path) as (eraser, event):
        done = await eraser.erase(ErasureTarget(spellings(NAMED)), "a wish", event)
        again = await eraser.erase(ErasureTarget(spellings(NAMED)), "a wish", event)
    left = (tmp_path / ASIDE_FILE).read_bytes()
    assert (done.set_aside, again.set_aside, len(left)) == (2, 0, sum(map(len, lines)))
    assert left.splitlines(keepends=True)[1] == lines[1]
    assert READER.encode() not in left
    assert left.startswith(b"erased ") and b"\\x" in left.splitlines()[0]  # its id and hash
    assert done.left == [f"1 damaged lines in {ASIDE_FILE} may belong to this person: inspect the file"]


async def test_what_a_living_process_has_not_written_yet_is_said(log: SealedLog, tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, 7, 10**6)
    try:
        await spool.append([entry_of(), entry_of(end_user=None)])
        async with log.erasing(within_s=0.3, spool=tmp_path) as (eraser, event):
            done = await eraser.erase(ErasureTarget(spellings(NAMED)), "a wish", event)
    finally:
        spool.close()
    assert done.records == 2
    (words,) = done.left
    assert words.startswith(
        f"1 entries in the spool file {spool.path.name} are not in the database yet: start the engine"
    )


# --- records that have left, or are on their way


class StopError(Exception):
    """As far as the test wants the archive to come."""


def stopping_at(log: SealedLog, step: str) -> Archiver:
    archiver = archiver_of(log)

    @asynccontextmanager
    async def event(command: str, **about: Any) -> AsyncIterator[None]:
        if about.get("step") == step:
            raise StopError
        async with archiver.event(command, **about):
            yield

    return replace(archiver, event=event)


STAGES = ["frozen", "uploaded", "verified", "detached", "dropped", "the end"]


def keys_left(log: SealedLog) -> set[str]:
    return {str(log_id) for (log_id,) in ask(log, "SELECT log_id FROM audit_row_keys")}


def opened_boxes(log: SealedLog) -> str:
    """All that the vault's evidence says to who has all keys that are left."""
    keys = dict(ask(log, "SELECT log_id::text, key FROM audit_row_keys"))
    said = []
    for name in log.vault.keys("archive/"):
        if name.endswith(".jsonl.zst"):
            with pa.input_stream(BytesIO(log.vault.get(name)), compression="zstd") as stream:
                for line in stream.read().splitlines():
                    told = json.loads(line)
                    log_id = told["row"]["log_id"]
                    if told.get("personal") and log_id in keys:
                        box = base64.b64decode(told["personal"])
                        said.append(str(open_box(box, keys[log_id], log_id)))
                    said.append(line.decode())
    return "\n".join(said)


# Seen red with keys that are looked for by `end_user` in the tables alone.
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.campaign
async def test_g10_who_is_forgotten_while_a_month_leaves_is_found_in_no_object(
    leaving: SealedLog, stage: str
) -> None:
    """The month goes on from where it stood, and is proven at its end."""
    log = leaving
    proofs = [await log.prove(row) for row in theirs(log)]
    with suppress(StopError):
        await stopping_at(log, stage).archive(JANUARY.replace(month=3))
    target = ErasureTarget(query_id=UUID(theirs(log)[0]["query_id"]))
    one = await log.erase(target)
    done = await log.erase(ErasureTarget(spellings(NAMED)))
    again = await log.erase(target)
    assert [each.records + each.archived for each in (one, done, again)] == [1, 1, 0]
    assert again.already == 1
    outcomes = await archiver_of(log).archive(JANUARY.replace(month=3))
    assert [outcome.words for outcome in outcomes if not outcome.is_well] == []
    assert [finding for finding in log.inspect().findings if finding.verdict is not Verdict.ARCHIVED] == []
    ids = {row["log_id"] for row in theirs(log)}
    assert not ids & keys_left(log)
    assert len(keys_left(log)) == 17
    assert CANARY not in opened_boxes(log)
    assert READER not in opened_boxes(log)
    assert found(log, CANARY, READER) <= {"pg_statistic"}
    assert [auditor.check(proof, log.keys).verdict for proof in proofs] == [Verdict.VALID] * 2


async def test_what_was_forgotten_in_the_archive_does_not_come_back(leaving: SealedLog) -> None:
    log = leaving
    await archiver_of(log).archive(JANUARY.replace(month=3))
    assert (await log.erase(ErasureTarget(spellings(NAMED)))).archived == 2
    outcome = await archiver_of(log).restore(FEBRUARY)
    assert outcome.is_well, outcome.words
    assert found(log, CANARY, READER) <= {"pg_statistic"}
    ids = [row["log_id"] for row in theirs(log)]
    rows = ask(
        log,
        "SELECT erased_at IS NOT NULL, user_query_text FROM audit_logs WHERE log_id = ANY (%s::uuid[])",
        ids,
    )
    assert rows == [(True, None)] * 2
    assert await log.seal() == {}
    report = log.inspect()
    assert [finding for finding in report.findings if finding.verdict is not Verdict.ARCHIVED] == []
    assert report.counted["records were erased, and are proven"] == 2
    for row in theirs(log):
        assert auditor.check(await log.prove(row), log.keys).verdict is Verdict.ERASED


# Seen red without the look whether each record that stood in a table has its line: its key was gone, and no line there.
async def test_a_month_that_left_between_looking_and_erasing_keeps_its_keys(leaving: SealedLog) -> None:
    log = leaving
    (row, _) = theirs(log)
    line = {
        "erasure_id": str(uuid4()), "log_id": row["log_id"], "query_id": row["query_id"], "timestamp": row["timestamp"],
        "month": "2025-02-01", "erased_at": now().isoformat(), "basis": "b", "event": str(uuid4()), "key_id": "",
        "signature": "", "commitments": commitments(row),
    }  # fmt: skip
    await archiver_of(log).archive(JANUARY.replace(month=3))
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_archiver")
        with pytest.raises(errors.SerializationFailure):
            connection.execute("SELECT audit_erase(%s::json)", (json.dumps([line]),))
    assert row["log_id"] in keys_left(log)


# Seen red with turns that are looked for in the tables alone: the key of the unnamed one stayed.
async def test_the_archived_turns_of_a_conversation_are_forgotten_with_it(leaving: SealedLog) -> None:
    log = leaving
    named, unnamed = theirs(log)[0], log.rows[FEBRUARY, 3]
    await conversation(log, None, named["query_id"], unnamed["query_id"])
    await archiver_of(log).archive(JANUARY.replace(month=3))
    done = await log.erase(ErasureTarget(spellings(NAMED)))
    assert (done.archived, done.conversations) == (3, 1)
    assert not {named["log_id"], unnamed["log_id"]} & keys_left(log)


async def test_a_restored_month_is_erased_too(leaving: SealedLog) -> None:
    log = leaving
    await archiver_of(log).archive(JANUARY.replace(month=3))
    assert (await archiver_of(log).restore(FEBRUARY)).is_well
    done = await log.erase(ErasureTarget(spellings(NAMED)))
    assert (done.records, done.archived) == (2, 0)
    assert not {row["log_id"] for row in theirs(log)} & keys_left(log)
    assert found(log, CANARY, READER) <= {"pg_statistic"}
    assert (await archiver_of(log).end_restore(FEBRUARY)).is_well
    assert CANARY not in opened_boxes(log)


# --- guessing


# Seen red with commitments made without the salt.
async def test_a_million_guesses_at_what_stands_for_a_record_find_nothing(log: SealedLog) -> None:
    """The salt is gone. Every public value of the record is tried in its place."""
    first, _ = theirs(log)
    await log.erase(ErasureTarget(spellings(NAMED)))
    ((stands_for, leaf, log_id),) = ask(
        log, "SELECT commitments, leaf_hash, l.log_id FROM audit_erasures JOIN audit_logs l USING (log_id) WHERE log_id = %s",
        first["log_id"],
    )  # fmt: skip
    wanted = {bytes.fromhex(value) for value in stands_for.values()}
    salts = [b"", bytes(32), leaf, log_id.bytes, str(log_id).encode()]
    guesses = [
        CANARY,
        first["user_query_text"],
        NAMED,
        *(f"user:{UUID(int=number)}" for number in range(200_000 - 3)),
    ]
    tried = 0
    for guess in guesses:
        text = canonical_text(guess).encode()
        for salt in salts:
            tried += 1
            assert sha256(salt + b"user_query_text\0" + text).digest() not in wanted
    assert tried == 1_000_000
    assert commitments(first)["user_query_text"] == stands_for["user_query_text"]  # they were the right ones


# --- asked for


def erased_by(*arguments: str, log: SealedLog) -> dict[str, Any]:
    said = affidavit("audit", "erase", *arguments, "--json", data_dir=log.folder, DATABASE_URL=log.url)
    assert said.returncode == 0, said.stderr
    told: dict[str, Any] = json.loads(said.stdout)
    return told


def test_the_command_forgets_and_the_second_time_it_says_so(log: SealedLog) -> None:
    query_id = theirs(log)[0]["query_id"]
    assert erased_by("--query", query_id, "--basis", "ticket 4711", log=log)["records"] == 1
    assert erased_by("--user", READER, "--basis", "ticket 4711", log=log)["records"] == 1
    assert erased_by("--query", query_id, "--basis", "ticket 4711", log=log)["already"] == 1
    said = affidavit(
        "audit", "erase", "--query", query_id, "--basis", "b", data_dir=log.folder, DATABASE_URL=log.url
    )
    assert said.stdout.strip() == "It was already erased."
    said = affidavit(
        "audit", "erase", "--user", READER, "--basis", "b", data_dir=log.folder, DATABASE_URL=log.url
    )
    assert said.stdout.strip() == "There is nothing to erase."
    unknown = affidavit(
        "audit", "erase", "--query", str(uuid4()), "--basis", "b", data_dir=log.folder, DATABASE_URL=log.url
    )
    assert (unknown.returncode, unknown.stderr.startswith("There is no record of query")) == (1, True)
    checked = affidavit("audit", "verify", "--json", data_dir=log.folder, DATABASE_URL=log.url)
    assert json.loads(checked.stdout)["verdict"] == "VALID"
    assert found(log, CANARY, READER) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("--user", READER, "--query", str(uuid4())), ("--user", " "), ("--user", READER, "--basis", f"for {READER}"),
    ],
)  # fmt: skip
def test_wrong_usage_is_said_before_anything_is_done(arguments: tuple[str, ...], tmp_path: Path) -> None:
    said = affidavit("audit", "erase", "--basis", "b", *arguments, data_dir=tmp_path)
    assert said.returncode == 2
    assert not list(tmp_path.iterdir())


def test_personal_data_is_found_and_its_words_are_not_repeated(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        made = write(
            connection,
            whole_trail(FEBRUARY, 700, user_query_text="Mail jane@example.org, please."),
            key=log.key,
        )
        basis = {"basis": "letter of jane@example.org"}
        event = write(connection, whole_trail(FEBRUARY, 701, user_query_text="", details=basis), key=log.key)
    told = affidavit("audit", "pii", "--json", data_dir=log.folder, DATABASE_URL=log.url)
    assert told.returncode == 1, told.stderr
    assert "jane" not in told.stdout
    body = json.loads(told.stdout)
    assert (body["records"], body["by_kind"]) == (2, {"email": 2})
    assert [(hit["query_id"], hit["column"], hit["kinds"]) for hit in body["hits"]] == [
        (made["query_id"], "user_query_text", ["email"]),
        (event["query_id"], "details", ["email"]),
    ]
    none = affidavit("audit", "pii", "--from", "2025-02-11", data_dir=log.folder, DATABASE_URL=log.url)
    assert (none.returncode, "No personal data was recognised." in none.stdout) == (0, True)


async def keys_for(database: Database, *scopes: str) -> dict[str, str]:
    async with wiring.open_keys(database) as keys:
        return {"Authorization": f"Bearer {await keys.create('eraser', list(scopes), '1000/minute')}"}


async def asked_for(client: httpx.AsyncClient, headers: dict[str, str], **body: Any) -> httpx.Response:
    """Tried again as long as the answer says so."""
    async with asyncio.timeout(60):
        while True:
            response = await client.post("/v1/erasures", json=body, headers=headers)
            if response.status_code != 409:
                return response
            assert response.headers["retry-after"] == "10"
            await asyncio.sleep(1)


async def test_g10_the_call_forgets_a_reader_and_leaves_no_trace_of_them(
    house: House, database: Database, records: Records, key: str
) -> None:
    reader = f"user:{uuid4()}"
    headers = await keys_for(database, "erase")
    async with application(house) as (_, client):
        answered = await client.post(
            "/v1/query", json={"query": f"What does an IMU measure, {CANARY}?"},
            headers={"Authorization": f"Bearer {key}", "X-End-User": reader},
        )  # fmt: skip
        query_id = answered.json()["query_id"]
        response = await asked_for(
            client, headers | {"X-End-User": reader}, user_id=reader, basis="ticket 4711"
        )
        assert response.status_code == 200, response.text
        told = response.json()
        assert (told["records"], told["left"]) == (1, [])
        again = await asked_for(client, headers, query_id=query_id, basis="ticket 4711")
        assert (again.status_code, again.json()["already"]) == (200, 1)
    (row,) = records.of(query_id)
    assert row["erased_at"] and row["user_query_text"] is None
    for mark in (reader, reader.removeprefix("user:"), CANARY):
        with psycopg.connect(database.url) as connection:
            assert (
                connection.execute(
                    "SELECT log_id FROM audit_logs l WHERE l::text LIKE %s", (f"%{mark}%",)
                ).fetchall()
                == []
            )


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"basis": "b"}, 422, "user_id"),
        ({"basis": "b", "user_id": READER, "query_id": str(uuid4())}, 422, "user_id"),
        ({"user_id": READER}, 422, "basis"),
        ({"basis": " ", "user_id": READER}, 422, "basis"),
        ({"basis": f"of {READER}", "user_id": READER}, 422, "basis"),
        ({"basis": "b", "user_id": " "}, 422, "user_id"),
        ({"basis": "b", "query_id": READER + "x"}, 422, "query_id"),
        ({"basis": "b", "query_id": str(uuid4())}, 404, None),
        ({"basis": "b", "user_id": READER, "more": 1}, 422, "more"),
    ],
)
async def test_what_is_wrong_with_a_wish_is_said_without_its_words(
    house: House, database: Database, records: Records, body: dict[str, Any], status: int, field: str | None
) -> None:
    async with application(house) as (_, client):
        response = await client.post("/v1/erasures", json=body, headers=await keys_for(database, "erase"))
    told = response.json()
    assert (response.status_code, told["field"]) == (status, field)
    (row,) = records.of(told["query_id"])
    assert READER not in response.text + str(row)


@pytest.mark.parametrize("scope", ["ask", "audit", "admin"])
async def test_another_scope_erases_nothing(house: House, database: Database, scope: str) -> None:
    async with application(house) as (_, client):
        response = await client.post(
            "/v1/erasures", json={"basis": "b", "user_id": READER}, headers=await keys_for(database, scope)
        )
    assert response.status_code == 403
