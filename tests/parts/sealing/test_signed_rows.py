"""While the sealer runs, a superuser writes rows that the engine never wrote: none is sealed or proven, each is named."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from audit.checking.status import gaps, read_status
from audit.errors import UnsealedRecordError
from audit.ledger.entry import Entry
from audit.ledger.spool import Spool
from audit.proof.checkpoint import Checkpoint, open_note, sign_note
from audit.proof.keys import public_file
from audit.proof.record import Row, Trail, hashed, row_of
from audit.proof.row_signature import sign_open, signed
from audit.proof.verdict import Verdict
from audit.sealing.sealer import Sealer
from engine.cli.doctor import examine
from engine.storage.database import Database
from engine.wiring import now
from tests.logs.recorded import make_months, write
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, places, sealed_log, whole_trail
from tests.logs.writers import KEY as STRANGER
from tests.logs.writers import ledger_on
from tests.proofs import KEY as OTHER

WAIT_S = 20


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("signed")) as log:
        with psycopg.connect(log.url) as connection:
            make_months(connection, [now().date()])
        yield log


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    yield whole
    whole.restore()


@asynccontextmanager
async def sealing(log: SealedLog, **given: Any) -> AsyncIterator[Sealer]:
    async with log.database.pool("affidavit_sealer") as pool:
        sealer = Sealer(
            pool, log.key, lambda: log.keys, log.vault,
            seal_every_s=0.02, anchor_every_s=0.1, clock=now, monotonic=time.monotonic, **given,
        )  # fmt: skip
        async with sealer.running():
            yield sealer


async def sealed(log: SealedLog, log_id: object) -> None:
    """What the sealer does can only be looked for."""
    async with asyncio.timeout(WAIT_S):
        while not leaves(log, log_id):  # noqa: ASYNC110  nobody rings a bell
            await asyncio.sleep(0.02)


async def met(sealer: Sealer, log_id: object) -> None:
    """The sealer counts what it refuses at the end of a round."""
    async with asyncio.timeout(WAIT_S):
        while str(log_id) not in {str(refused) for _, refused in sealer.admission.refused}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def leaves(log: SealedLog, log_id: object) -> int:
    with psycopg.connect(log.url) as connection:
        found = connection.execute("SELECT count(*) FROM audit_leaves WHERE log_id = %s", (log_id,))
        return int((found.fetchone() or (0,))[0])


def forged(log: SealedLog, how: str) -> Row:
    """Inserted as a superuser, with a hash that fits."""
    month = JANUARY if how == "in an old month" else FEBRUARY
    given: dict[str, Any] = {"schema_version": 3} if how == "of schema version 3" else {}
    if how == "an operator's event":
        given = {"endpoint": "affidavit keys revoke", "outcome": "recorded"}
    signer = STRANGER if how == "signed by a key that is in audit_keys" else None
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        made = write(connection, whole_trail(month, 400, **given), key=signer)
        if signer:
            connection.execute(
                "INSERT INTO audit_keys VALUES (%s, %s, now())", (signer.key_id, str(signer.public))
            )
        if how == "with another row's signature":
            connection.execute(
                "UPDATE audit_logs SET signature = %s::bytea WHERE log_id = %s",
                (log.rows[FEBRUARY, 3]["signature"], made["log_id"]),
            )
    return made


HOW = [
    "unsigned", "with another row's signature", "signed by a key that is in audit_keys", "of schema version 3",
    "an operator's event", "in an old month",
]  # fmt: skip


# Seen red with signatures that stay rejected: the row of another engine was sealed only after a restart.
async def test_a_row_that_was_signed_before_its_new_key_was_known_here_is_sealed_once_it_is(
    log: SealedLog,
) -> None:
    public = public_file(log.folder / "signing.key")
    before = public.read_text()
    try:
        async with sealing(log) as sealer:
            made = forged(log, "signed by a key that is in audit_keys")
            log.write(FEBRUARY, 401)
            await sealed(log, log.log_id(FEBRUARY, 401))
            await met(sealer, made["log_id"])
            public.write_text(f"{STRANGER.public}\n{before}")
            await sealed(log, made["log_id"])
    finally:
        public.write_text(before)


# Seen red with a sealer that admits every row.
@pytest.mark.parametrize("how", HOW)
async def test_a_row_that_the_engine_did_not_write_is_never_sealed_nor_proven(
    log: SealedLog, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with sealing(log) as sealer:
        made = forged(log, how)
        log.write(FEBRUARY, 401)  # later than the forged one, so the sealer has met that
        await sealed(log, log.log_id(FEBRUARY, 401))
    assert leaves(log, made["log_id"]) == 0
    assert len(sealer.admission.refused) == 1
    assert caplog.text.count("the engine did not sign") == 1
    assert str(made["log_id"]) in caplog.text
    (finding,) = log.inspect().findings
    assert (finding.verdict, finding.what, finding.log_id) == (Verdict.TAMPERED, "row", made["log_id"])
    with pytest.raises(UnsealedRecordError):
        await log.prove(made)


# Seen red with `_is_vouched_for` that believes any signature, and with `must_be_signed` that is always false.
@pytest.mark.parametrize(
    "signature", ["NULL", "(SELECT signature FROM before.audit_logs WHERE log_id = %(other)s)"]
)
def test_a_sealed_row_without_a_valid_signature_is_found(log: SealedLog, signature: str) -> None:
    at, other = log.log_id(FEBRUARY, 5), log.log_id(FEBRUARY, 6)
    log.attack(f"UPDATE audit_logs SET signature = {signature} WHERE log_id = %(at)s", at=at, other=other)
    assert places(log.inspect()) == {("TAMPERED", "row", "2025-02", 5)}


async def test_many_forged_rows_do_not_keep_the_engines_own_from_being_sealed(log: SealedLog) -> None:
    """They are older than the engine's, and more than are read at once."""
    with psycopg.connect(log.url) as connection:
        write(connection, *(whole_trail(FEBRUARY, place) for place in range(500, 3_000)))
    log.write(FEBRUARY, 4_000)
    async with sealing(log) as sealer:
        await sealed(log, log.log_id(FEBRUARY, 4_000))
    assert len(sealer.admission.refused) == 2_500


def forged_open(log: SealedLog, how: str) -> Trail:
    """Opened as a superuser, by an owner that no longer lives."""
    version = 3 if how == "of schema version 3" else 4
    trail = whole_trail(FEBRUARY, 700, outcome="open", schema_version=version, timestamp=now())
    signature = None
    if how == "signed by a stranger":
        signature = sign_open(row_of(trail), STRANGER)
    if how == "with another record's signature":
        signature = sign_open(row_of(replace(trail, user_query_text="Another?")), log.key)
    with psycopg.connect(log.url) as connection:
        connection.execute(
            "INSERT INTO audit_open (log_id, opened_at, owner, trail, signature) VALUES (%s, now(), 5, %s, %s)",
            (trail.log_id, Jsonb(row_of(trail)), signature),
        )
    return trail


# Seen red with `is_open_signed` that is always true.
@pytest.mark.parametrize("how", ["unsigned", "signed by a stranger", "with another record's signature"])
async def test_an_open_record_that_the_engine_did_not_open_is_never_closed_in_its_name(
    log: SealedLog, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    trail = forged_open(log, how)
    async with log.erasing():  # a ledger starts and closes what dead processes left
        pass
    with psycopg.connect(log.url) as connection:
        assert connection.execute("SELECT count(*) FROM audit_open").fetchone() == (1,)
        connection.execute("DELETE FROM audit_open")
    assert str(trail.log_id) in caplog.text
    assert log.inspect().verdict is Verdict.VALID


async def test_an_open_record_that_claims_an_older_version_is_closed_unsigned_and_not_sealed(
    log: SealedLog,
) -> None:
    trail = forged_open(log, "of schema version 3")
    async with sealing(log):
        async with log.erasing():
            pass
        log.write(FEBRUARY, 401)
        await sealed(log, log.log_id(FEBRUARY, 401))
    assert leaves(log, trail.log_id) == 0
    assert [finding.log_id for finding in log.inspect().findings] == [str(trail.log_id)]


async def test_what_a_killed_process_opened_is_closed_signed_and_sealed(log: SealedLog) -> None:
    trail = whole_trail(FEBRUARY, 701, outcome="open", timestamp=now())
    entry = Entry.opened(trail, owner=6, spool=None, key=log.key)
    with psycopg.connect(log.url) as connection:
        connection.execute("SELECT audit_write(%s::json, NULL, '{}', NULL)", (f"[{entry.text}]",))
    async with sealing(log):
        async with log.erasing():
            pass
        await sealed(log, trail.log_id)
    assert log.inspect().verdict is Verdict.VALID


async def test_the_status_of_the_log_counts_what_the_engine_did_not_write_and_names_it(
    log: SealedLog,
) -> None:
    made, opened = forged(log, "unsigned"), forged_open(log, "unsigned")
    found = await read_status(log.database.read, log.vault, None, now().date(), public_keys=log.keys)
    assert (found.not_ours, found.open_not_ours) == ([made["log_id"]], [str(opened.log_id)])
    said = "\n".join(gaps(found, now() + timedelta(hours=1)))
    assert "1 records were not signed by the engine" in said and made["log_id"] in said
    assert "1 open requests were not opened by the engine" in said and str(opened.log_id) in said
    assert "check that `affidavit audit seal` is running" not in said
    (doctor,) = [
        line for line in await examine(log.database.settings, log.database) if line.part == "sealing"
    ]
    assert (
        doctor.state == "failed" and made["log_id"] in doctor.words
    )  # seen red: the sealer was said not to run


# Versions that did not sign


@pytest.fixture
async def old(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    """Sealed by a version that did not sign rows, and with two rows that it left unsealed."""
    async with sealed_log(database, tmp_path) as log:
        yield log


def as_before(log: SealedLog) -> None:
    """The evidence as the older version would have written it."""
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "TRUNCATE audit_logs, audit_leaves, audit_checkpoints, audit_anchors, audit_head_entries, audit_heads, audit_head_anchors"
        )
    for file in (log.folder / "vault").rglob("*.*"):
        file.unlink()


async def test_rows_of_before_are_sealed_once_and_refused_afterwards(old: SealedLog) -> None:
    as_before(old)
    old.write(JANUARY, 0, 1, schema_version=3)
    old.write(FEBRUARY, 0, 1, 2, schema_version=3)
    old.write(FEBRUARY, 3)
    assert await old.seal() == {}
    assert signed_from(old) == {"2025-01": [None], "2025-02": [None, 3]}
    report = old.inspect()
    assert (report.verdict, report.checked) == (Verdict.VALID, 6)
    old.write(FEBRUARY, 10, schema_version=3)
    old.write(JANUARY, 10)
    assert await old.seal() == {}
    assert signed_from(old) == {"2025-01": [None, 2], "2025-02": [None, 3]}
    (finding,) = old.inspect().findings
    assert (finding.verdict, finding.log_id) == (Verdict.TAMPERED, old.log_id(FEBRUARY, 10))


# Seen red with a sealer that asks the database alone.
async def test_whoever_deletes_the_checkpoints_that_speak_of_signatures_gets_no_unsigned_row_sealed(
    old: SealedLog,
) -> None:
    old.attack("TRUNCATE audit_checkpoints", "TRUNCATE audit_leaves", "TRUNCATE audit_anchors")
    with psycopg.connect(old.url) as connection:
        made = write(connection, whole_trail(date_of_an_empty_month(connection), 0, schema_version=3))
    await old.seal()
    assert leaves(old, made["log_id"]) == 0


def date_of_an_empty_month(connection: psycopg.Connection) -> Any:
    month = now().date().replace(day=1)
    make_months(connection, [month])
    return month


def signed_from(log: SealedLog) -> dict[str, list[int | None]]:
    with psycopg.connect(log.url) as connection:
        rows = connection.execute("SELECT note FROM audit_checkpoints ORDER BY month, tree_size").fetchall()
    found: dict[str, list[int | None]] = {}
    for (note,) in rows:
        head = open_note(note, log.keys)
        found.setdefault(f"{head.month:%Y-%m}", []).append(head.signed_from)
    return found


# Seen red with `_is_before_signing` that is always true.
@pytest.mark.parametrize("value", [None, 3])
async def test_a_later_checkpoint_that_says_otherwise_is_found(log: SealedLog, value: int | None) -> None:
    """As an older version of the program would sign it, or whoever has the signing key."""
    with psycopg.connect(log.url) as connection:
        (note,) = connection.execute(
            "SELECT note FROM audit_checkpoints WHERE month = %s AND tree_size = 12", (FEBRUARY,)
        ).fetchone() or ("",)
    head = open_note(note, log.keys)
    again: Checkpoint = replace(head, signed_from=value)
    log.attack(
        "UPDATE audit_checkpoints SET note = %(note)s WHERE month = '2025-02-01' AND tree_size = 12",
        note=sign_note(again, log.key),
    )
    assert any(
        finding.verdict is Verdict.TAMPERED and "from where on records are signed" in finding.words
        for finding in log.inspect().findings
    )


async def test_what_an_older_version_left_in_the_spool_is_signed_when_it_is_drained(
    log: SealedLog, tmp_path: Path
) -> None:
    trail = whole_trail(now().date().replace(day=1), 0, schema_version=3, timestamp=now())
    begun = whole_trail(now().date().replace(day=1), 0, schema_version=3, timestamp=now(), outcome="open")
    spool = Spool.open(tmp_path, 77, 2**20)
    opened = Entry.opened(begun, owner=77, spool=spool.identity, key=STRANGER)
    body = json.loads(opened.text)
    del body["signature"]
    unsigned = replace(opened, text=json.dumps(body))
    await spool.append([unsigned, Entry.closed(trail.log_id, hashed(row_of(trail), b"\7" * 32))])
    spool.close()
    async with log.database.pool("affidavit_engine", 4, has_autocommit=True) as pool:
        ledger = ledger_on(pool, tmp_path)
        await ledger.start()
        await ledger.stop()
    with psycopg.connect(log.url) as connection:
        found = connection.execute(
            "SELECT log_id, outcome, signature IS NOT NULL FROM audit_logs WHERE log_id = ANY(%s)",
            ([trail.log_id, begun.log_id],),
        ).fetchall()
    assert {row[0]: row[1:] for row in found} == {
        trail.log_id: ("answered", True), begun.log_id: ("abandoned", True)
    }  # fmt: skip


def test_a_signature_is_of_one_row_and_one_key() -> None:
    row = hashed(row_of(whole_trail(FEBRUARY, 1)), bytes(32))
    one = signed(row, UUID(int=1), STRANGER).text
    assert one != signed(row, UUID(int=2), STRANGER).text
    assert one == signed(row, UUID(int=1), STRANGER).text
    assert one != signed(row, UUID(int=1), OTHER).text
