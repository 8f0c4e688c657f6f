"""Whoever owns the database, and stops every trigger, changes what is sealed and anchored: found, and where.

Attacks are made as a superuser on one log, which is put back after each.
"""

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from audit.anchored import leaves_key, note_key
from audit.checking.evidence import Period
from audit.erasure.target import ErasureTarget
from audit.heads.vaulted import entries_key
from audit.heads.vaulted import note_key as head_key
from audit.proof.checkpoint import Checkpoint, Link, erasure_text, open_note, sign_note
from audit.proof.keys import SigningKey
from audit.proof.merkle import root
from audit.proof.record import COLUMNS, PERSONAL, commitments
from audit.proof.verdict import Verdict
from audit.vault import FolderVault
from engine.ports import Clock
from engine.storage.database import Database
from engine.wiring import now
from tests.logs.recorded import make_months, write
from tests.logs.sealed_log import EVIDENCE, FEBRUARY, JANUARY, SealedLog, places, sealed_log, whole_trail
from tests.logs.writers import KEY as STRANGER

LEAF = 5  # of February: the one that most attacks are aimed at
UNPROVEN = {"spooled"}  # how the row came here, known only after its hash was promised in a receipt
ALWAYS_FILLED = {
    "log_id", "query_id", "user_query_text", "timestamp", "endpoint", "outcome", "repeat_count", "schema_version",
    "leaf_hash", "erased_at",
}  # fmt: skip

CHANGED = {
    "uuid": "gen_random_uuid()", "text": "{0} || 'x'", "character varying": "'elsewhere'", "integer": "{0} + 1",
    "double precision": "{0} + 1e-9", "boolean": "NOT {0}", "jsonb": "'[1]'",
    "timestamp with time zone": "coalesce({0}, now()) + interval '1 microsecond'",
    "bytea": "set_byte({0}, 3, get_byte({0}, 3) # 1)",
}  # fmt: skip


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("sealed")) as log:
        yield log


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    yield whole
    whole.restore()


@pytest.fixture
def at(log: SealedLog) -> str:
    return f"log_id = '{log.log_id(FEBRUARY, LEAF)}'"


def test_a_log_that_nobody_touched_is_valid(log: SealedLog) -> None:
    report = log.inspect()
    assert (report.verdict, report.checked, report.findings) == (Verdict.VALID, 17, [])


# Seen red with `leaf_hash` leaving the column `reason` out.
@pytest.mark.parametrize("column", [name for name in COLUMNS if name not in UNPROVEN])
def test_a_changed_column_is_found(log: SealedLog, at: str, column: str) -> None:
    with psycopg.connect(log.url) as connection:
        kind = "SELECT data_type FROM information_schema.columns WHERE table_name = 'audit_logs' AND column_name = %s"
        (found,) = connection.execute(kind, (column,)).fetchone() or ("",)
    log.attack(f"UPDATE audit_logs SET {column} = {CHANGED[found].format(column)} WHERE {at}")
    report = log.inspect()
    expected = {"log_id": "MISSING", "schema_version": "CANNOT_TELL"}.get(column, "TAMPERED")
    (finding, *others) = [item for item in report.findings if item.leaf_index is not None]
    assert (finding.verdict, finding.what, finding.month, finding.leaf_index, others) == (
        expected, "row", FEBRUARY, LEAF, [],
    )  # fmt: skip
    assert finding.log_id == log.log_id(FEBRUARY, LEAF)


@pytest.mark.parametrize("column", [name for name in COLUMNS if name not in UNPROVEN | ALWAYS_FILLED])
def test_an_emptied_column_is_found(log: SealedLog, at: str, column: str) -> None:
    log.attack(f"UPDATE audit_logs SET {column} = NULL WHERE {at}")
    assert places(log.inspect()) == {("TAMPERED", "row", "2025-02", LEAF)}


def test_a_record_whose_own_hash_was_made_to_fit_is_found(log: SealedLog, at: str) -> None:
    forged = whole_trail(FEBRUARY, LEAF, answer_text="Something else.")
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(f"DELETE FROM audit_logs WHERE {at}".encode())
        write(connection, replace(forged, log_id=UUID(log.log_id(FEBRUARY, LEAF))))
    assert places(log.inspect()) == {("TAMPERED", "row", "2025-02", LEAF)}


def test_a_record_and_its_leaf_made_to_fit_are_found(log: SealedLog, at: str) -> None:
    """Only the vault knows what the leaf was."""
    forged = whole_trail(FEBRUARY, LEAF, answer_text="Something else.", log_id=log.log_id(FEBRUARY, LEAF))
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(f"DELETE FROM audit_logs WHERE {at}".encode())
        made = write(connection, forged)
        connection.execute(
            f"UPDATE audit_leaves SET leaf_hash = %s::bytea WHERE {at}".encode(), (made["leaf_hash"],)
        )
    assert places(log.inspect()) == {
        ("TAMPERED", "row", "2025-02", LEAF),
        ("TAMPERED", "leaf", "2025-02", LEAF),
    }


def test_a_deleted_record_is_found(log: SealedLog, at: str) -> None:
    log.attack(f"DELETE FROM audit_logs WHERE {at}")
    report = log.inspect()
    assert places(report) == {("MISSING", "row", "2025-02", LEAF)}
    assert report.findings[0].log_id == log.log_id(FEBRUARY, LEAF)


def test_a_record_deleted_with_its_leaf_is_found(log: SealedLog, at: str) -> None:
    log.attack(f"DELETE FROM audit_logs WHERE {at}", f"DELETE FROM audit_leaves WHERE {at}")
    assert places(log.inspect()) == {("MISSING", "leaf", "2025-02", LEAF)}


def test_an_inserted_record_is_found(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        made = write(connection, whole_trail(FEBRUARY, 99))
    report = log.inspect()
    assert places(report) == {("TAMPERED", "row", "2025-02", None)}
    assert report.findings[0].log_id == made["log_id"]


def test_a_second_record_of_the_same_id_is_found(log: SealedLog) -> None:
    twin = whole_trail(FEBRUARY, 99, log_id=log.log_id(FEBRUARY, LEAF))
    with psycopg.connect(log.url) as connection:
        write(connection, twin)
    assert places(log.inspect()) == {("TAMPERED", "row", "2025-02", LEAF)}


def test_the_same_record_in_another_month_is_found(log: SealedLog) -> None:
    """Its id has a leaf, but not there. Seen red with leaves looked for by id alone."""
    with psycopg.connect(log.url) as connection:
        write(connection, whole_trail(JANUARY, 99, log_id=log.log_id(FEBRUARY, LEAF)))
    assert places(log.inspect()) == {("TAMPERED", "row", "2025-01", None)}


def test_an_inserted_record_with_a_leaf_is_found(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        made = write(connection, whole_trail(FEBRUARY, 99))
        connection.execute(
            "INSERT INTO audit_leaves VALUES (%s, 12, %s, %s, now())",
            (FEBRUARY, made["log_id"], bytes.fromhex(made["leaf_hash"][2:])),
        )
    report = log.inspect()
    assert places(report) == {("TAMPERED", "leaf", "2025-02", 12)}
    assert report.findings[0].log_id == made["log_id"]


def test_two_records_with_their_contents_swapped_are_found(log: SealedLog) -> None:
    names = [name for name in COLUMNS if name not in {"log_id", "timestamp"}]
    one, other = log.log_id(FEBRUARY, LEAF), log.log_id(FEBRUARY, LEAF + 3)
    log.attack(
        f"UPDATE audit_logs l SET ({', '.join(names)}) = (SELECT {', '.join(names)} FROM before.audit_logs o"
        " WHERE o.log_id = CASE l.log_id WHEN %(one)s THEN %(other)s::uuid ELSE %(one)s::uuid END)"
        " WHERE log_id IN (%(one)s, %(other)s)",
        one=one, other=other,
    )  # fmt: skip
    assert places(log.inspect()) == {
        ("TAMPERED", "row", "2025-02", LEAF),
        ("TAMPERED", "row", "2025-02", LEAF + 3),
    }


def test_swapped_leaves_are_found(log: SealedLog) -> None:
    log.attack(
        "UPDATE audit_leaves SET leaf_index = leaf_index + 100 WHERE month = '2025-02-01' AND leaf_index IN (2, 7)",
        "UPDATE audit_leaves SET leaf_index = 109 - leaf_index WHERE leaf_index > 100",
    )
    found = places(log.inspect())
    assert {("TAMPERED", "leaf", "2025-02", 2), ("TAMPERED", "leaf", "2025-02", 7)} <= found


@pytest.mark.parametrize("table", ["audit_logs", "audit_logs_2025_02"])
def test_a_truncated_log_is_found(log: SealedLog, table: str) -> None:
    log.attack(f"TRUNCATE {table}")
    found = places(log.inspect())
    assert ("MISSING", "row", "2025-02", 0) in found
    assert (("MISSING", "row", "2025-01", 0) in found) == (table == "audit_logs")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("audit_leaves", {("MISSING", "leaf", "2025-02", 0), ("MISSING", "leaf", "2025-01", 0)}),
        ("audit_checkpoints", {("MISSING", "checkpoint", "2025-02", size - 1) for size in (4, 8, 12)}),
    ],
)
def test_truncated_evidence_is_found(
    log: SealedLog, table: str, expected: set[tuple[str, str, str, int]]
) -> None:
    log.attack(f"TRUNCATE {table}")
    assert expected <= places(log.inspect())


def test_a_dropped_partition_is_found(log: SealedLog) -> None:
    log.attack("DROP TABLE audit_logs_2025_02")
    assert places(log.inspect()) == {("MISSING", "month", "2025-02", 0)}


class BusyVault(FolderVault):
    """While somebody asks what is there, records are sealed and anchored: just before or just after the look."""

    def __init__(self, log: SealedLog, *, seals_first: bool) -> None:
        super().__init__(log.folder / "vault")
        self._log, self._seals_first, self._is_waiting = log, seals_first, True

    def keys(self, prefix: str = "") -> list[str]:
        found = super().keys(prefix)
        if self._is_waiting:
            self._is_waiting = False
            self._log.write(FEBRUARY, *range(100, 103))
            asyncio.run(self._log.seal())
        return super().keys(prefix) if self._seals_first else found


# Seen red with the vault listed after the database's snapshot was taken, and with anchors that came after the listing
# taken for lost.
@pytest.mark.parametrize("seals_first", [True, False])
def test_what_is_anchored_while_we_look_is_no_finding(log: SealedLog, seals_first: bool) -> None:
    report = log.inspect(vault=BusyVault(log, seals_first=seals_first))
    assert (report.verdict, report.findings) == (Verdict.VALID, [])


async def test_nothing_is_found_while_records_are_written_sealed_and_anchored(log: SealedLog) -> None:
    is_over = asyncio.Event()

    async def work() -> None:
        for place in range(100, 160, 3):
            await asyncio.to_thread(log.write, FEBRUARY, *range(place, place + 3))
            assert await log.seal() == {}
        is_over.set()

    working = asyncio.create_task(work())
    found = set()
    while not is_over.is_set():
        report = await asyncio.to_thread(log.inspect)
        found |= {finding for finding in report.findings if finding.verdict is not Verdict.UNSEALED}
    await working
    assert found == set()
    assert (await asyncio.to_thread(log.inspect)).verdict is Verdict.VALID


def test_a_dropped_partition_without_its_leaves_and_checkpoints_is_found(log: SealedLog) -> None:
    log.attack(
        "DROP TABLE audit_logs_2025_02",
        *(f"DELETE FROM {table} WHERE month = '2025-02-01'" for table in EVIDENCE[1:4]),
    )
    found = places(log.inspect())
    assert {("MISSING", "leaf", "2025-02", 0), ("MISSING", "month", "2025-02", 0)} <= found


def restore_older_dump(log: SealedLog) -> None:
    """The database as it was when February had eight leaves."""
    log.attack(
        "DELETE FROM audit_logs WHERE log_id IN (SELECT log_id FROM audit_leaves WHERE month = '2025-02-01'"
        " AND leaf_index >= 8)",
        "DELETE FROM audit_leaves WHERE month = '2025-02-01' AND leaf_index >= 8",
        "DELETE FROM audit_checkpoints WHERE month = '2025-02-01' AND tree_size > 8",
        "DELETE FROM audit_anchors WHERE month = '2025-02-01' AND tree_size > 8",
    )


# Seen red with anchors listed in the database instead of in the vault.
def test_an_older_dump_that_was_restored_is_found(log: SealedLog) -> None:
    restore_older_dump(log)
    report = log.inspect()
    assert places(report) == {("MISSING", "leaf", "2025-02", 8)}
    assert report.verdict is Verdict.MISSING
    assert (
        "older copy of what the vault holds: it lacks the last 4 leaves, 8 to 11" in report.findings[0].words
    )


async def test_an_older_dump_that_went_on_is_found(log: SealedLog, tmp_path: Path) -> None:
    """The real key signs another future on top of it; the vault keeps the one that was."""
    restore_older_dump(log)
    shutil.copytree(log.folder / "vault", tmp_path / "fork")
    for file in (tmp_path / "fork").rglob("*000000000012*"):
        file.unlink()
    with psycopg.connect(log.url) as connection:
        for place in range(20, 26):
            write(connection, whole_trail(FEBRUARY, place), key=log.key)
    assert await log.seal(vault=FolderVault(tmp_path / "fork")) == {}
    found = places(log.inspect())
    assert {("TAMPERED", "leaf", "2025-02", index) for index in range(8, 12)} <= found


def test_a_replayed_checkpoint_is_found(log: SealedLog) -> None:
    log.attack(
        "UPDATE audit_checkpoints SET note = (SELECT note FROM audit_checkpoints WHERE month = '2025-02-01'"
        " AND tree_size = 4) WHERE month = '2025-02-01' AND tree_size = 12"
    )
    assert ("TAMPERED", "checkpoint", "2025-02", 11) in places(log.inspect())


def test_a_checkpoint_of_another_month_is_found(log: SealedLog) -> None:
    log.attack(
        "UPDATE audit_checkpoints SET note = (SELECT note FROM audit_checkpoints WHERE month = '2025-01-01')"
        " WHERE month = '2025-02-01' AND tree_size = 8"
    )
    assert ("TAMPERED", "checkpoint", "2025-02", 7) in places(log.inspect())


def test_a_deleted_last_checkpoint_is_found(log: SealedLog) -> None:
    log.attack("DELETE FROM audit_checkpoints WHERE month = '2025-02-01' AND tree_size = 12")
    assert places(log.inspect()) == {("MISSING", "checkpoint", "2025-02", 11)}


def test_a_deleted_last_checkpoint_is_found_before_it_is_anchored(log: SealedLog) -> None:
    forget_last_anchor(log)
    log.attack("DELETE FROM audit_checkpoints WHERE month = '2025-02-01' AND tree_size = 12")
    assert places(log.inspect()) == {("TAMPERED", "leaf", "2025-02", 8)}


def forget_last_anchor(log: SealedLog) -> None:
    """As if the last four leaves of February were sealed a moment ago."""
    log.attack("DELETE FROM audit_anchors WHERE month = '2025-02-01' AND tree_size = 12")
    log.attack(
        "DELETE FROM audit_head_entries WHERE entry_index = 3",
        *(f"DELETE FROM {table} WHERE tree_size = 4" for table in ("audit_heads", "audit_head_anchors")),
    )
    for key in (note_key(FEBRUARY, 12), leaves_key(FEBRUARY, 8, 12), head_key(4), entries_key(3, 4)):
        (log.folder / "vault" / key).unlink()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("UPDATE audit_leaves SET leaf_hash = sha256('x')", {("TAMPERED", "row", 10), ("TAMPERED", "checkpoint", 8)}),
        ("DELETE FROM audit_leaves", {("MISSING", "leaf", 10), ("UNSEALED", "row", None)}),
    ],
    ids=["changed", "deleted"],
)  # fmt: skip
def test_a_leaf_that_is_not_anchored_yet_is_held_by_the_signature(
    log: SealedLog, change: str, expected: set[tuple[str, str, int]]
) -> None:
    forget_last_anchor(log)
    log.attack(f"{change} WHERE month = '2025-02-01' AND leaf_index = 10")
    found = {(verdict, what, index) for verdict, what, _, index in places(log.inspect())}
    assert found == expected


def rebuild(log: SealedLog, key: SigningKey) -> None:
    """A whole February of other records, with leaves and checkpoints that fit, signed with this key."""
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        (origin,) = connection.execute("SELECT origin FROM audit_origin").fetchone() or ("",)
        (january,) = connection.execute(
            "SELECT note FROM audit_checkpoints WHERE month = '2025-01-01'"
        ).fetchone() or ("",)
        earlier = open_note(january, log.keys)
        connection.execute("TRUNCATE audit_logs_2025_02")
        for table in ("audit_leaves", "audit_checkpoints"):
            connection.execute(f"DELETE FROM {table} WHERE month = '2025-02-01'".encode())
        leaves: list[bytes] = []
        for index in range(12):
            made = write(connection, whole_trail(FEBRUARY, index, answer_text="Nothing of the kind."))
            leaves.append(bytes.fromhex(made["leaf_hash"][2:]))
            connection.execute(
                "INSERT INTO audit_leaves VALUES (%s, %s, %s, %s, now())",
                (FEBRUARY, index, made["log_id"], leaves[-1]),
            )
            if len(leaves) % 4 == 0:
                head = Checkpoint(
                    origin, FEBRUARY, len(leaves), root(leaves), datetime(2025, 2, 11, tzinfo=UTC),
                    Link(JANUARY, earlier.size, earlier.root),
                )  # fmt: skip
                connection.execute(
                    "INSERT INTO audit_checkpoints VALUES (%s, %s, %s, now())",
                    (FEBRUARY, len(leaves), sign_note(head, key)),
                )


def test_everything_computed_anew_and_signed_with_another_key_is_found(
    log: SealedLog, tmp_path: Path
) -> None:
    other = SigningKey.create(tmp_path / "other.key")
    rebuild(log, other)
    log.attack(
        "INSERT INTO audit_keys VALUES (%(id)s, %(key)s, now())", id=other.key_id, key=str(other.public)
    )
    found = places(log.inspect())
    assert {("TAMPERED", "leaf", "2025-02", index) for index in range(12)} <= found
    assert {("TAMPERED", "checkpoint", "2025-02", size - 1) for size in (4, 8, 12)} <= found


def test_everything_computed_anew_and_signed_with_the_real_key_is_found_by_the_anchors(
    log: SealedLog,
) -> None:
    rebuild(log, log.key)
    found = places(log.inspect())
    assert {("TAMPERED", "leaf", "2025-02", index) for index in range(12)} <= found
    assert {("TAMPERED", "checkpoint", "2025-02", size - 1) for size in (4, 8, 12)} <= found


def test_an_earlier_month_that_was_forgotten_is_found_by_the_next_one(log: SealedLog) -> None:
    """Also where the vault has forgotten it: February was signed on top of it."""
    log.attack(
        "DROP TABLE audit_logs_2025_01",
        *(f"DELETE FROM {table} WHERE month = '2025-01-01'" for table in EVIDENCE[1:4]),
    )
    shutil.rmtree(log.folder / "vault" / "anchors" / "2025-01")
    assert places(log.inspect()) == {("MISSING", "link", "2025-01", 4), ("MISSING", "head", None, 0)}


def test_an_anchor_that_the_vault_has_lost_is_found(log: SealedLog) -> None:
    (log.folder / "vault" / note_key(FEBRUARY, 8)).unlink()
    assert places(log.inspect()) == {("MISSING", "anchor", "2025-02", 7)}


@pytest.mark.parametrize("content", [b"x" * 127, b"x" * 128], ids=["short", "other"])
def test_anchored_leaves_that_were_changed_are_found(log: SealedLog, content: bytes) -> None:
    file = log.folder / "vault" / leaves_key(FEBRUARY, 4, 8)
    file.chmod(0o600)
    file.write_bytes(content)
    report = log.inspect()
    assert report.verdict is Verdict.TAMPERED
    assert {index for _, _, month, index in places(report) if month == "2025-02"} <= set(range(3, 8))


def test_a_note_that_was_changed_in_the_vault_is_found(log: SealedLog) -> None:
    file = log.folder / "vault" / note_key(FEBRUARY, 8)
    file.chmod(0o600)
    file.write_bytes(file.read_bytes().replace(b"\n8\n", b"\n9\n"))
    found = places(log.inspect())
    assert ("TAMPERED", "anchor", "2025-02", 7) in found


def test_another_public_key_verifies_nothing(log: SealedLog, tmp_path: Path) -> None:
    report = log.inspect([SigningKey.create(tmp_path / "other.key").public])
    assert report.verdict is Verdict.TAMPERED
    assert ("TAMPERED", "checkpoint", "2025-02", 11) in places(report)


def test_without_a_key_nothing_is_said(log: SealedLog) -> None:
    report = log.inspect([])
    assert (report.verdict, report.checked) == (Verdict.CANNOT_TELL, 0)


def test_an_emptied_database_is_missing_all_that_is_anchored(log: SealedLog) -> None:
    for table in EVIDENCE[:4]:
        log.attack(f"TRUNCATE {table}")
    report = log.inspect()
    assert report.verdict is Verdict.MISSING
    assert {("MISSING", "leaf", "2025-01", 0), ("MISSING", "leaf", "2025-02", 0)} <= places(report)


def test_an_empty_database_and_an_empty_vault_are_no_proof(log: SealedLog, tmp_path: Path) -> None:
    for table in (*EVIDENCE[:4], "audit_head_entries", "audit_heads", "audit_head_anchors"):
        log.attack(f"TRUNCATE {table}")
    report = log.inspect(vault=FolderVault(tmp_path))
    assert (report.verdict, report.checked) == (Verdict.CANNOT_TELL, 0)


def test_a_column_whose_name_hides_another_is_found(log: SealedLog) -> None:
    """`{"reason":"r","request_id":"r"}` written as one column has the same bytes."""
    with psycopg.connect(log.url) as connection:
        connection.execute("""ALTER TABLE audit_logs RENAME COLUMN reason TO "reason"":""r"",""x" """)
    try:
        assert log.inspect().verdict is Verdict.TAMPERED
    finally:
        with psycopg.connect(log.url) as connection:
            connection.execute("""ALTER TABLE audit_logs RENAME COLUMN "reason"":""r"",""x" TO reason""")


# Seen red with the types of the columns not looked at: VALID, while every SELECT showed the forgery.
@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE DOMAIN told AS text",
         "ALTER TABLE audit_logs ALTER COLUMN answer_text TYPE told USING 'It measured nothing at all.'"],
        ["ALTER TABLE audit_logs ALTER COLUMN filters TYPE json USING filters::text::json"],
    ],
    ids=["a type of its own", "json"],
)  # fmt: skip
def test_a_column_of_a_type_that_shows_two_values_is_found(log: SealedLog, statements: list[str]) -> None:
    log.attack("DROP VIEW IF EXISTS audit_questions, audit_low_confidence, audit_feedback", *statements)
    try:
        report = log.inspect()
    finally:
        log.attack(
            "ALTER TABLE audit_logs ALTER COLUMN answer_text TYPE text",
            "ALTER TABLE audit_logs ALTER COLUMN filters TYPE jsonb USING filters::text::jsonb",
        )
    assert any("of the type" in finding.words for finding in report.findings)
    assert report.verdict is Verdict.TAMPERED


def test_a_view_in_place_of_the_log_is_no_log(log: SealedLog) -> None:
    """It could show a verifier what was, and everybody else what should have been."""
    log.attack(
        "ALTER TABLE audit_logs RENAME TO audit_logs_as_they_were",
        "CREATE VIEW audit_logs AS SELECT * FROM audit_logs_as_they_were",
        "GRANT SELECT ON audit_logs TO affidavit_auditor",
    )
    try:
        report = log.inspect()
        assert (report.verdict, report.checked) == (Verdict.MISSING, 0)
        assert {("MISSING", "month", "2025-01", 0), ("MISSING", "month", "2025-02", 0)} <= places(report)
    finally:
        log.attack("DROP VIEW audit_logs", "ALTER TABLE audit_logs_as_they_were RENAME TO audit_logs")


def test_rows_that_a_policy_hides_are_no_silence(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute("ALTER TABLE audit_logs ENABLE ROW LEVEL SECURITY")
    try:
        with pytest.raises(Exception, match="row-level security"):
            log.inspect()
    finally:
        with psycopg.connect(log.url) as connection:
            connection.execute("ALTER TABLE audit_logs DISABLE ROW LEVEL SECURITY")


def test_defaults_of_the_role_do_not_change_how_rows_are_read(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        (name,) = connection.execute("SELECT current_database()").fetchone() or ("",)
        for setting in ("bytea_output = 'escape'", "extra_float_digits = -5", "timezone = 'Asia/Tokyo'"):
            connection.execute(f'ALTER ROLE affidavit_auditor IN DATABASE "{name}" SET {setting}'.encode())
    assert log.inspect().verdict is Verdict.VALID


def test_only_the_records_asked_for_are_recomputed(log: SealedLog, at: str) -> None:
    noon = datetime(2025, 2, 10, 12, tzinfo=UTC)
    log.attack(f"UPDATE audit_logs SET answer_text = 'else' WHERE {at}")
    before = Period(noon, noon + timedelta(minutes=LEAF))
    after = Period(noon, noon + timedelta(minutes=LEAF + 1))
    assert (log.inspect(period=before).verdict, log.inspect(period=before).checked) == (Verdict.VALID, LEAF)
    assert places(log.inspect(period=after)) == {("TAMPERED", "row", "2025-02", LEAF)}


async def test_an_erased_record_is_proven_by_what_stands_for_it(log: SealedLog) -> None:
    await erase(log)
    report = log.inspect()
    assert (report.verdict, report.counted) == (
        Verdict.VALID,
        {"records were erased, and are proven": 1, "records wait for the sealer": 1},
    )
    assert await log.seal() == {}
    assert (log.inspect().verdict, log.inspect().checked) == (Verdict.VALID, 18)


async def test_an_erased_record_without_what_stands_for_it_cannot_be_told(log: SealedLog) -> None:
    await erase(log)
    log.attack("DELETE FROM audit_erasures")
    assert places(log.inspect()) == {("CANNOT_TELL", "row", "2025-02", LEAF)}


# Seen red with commitments taken whatever columns they name.
@pytest.mark.parametrize("column", ["outcome", "answer_text"])
async def test_what_stands_for_an_erased_record_cannot_be_changed(
    log: SealedLog, at: str, column: str
) -> None:
    """Nor can it stand before a column that was not erased."""
    (value,) = ask(log, f"SELECT {column} FROM audit_logs WHERE {at}")
    await erase(log)
    log.attack(
        "UPDATE audit_erasures SET commitments = commitments || jsonb_build_object(%(name)s::text, %(value)s::text)",
        name=column, value=value,
    )  # fmt: skip
    if column == "outcome":
        log.attack(f"UPDATE audit_logs SET outcome = 'refused' WHERE {at}")
    assert places(log.inspect()) == {("TAMPERED", "row", "2025-02", LEAF)}


# Seen red with an erasure accepted whoever signed it: a superuser empties a record, and says that it was erased.
@pytest.mark.parametrize("key", [STRANGER, None], ids=["a key of their own", "another's signature"])
async def test_a_record_that_was_emptied_without_the_signing_key_is_found(
    log: SealedLog, at: str, key: SigningKey | None
) -> None:
    await erase(log)
    assert await log.seal() == {}
    other = f"log_id = '{log.log_id(FEBRUARY, LEAF + 1)}'"
    forge(log, other, LEAF + 1, key)
    assert places(log.inspect()) == {("TAMPERED", "row", "2025-02", LEAF + 1)}


# Seen red with an erasure accepted that no record of the log tells of.
async def test_an_erasure_without_its_record_is_found(log: SealedLog, at: str) -> None:
    """Even by who has the signing key."""
    forge(log, at, LEAF, log.key)
    assert places(log.inspect()) == {("TAMPERED", "row", "2025-02", LEAF)}


# Seen red with an erasure accepted whether or not its record is sealed.
async def test_an_erasure_whose_record_nobody_sealed_is_found(log: SealedLog) -> None:
    await erase(log, clock=lambda: now() - timedelta(minutes=2))
    (_, record) = sorted(places(log.inspect()), key=str)
    assert places(log.inspect()) - {record} == {("UNSEALED", "row", "2025-02", LEAF)}
    assert record[:2] == ("UNSEALED", "row")


async def test_an_erasure_whose_record_was_deleted_is_found(log: SealedLog) -> None:
    await erase(log)
    assert await log.seal() == {}
    log.attack("DELETE FROM audit_logs WHERE endpoint = 'affidavit audit erase'")
    ((verdict, what, month, _),) = places(log.inspect())
    assert (verdict, what) == ("MISSING", "row") and month != "2025-02"


def ask(log: SealedLog, query: str) -> tuple[object, ...]:
    with psycopg.connect(log.url) as connection:
        return connection.execute(query.encode()).fetchone() or ()


async def erase(log: SealedLog, clock: Clock = now) -> None:
    with psycopg.connect(log.url) as connection:
        make_months(connection, [now().date()])
    done = await log.erase(ErasureTarget(query_id=UUID(log.rows[FEBRUARY, LEAF]["query_id"])), clock=clock)
    assert (done.records, done.left) == (1, [])


def forge(log: SealedLog, at: str, leaf: int, key: SigningKey | None) -> None:
    """What a superuser does who wants a record to be gone: all of it right but the signature, or its event."""
    row = log.rows[FEBRUARY, leaf]
    emptied = ", ".join(f"{name} = NULL" for name in [*PERSONAL, "salt"])
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        event, erased_at = (
            connection.execute("SELECT event, erased_at FROM audit_erasures").fetchone()
            or (uuid4(), now())
        )  # fmt: skip
        erasure_id = uuid4()
        signer = key or log.key
        text = erasure_text(
            erasure_id, UUID(row["log_id"] if key else log.log_id(FEBRUARY, LEAF)), event, erased_at
        )
        connection.execute(
            f"UPDATE audit_logs SET {emptied}, erased_at = %s WHERE {at}".encode(), (erased_at,)
        )
        connection.execute(
            "INSERT INTO audit_erasures VALUES (%s, %s, %s, '2025-02-01', %s, %s, 'a wish', %s, %s, %s)",
            (
                erasure_id, row["log_id"], row["query_id"], Jsonb(commitments(row)), erased_at, event, signer.key_id,
                base64.b64encode(signer.sign(text)).decode(),
            ),
        )  # fmt: skip
