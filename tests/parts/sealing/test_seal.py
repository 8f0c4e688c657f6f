"""Every committed row gets one place in its month's tree, and no head is signed that does not extend the last one."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from audit.checking.status import read_log_gauges
from audit.errors import VaultError, WrongVaultError
from audit.proof.checkpoint import Checkpoint, open_note, sign_note
from audit.proof.keys import SigningKey, public_file, read_public_keys
from audit.proof.merkle import Frontier
from audit.proof.record import HashedRow, bytes_of
from audit.proof.row_signature import signed
from audit.sealing import anchors, log_tables
from audit.sealing import sealer as sealer_module
from audit.sealing.sealer import FULL_SHARE, Sealer, SealingResult
from audit.sealing.tree_growth import TreeGrowth
from audit.vault import FolderVault
from engine import wiring
from engine.errors import ConfigurationError
from engine.storage.database import Database, open_pool
from engine.wiring import now
from tests.build import head
from tests.command_line import affidavit
from tests.conftest import CAMPAIGN_ROUNDS, ROOT
from tests.databases import empty_database, migrated_database
from tests.logs.recorded import make_months
from tests.logs.writers import KEY

NOVEMBER, OCTOBER, AUGUST = date(2026, 11, 1), date(2026, 10, 1), date(2026, 8, 1)
AT = datetime(2026, 11, 18, 14, tzinfo=UTC)
WAIT_S = 60  # four sealers, 75 rows and a busy machine
ROUNDS = CAMPAIGN_ROUNDS or 2
KILLS = 3  # in each round
WRITERS, SEALERS = 4, 3
DELAY_S = 10.0

_INSERT = """
INSERT INTO audit_logs (
    log_id, query_id, user_query_text, timestamp, endpoint, outcome, schema_version, leaf_hash, signature)
VALUES (%(log_id)s, %(log_id)s, '', %(at)s, 'test', 'refused', 4, %(leaf_hash)s, %(signature)s)
"""


@pytest.fixture(scope="module")
def template(database: Database) -> Iterator[str]:
    """A migrated database to copy: evidence cannot be cleared away, so each test has a log of its own."""
    with migrated_database(database) as made:
        with psycopg.connect(made.url) as inside:
            make_months(inside, (AUGUST, OCTOBER, NOVEMBER, now().date()))
        yield str(conninfo_to_dict(made.url)["dbname"])


@pytest.fixture
def url(database: Database, template: str) -> Iterator[str]:
    with empty_database(database, template) as made:
        yield made


@pytest.fixture
async def pool(url: str) -> AsyncIterator[AsyncConnectionPool]:
    async with open_pool(url, "affidavit_sealer", size_max=8, wait_s=5) as opened_pool:
        yield opened_pool


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """Its public file has the key that the rows are signed with, too."""
    path = tmp_path / "signing.key"
    SigningKey.create(path)
    public_file(path).write_text(f"{KEY.public}\n{public_file(path).read_text()}")
    return path


@pytest.fixture
def vault(tmp_path: Path) -> FolderVault:
    return FolderVault(tmp_path / "vault")


Start = Callable[..., Sealer]


@pytest.fixture
def start(pool: AsyncConnectionPool, key_file: Path, vault: FolderVault) -> Start:
    """A sealer that has just started, with the key of the file as it is now."""

    def started(**changed: Any) -> Sealer:
        given: dict[str, Any] = {
            "pool": pool, "key": SigningKey.load(key_file), "vault": vault, "seal_every_s": 0.01, "anchor_every_s": 0.02,
            "public_keys": lambda: read_public_keys(public_file(key_file)), "clock": now, "monotonic": lambda: 0.0,
        }  # fmt: skip
        return Sealer(**(given | changed))

    return started


def signed_row(log_id: UUID, at: datetime) -> dict[str, Any]:
    """A row as the engine writes it, as far as a sealer can tell."""
    leaf = sha256(str(log_id).encode()).digest()
    row = json.loads(signed(HashedRow('{"a":0}', leaf), log_id, KEY).text)
    return {"log_id": log_id, "at": at, "leaf_hash": leaf, "signature": bytes_of(row["signature"])}


def write(url: str, *moments: datetime) -> list[UUID]:
    log_ids = [uuid4() for _ in moments]
    with psycopg.connect(url) as connection:
        for log_id, at in zip(log_ids, moments, strict=True):
            connection.execute(_INSERT, signed_row(log_id, at))
    return log_ids


def seconds(count: int, first: datetime = AT) -> list[datetime]:
    return [first + timedelta(seconds=number) for number in range(count)]


def fetch(url: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode(), values).fetchall()


def tamper(url: str, *statements: str) -> None:
    """What a superuser can do, and nobody else."""
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        for statement in statements:
            connection.execute(statement.encode())


def sealed_ids(url: str, month: date = NOVEMBER) -> list[UUID]:
    return [
        row[0]
        for row in fetch(url, "SELECT log_id FROM audit_leaves WHERE month = %s ORDER BY leaf_index", month)
    ]


def checkpoints(url: str, key_file: Path) -> list[Checkpoint]:
    keys = read_public_keys(public_file(key_file))
    notes = fetch(url, "SELECT note FROM audit_checkpoints ORDER BY month, tree_size")
    return [open_note(note, keys) for (note,) in notes]


async def until(is_so: Callable[[], bool]) -> None:
    """What other processes and tasks write can only be looked for."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110  nobody rings a bell
            await asyncio.sleep(0.02)


def check_all(url: str, key_file: Path) -> None:
    """Each row once, indexes without a gap, every head the head of its leaves, every month linked to the last one."""
    (found,) = fetch(
        url, "SELECT (SELECT count(*) FROM audit_logs), (SELECT count(*) FROM audit_leaves),"
        " (SELECT count(*) FROM audit_logs l JOIN audit_leaves s USING (log_id, leaf_hash)"
        "  WHERE s.month = date_trunc('month', l.timestamp AT TIME ZONE 'UTC'))",
    )  # fmt: skip
    assert found[0] == found[1] == found[2]
    leaves: dict[date, list[bytes]] = {}
    for month, index, leaf in fetch(
        url, "SELECT month, leaf_index, leaf_hash FROM audit_leaves ORDER BY 1, 2"
    ):
        assert index == len(leaves.setdefault(month, []))
        leaves[month].append(leaf)
    signed_ones = checkpoints(url, key_file)
    assert {one.month: one.size for one in signed_ones} == {
        month: len(each) for month, each in leaves.items()
    }
    for one in signed_ones:
        assert one.root == head(leaves[one.month][: one.size])
        assert one.previous is None or one.previous.root == head(
            leaves[one.previous.month][: one.previous.size]
        )


async def test_rows_are_sealed_by_time_and_every_month_links_to_the_latest_earlier_one(
    url: str, start: Start, key_file: Path
) -> None:
    november = write(url, AT + timedelta(seconds=2), AT, AT + timedelta(seconds=1))
    august = write(url, datetime(2026, 8, 1, tzinfo=UTC), datetime(2026, 8, 31, 23, 59, 59, 999999, UTC))
    assert (await start().seal_once()).rows == 5
    assert sealed_ids(url) == [november[1], november[2], november[0]]
    assert sealed_ids(url, AUGUST) == august
    first, second = checkpoints(url, key_file)
    assert (first.month, first.size, first.previous) == (AUGUST, 2, None)
    assert (second.month, second.size, second.previous) == (NOVEMBER, 3, first.link)
    check_all(url, key_file)


async def test_rows_of_one_moment_are_sealed_in_the_order_of_their_ids(url: str, start: Start) -> None:
    log_ids = write(url, *[AT] * 20)
    await start().seal_once()
    assert sealed_ids(url) == sorted(log_ids)


async def test_a_second_look_signs_nothing(url: str, start: Start, key_file: Path) -> None:
    write(url, AT)
    sealer = start()
    await sealer.seal_once()
    assert await sealer.seal_once() == SealingResult(0, 0)
    assert await start().seal_once() == SealingResult(0, 0)
    assert len(checkpoints(url, key_file)) == 1


# Seen red with a cursor: `_find` from the last sealed time and id on.
async def test_what_commits_later_with_an_earlier_time_and_id_is_sealed_all_the_same(
    url: str, start: Start, key_file: Path
) -> None:
    sealer = start()
    with psycopg.connect(url) as slow:
        slow.execute(_INSERT, signed_row(UUID(int=1), AT))
        (later,) = write(url, AT + timedelta(seconds=5))
        await sealer.seal_once()
        assert sealed_ids(url) == [later]
        slow.commit()
    await sealer.seal_once()
    assert sealed_ids(url) == [later, UUID(int=1)]
    check_all(url, key_file)


async def test_a_rolled_back_row_takes_no_place(url: str, start: Start, key_file: Path) -> None:
    with psycopg.connect(url) as gone:
        gone.execute(_INSERT, signed_row(uuid4(), AT))
        write(url, AT)
        gone.rollback()
    await start().seal_once()
    check_all(url, key_file)


async def test_batches_and_chunks_leave_no_seam(
    url: str, start: Start, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealer_module, "BATCH_ROWS", 7)
    monkeypatch.setattr(log_tables, "CHUNK_LEAVES", 4)
    monkeypatch.setattr(anchors, "ANCHOR_LEAVES", 10)
    sealer = start()
    write(url, *seconds(45), *seconds(10, datetime(2026, 10, 31, 23, 59, 55, tzinfo=UTC)))
    assert (await sealer.seal_once()).rows == 55
    write(url, *seconds(13, AT - timedelta(days=1)))
    assert (await start().seal_once()).rows == 13
    write(url, *seconds(3))
    assert (await sealer.seal_once()).rows == 3
    check_all(url, key_file)
    sizes = [one.size for one in checkpoints(url, key_file) if one.month == OCTOBER]
    assert sizes == [5]


async def test_late_rows_are_found_by_the_full_search_which_takes_a_twentieth_of_the_time(
    url: str, start: Start
) -> None:
    elapsed = {"s": 100.0, "step": 1.0}

    def monotonic() -> float:
        elapsed["s"] += elapsed["step"]
        return elapsed["s"]

    sealer = start(monotonic=monotonic)
    await sealer._round()  # the first is a full one, and its one search takes a second
    elapsed["step"] = 0.0
    (late,) = write(url, now() - timedelta(hours=1))
    (fresh,) = write(url, now())
    await sealer._round()
    sealed = {row[0] for row in fetch(url, "SELECT log_id FROM audit_leaves")}
    assert sealed == {fresh}
    elapsed["s"] += FULL_SHARE
    await sealer._round()
    sealed = {row[0] for row in fetch(url, "SELECT log_id FROM audit_leaves")}
    assert sealed == {fresh, late}


async def test_a_row_without_a_proper_hash_holds_nobody_up(url: str, start: Start) -> None:
    write(url, AT)
    (good,) = write(url, AT + timedelta(seconds=1))
    tamper(url, f"UPDATE audit_logs SET leaf_hash = '\\x00' WHERE log_id <> '{good}'")
    sealer = start()
    assert (await sealer.seal_once()).rows == 1
    assert sealed_ids(url) == [good]
    assert sealer.failures == {}


CHANGES = {
    "a leaf changed": "UPDATE audit_leaves SET leaf_hash = sha256('other') WHERE month = '2026-11-01' AND leaf_index = 1",
    "two leaves swapped": "UPDATE audit_leaves a SET leaf_hash = b.leaf_hash FROM audit_leaves b"
    " WHERE a.month = '2026-11-01' AND b.month = a.month AND a.leaf_index + b.leaf_index = 1",
    "a leaf gone": "DELETE FROM audit_leaves WHERE month = '2026-11-01' AND leaf_index = 1",
    "the last leaf gone": "DELETE FROM audit_leaves WHERE month = '2026-11-01' AND leaf_index = 3",
    "all leaves gone": "DELETE FROM audit_leaves WHERE month = '2026-11-01'",
    "a leaf more": "INSERT INTO audit_leaves SELECT month, 4, gen_random_uuid(), leaf_hash, sealed_at FROM audit_leaves"
    " WHERE month = '2026-11-01' AND leaf_index = 3",
    "the last checkpoint gone": "DELETE FROM audit_checkpoints WHERE month = '2026-11-01' AND tree_size = 4",
    "all checkpoints gone": "DELETE FROM audit_checkpoints WHERE month = '2026-11-01'",
    "another month's checkpoint": "UPDATE audit_checkpoints SET note = (SELECT note FROM audit_checkpoints"
    " WHERE month = '2026-10-01') WHERE month = '2026-11-01' AND tree_size = 4",
    "an older checkpoint": "UPDATE audit_checkpoints SET note = (SELECT note FROM audit_checkpoints"
    " WHERE month = '2026-11-01' AND tree_size = 2) WHERE month = '2026-11-01' AND tree_size = 4",
    "a checkpoint unreadable": "UPDATE audit_checkpoints SET note = note || ' ' WHERE month = '2026-11-01'",
}  # fmt: skip
SEEN_ONLY_AT_START = {
    "a leaf changed",
    "two leaves swapped",
    "a leaf gone",
    "the last leaf gone",
    "all leaves gone",
}


async def two_months(url: str, sealer: Sealer) -> None:
    write(url, *seconds(2, datetime(2026, 10, 3, tzinfo=UTC)), *seconds(2))
    await sealer.seal_once()
    write(url, *seconds(2, AT + timedelta(minutes=1)))
    await sealer.seal_once()


# Seen red with `_catch_up` that believes the stored checkpoint.
@pytest.mark.parametrize("change", CHANGES)
async def test_on_changed_evidence_nothing_is_signed_and_other_months_go_on(
    change: str, url: str, start: Start
) -> None:
    await two_months(url, start())
    tamper(url, CHANGES[change])
    stored = fetch(url, "SELECT month, tree_size, note FROM audit_checkpoints ORDER BY 1, 2")
    sealer = start()
    write(url, AT + timedelta(hours=1), datetime(2026, 10, 3, 1, tzinfo=UTC))
    sealed = await sealer.seal_once()
    assert "2026-11" in sealer.failures[NOVEMBER] or "leaves" in sealer.failures[NOVEMBER]
    added = set(fetch(url, "SELECT month, tree_size, note FROM audit_checkpoints")) - set(stored)
    assert sealed.rows == 1
    assert [(month, size) for month, size, _ in added] == [(OCTOBER, 3)]
    assert (await sealer.seal_once()).rows == 0


async def test_under_another_name_of_the_log_nothing_is_signed(url: str, start: Start) -> None:
    """Its own vault is then another log's."""
    await two_months(url, start())
    tamper(url, "UPDATE audit_origin SET origin = 'affidavit/other'")
    write(url, AT + timedelta(hours=1))
    statement = "SELECT month, tree_size, note FROM audit_checkpoints ORDER BY 1, 2"
    stored = fetch(url, statement)
    with pytest.raises(WrongVaultError):
        await start().seal_once()
    assert fetch(url, statement) == stored


@pytest.mark.parametrize("change", sorted(CHANGES.keys() - SEEN_ONLY_AT_START))
async def test_a_running_sealer_notices_that_its_last_checkpoint_is_another_one(
    change: str, url: str, start: Start
) -> None:
    sealer = start()
    await two_months(url, sealer)
    tamper(url, CHANGES[change])
    write(url, AT + timedelta(hours=1))
    assert (await sealer.seal_once()).rows == 0
    assert set(sealer.failures) == {NOVEMBER}


async def test_a_failure_names_month_and_size_and_is_said(
    url: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    await two_months(url, start())
    tamper(url, CHANGES["a leaf changed"])
    write(url, AT + timedelta(hours=1))
    sealer = start()
    await sealer.seal_once()
    assert sealer.failures == {NOVEMBER: "2026-11: the first 4 leaves are not those that were signed"}
    assert caplog.text.count(sealer.failures[NOVEMBER]) == 1
    await sealer.seal_once()
    assert caplog.text.count(sealer.failures[NOVEMBER]) == 1


# Seen red with the second path taken out of `_extend`.
async def test_a_flipped_bit_in_memory_is_never_signed(
    url: str, start: Start, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealer = start()
    write(url, *seconds(5))
    await sealer.seal_once()
    whole = Frontier.append

    def flipped(self: Frontier, leaf: bytes) -> None:
        whole(self, bytes([leaf[0] ^ 1]) + leaf[1:])

    write(url, AT + timedelta(hours=1))
    with monkeypatch.context() as faulty:
        faulty.setattr(Frontier, "append", flipped)
        assert (await sealer.seal_once()).rows == 0
    assert "do not agree" in sealer.failures[NOVEMBER]
    assert len(checkpoints(url, key_file)) == 1
    assert (await start().seal_once()).rows == 1
    check_all(url, key_file)


# Seen red with a batch that is bounded only by where the walk stands: October's row got a place in November's tree.
async def test_a_row_of_an_earlier_month_that_commits_meanwhile_is_sealed_in_its_own(
    url: str, start: Start, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuild = TreeGrowth._rebuild

    async def meanwhile(self: TreeGrowth, month: date) -> Any:
        if month == NOVEMBER:
            write(url, AT - timedelta(days=31))
        return await rebuild(self, month)

    monkeypatch.setattr(TreeGrowth, "_rebuild", meanwhile)
    write(url, AT)
    sealer = start()
    await sealer.seal_once()
    await sealer.seal_once()
    check_all(url, key_file)


@contextlib.contextmanager
def no_lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as without:
        for name in ("TRY_LOCK", "WAIT_FOR_LOCK"):
            without.setattr(f"audit.sealing.sealer.{name}", "SELECT %s::text IS NOT NULL")
        yield


# Seen red without the lock and with the primary keys dropped: the tree had two leaves of one index.
@pytest.mark.parametrize("has_lock", [True, False])
async def test_sealers_that_race_give_each_row_one_place(
    has_lock: bool, url: str, start: Start, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock, all that keeps them apart are the primary keys."""
    monkeypatch.setattr(sealer_module, "BATCH_ROWS", 3)
    sealers = [start() for _ in range(4)]
    stop = asyncio.Event()
    with contextlib.nullcontext() if has_lock else no_lock(monkeypatch):
        running = [asyncio.create_task(sealer.run(stop)) for sealer in sealers]
        written: list[UUID] = []
        for number in range(25):
            at = AT + timedelta(seconds=number % 7)
            written += await asyncio.to_thread(write, url, at, at - timedelta(days=31), at)
        await until(lambda: len(sealed_ids(url)) + len(sealed_ids(url, OCTOBER)) == len(written))
        stop.set()
        await asyncio.gather(*running)
    assert [sealer.failures for sealer in sealers] == [{}] * 4
    await start().seal_once()
    check_all(url, key_file)


async def test_after_a_rotation_old_and_new_sealers_go_on_with_one_another_s_work(
    url: str, start: Start, key_file: Path
) -> None:
    old = start()
    write(url, AT)
    await old.seal_once()
    SigningKey.rotate(key_file)
    new = start()
    for sealer in (new, old, new):
        write(url, AT + timedelta(hours=1))
        assert (await sealer.seal_once()).rows == 1
        assert sealer.failures == {}
    check_all(url, key_file)
    keys = fetch(url, "SELECT public_key FROM audit_keys")
    known = {str(key) for key in read_public_keys(public_file(key_file))}
    assert {key for (key,) in keys} == known - {str(KEY.public)}


async def test_a_head_signed_by_a_stranger_is_not_extended(url: str, start: Start, tmp_path: Path) -> None:
    write(url, *seconds(2))
    stranger = SigningKey.create(tmp_path / "stranger.key")
    await start(key=stranger, public_keys=lambda: [KEY.public, stranger.public]).seal_once()
    write(url, AT + timedelta(hours=1))
    sealer = start()
    assert (await sealer.seal_once()).rows == 0
    assert "not among the given ones" in sealer.failures[NOVEMBER]


# Seen red with an unknown key ending the month until the next start.
async def test_a_key_that_was_rotated_elsewhere_is_trusted_as_soon_as_it_is_known(
    url: str, start: Start, key_file: Path, tmp_path: Path
) -> None:
    write(url, *seconds(2))
    rotated = SigningKey.create(tmp_path / "rotated.key")
    await start(key=rotated, public_keys=lambda: [KEY.public, rotated.public]).seal_once()
    write(url, AT + timedelta(hours=1))
    known = list(read_public_keys(public_file(key_file)))
    sealer = start(public_keys=lambda: known)
    assert (await sealer.seal_once()).rows == 0
    known.append(rotated.public)
    assert (await sealer.seal_once()).rows == 1
    assert sealer.failures == {}


async def test_a_forged_previous_month_is_not_linked_to(
    url: str, start: Start, key_file: Path, tmp_path: Path
) -> None:
    write(url, datetime(2026, 10, 3, tzinfo=UTC))
    await start().seal_once()
    stranger = SigningKey.create(tmp_path / "stranger.key")
    forged = sign_note(checkpoints(url, key_file)[0], stranger)
    tamper(url, f"UPDATE audit_checkpoints SET note = '{forged}'")
    write(url, AT)
    sealer = start()
    assert (await sealer.seal_once()).rows == 0
    assert "2026-10" in sealer.failures[NOVEMBER]


async def test_the_vault_gets_the_notes_and_the_leaves_since_the_last_one(
    url: str, start: Start, vault: FolderVault, key_file: Path
) -> None:
    await two_months(url, start())
    assert vault.keys("anchors/") == [
        "anchors/2026-10/000000000000-000000000002.leaves", "anchors/2026-10/000000000002.note",
        "anchors/2026-11/000000000000-000000000002.leaves", "anchors/2026-11/000000000002-000000000004.leaves",
        "anchors/2026-11/000000000002.note", "anchors/2026-11/000000000004.note",
    ]  # fmt: skip
    leaves = fetch(url, "SELECT leaf_hash FROM audit_leaves WHERE month = '2026-11-01' ORDER BY leaf_index")
    assert vault.get("anchors/2026-11/000000000002-000000000004.leaves") == b"".join(
        leaf for (leaf,) in leaves[2:]
    )
    stored = fetch(
        url, "SELECT vault_key, note FROM audit_anchors JOIN audit_checkpoints USING (month, tree_size)"
    )
    assert len(stored) == 3
    assert all(vault.get(name).decode() == note for name, note in stored)


async def test_an_anchor_that_was_put_and_not_noted_is_put_again(
    url: str, start: Start, vault: FolderVault
) -> None:
    """A sealer that was killed between the two: the next one writes the same bytes."""
    await two_months(url, start())
    stored = vault.keys()
    tamper(url, "DELETE FROM audit_anchors WHERE tree_size = 4")
    assert await start().seal_once() == SealingResult(0, 1)
    assert vault.keys() == stored


async def test_leaves_that_were_never_signed_are_not_anchored(
    url: str, start: Start, vault: FolderVault
) -> None:
    await two_months(url, start())
    stored = vault.keys()
    tamper(url, "DELETE FROM audit_anchors WHERE tree_size = 4", CHANGES["a leaf changed"])
    sealer = start()
    assert (await sealer.seal_once()).anchors == 0
    assert set(sealer.failures) == {NOVEMBER}
    assert vault.keys() == stored


async def test_another_history_in_the_vault_is_called_a_fork(
    url: str, start: Start, vault: FolderVault
) -> None:
    write(url, AT)
    vault.put("anchors/2026-11/000000000001.leaves", b"")
    vault.put("anchors/2026-11/000000000000-000000000001.leaves", b"other")
    sealer = start()
    assert (await sealer.seal_once()).anchors == 0
    assert "two histories" in sealer.failures[NOVEMBER]


# Seen red without `_compare_with_vault`: it signed a second history, of other sizes, that no key of the vault forbade.
async def test_an_older_copy_of_the_database_is_not_sealed_into_a_second_history(
    database: Database, url: str, start: Start, pool: AsyncConnectionPool
) -> None:
    write(url, *seconds(3))
    await start().seal_once()
    before = {
        table: fetch(url, f"SELECT * FROM {table}")
        for table in ("audit_leaves", "audit_checkpoints", "audit_anchors")
    }
    write(url, *seconds(2, AT + timedelta(hours=1)))
    await start().seal_once()
    tamper(url, *(f"DELETE FROM {table} WHERE true" for table in before))
    tamper(url, "DELETE FROM audit_logs WHERE timestamp >= '2026-11-18 15:00Z'")
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        for table, rows in before.items():
            for row in rows:
                marks = ", ".join(["%s"] * len(row))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})".encode(), row)
    write(url, *seconds(4, AT + timedelta(hours=2)))
    sealer = start()
    assert (await sealer.seal_once()).rows == 0
    assert "older copy" in sealer.failures[NOVEMBER]


async def test_while_the_database_is_away_it_says_so_once_and_then_goes_on(
    database: Database, url: str, start: Start, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(url, AT)
    async with open_pool(url, "affidavit_sealer", size_max=2, wait_s=0.1) as away_soon:
        stop = asyncio.Event()
        running = asyncio.create_task(start(pool=away_soon).run(stop))
        await until(lambda: bool(sealed_ids(url)))
        with shut(database, url):
            await until(lambda: "Nothing can be sealed" in caplog.text)
        write(url, AT)
        await until(lambda: len(sealed_ids(url)) == 2)
        stop.set()
        await running
    assert "again" in caplog.text
    assert len({record.message for record in caplog.records if "Nothing can" in record.message}) <= 2
    check_all(url, key_file)


# Seen red with the log's origin kept before the commit: the key was never registered.
async def test_a_key_whose_registration_was_lost_at_the_commit_is_registered_again(
    url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealer = start()

    @contextlib.asynccontextmanager
    async def lost(pool: AsyncConnectionPool) -> AsyncIterator[AsyncConnection]:
        async with whole(pool) as connection:
            yield connection
            raise psycopg.OperationalError

    whole = log_tables.transaction
    with monkeypatch.context() as patched:
        patched.setattr(log_tables, "transaction", lost)
        with pytest.raises(psycopg.OperationalError):
            await sealer.seal_once()
    assert fetch(url, "SELECT key_id FROM audit_keys") == []
    await sealer.seal_once()
    assert fetch(url, "SELECT key_id FROM audit_keys") == [(sealer.key.public.key_id,)]


async def test_a_stop_seals_and_anchors_what_is_left_and_does_not_wait_for_a_database_that_is_gone(
    database: Database, url: str, start: Start, vault: FolderVault
) -> None:
    write(url, AT)
    stop = asyncio.Event()
    stop.set()
    await start(seal_every_s=60.0).run(stop)
    assert len(sealed_ids(url)) == 1
    assert vault.keys("anchors/2026-11/")
    async with open_pool(url, "affidavit_sealer", size_max=2, wait_s=0.1) as gone:
        with shut(database, url):
            async with asyncio.timeout(WAIT_S):
                await start(pool=gone).run(stop)


class _BrokenVault(FolderVault):
    def put(self, key: str, content: bytes) -> str:
        raise VaultError(key)


async def test_a_vault_that_fails_is_counted_and_what_it_does_not_hold_grows_older(
    database: Database, url: str, start: Start, tmp_path: Path
) -> None:
    write(url, AT)
    stop = asyncio.Event()
    stop.set()
    sealer = start(vault=_BrokenVault(tmp_path / "broken"))
    await sealer.run(stop)
    assert (sealer.vault_errors, len(sealed_ids(url))) == (1, 1)
    read = Database(url, database.settings).read
    async with open_pool(url, "affidavit_engine", size_max=2, wait_s=5) as engine:
        waiting = await read_log_gauges(engine, read, None, NOVEMBER, 0)
        assert waiting.unanchored_age_s > 0
        assert await start().seal_once() == SealingResult(0, 1)
        assert (await read_log_gauges(engine, read, None, NOVEMBER, 0)).unanchored_age_s == 0


# Transactions of random length that end with a commit, a roll back or a row that comes hours late. Says what it
# committed, and when, until its input ends.
WRITER = """
import random, select, sys, time, uuid
from datetime import UTC, datetime, timedelta
import psycopg
from tests.parts.sealing.test_seal import signed_row

url, insert, seed = sys.argv[1:]
chance = random.Random(int(seed))
with psycopg.connect(url) as connection:
    while not select.select([sys.stdin], [], [], 0)[0]:
        late = timedelta(hours=chance.choice([0, 0, 0, 0, 2, 30 * 24]))
        rows = []
        for _ in range(chance.randint(1, 4)):
            rows.append(uuid.UUID(int=chance.getrandbits(128), version=4))
            connection.execute(insert, signed_row(rows[-1], datetime.now(UTC) - late))
            time.sleep(chance.choice([0, 0, 0.01, 0.1, chance.uniform(0, 2)]))
        if chance.random() < 0.1:
            connection.rollback()
            continue
        connection.commit()
        for row in rows:
            print(row, time.time(), flush=True)
"""

# A sealer as `affidavit audit seal` runs it, without the engine, whose import takes longer than most lives here: three
# that are killed before they begin seal nothing, and that would say nothing about the sealer.
SEALER = """
import asyncio, sys, time
from datetime import UTC, datetime
from pathlib import Path
from audit.proof.keys import SigningKey, public_file, read_public_keys
from audit.sealing.sealer import Sealer
from audit.vault import FolderVault
from engine.storage.database import open_pool

async def main(url, key_file, vault, every_s):
    async with open_pool(url, "affidavit_sealer", size_max=2, wait_s=5) as pool:
        sealer = Sealer(pool, SigningKey.load(key_file), lambda: read_public_keys(public_file(key_file)), vault,
                        seal_every_s=every_s, anchor_every_s=every_s, clock=lambda: datetime.now(UTC),
                        monotonic=time.monotonic)
        await sealer.run(asyncio.Event())

asyncio.run(main(sys.argv[1], Path(sys.argv[2]), FolderVault(Path(sys.argv[3])), float(sys.argv[4])))
"""


def child(script: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


# Seen red with a cursor on the last sealed time and id: rows without a place.
@pytest.mark.campaign
def test_sealers_killed_at_any_moment_miss_nothing_and_are_not_late(
    url: str, key_file: Path, tmp_path: Path
) -> None:
    chance = random.Random(7)
    with psycopg.connect(url) as connection:
        for month in (now().date(), (now() - timedelta(days=30)).date()):
            connection.execute("SELECT audit_make_month(%s)", (month,))

    def sealer() -> "subprocess.Popen[str]":
        return child(SEALER, url, key_file, tmp_path / "vault", chance.choice([0.01, 0.05, 1, 5]))

    writers = [child(WRITER, url, _INSERT, seed) for seed in range(WRITERS)]
    sealers = [sealer() for _ in range(SEALERS)]
    try:
        for _ in range(ROUNDS * KILLS):
            time.sleep(chance.uniform(0.2, 2))
            number = chance.randrange(SEALERS)
            sealers[number].kill()
            sealers[number].communicate()
            sealers[number] = sealer()
        said = [writer.communicate("stop")[0] for writer in writers]
        committed = dict(line.split() for each in said for line in each.splitlines())
        deadline = time.monotonic() + DELAY_S
        while count_leaves(url) < len(committed) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        for process in (*writers, *sealers):
            process.kill()
            process.communicate()
    places = {str(log_id): at for log_id, at in fetch(url, "SELECT log_id, sealed_at FROM audit_leaves")}
    assert places.keys() == committed.keys()
    check_all(url, key_file)
    delay_s = max(places[log_id].timestamp() - float(at) for log_id, at in committed.items())
    print(f"{len(places)} rows, {ROUNDS * KILLS} kills, sealed after at most {delay_s:.2f} s")
    assert delay_s <= DELAY_S
    check_anchors(url, FolderVault(tmp_path / "vault"))


def count_leaves(url: str) -> int:
    return int(fetch(url, "SELECT count(*) FROM audit_leaves")[0][0])


def check_anchors(url: str, vault: FolderVault) -> None:
    """Together the anchored leaves of a month are the month's leaves."""
    stored = dict(
        fetch(url, "SELECT month, string_agg(leaf_hash, '' ORDER BY leaf_index) FROM audit_leaves GROUP BY 1")
    )
    names = vault.keys("anchors/")
    assert names
    for name in names:
        month = date.fromisoformat(f"{name.split('/')[1]}-01")
        place = name.rpartition("/")[2]
        if place.endswith(".leaves"):
            begin, end = map(int, place.removesuffix(".leaves").split("-"))
            assert vault.get(name) == stored[month][32 * begin : 32 * end]
        else:
            (row,) = fetch(
                url,
                "SELECT note FROM audit_checkpoints WHERE month = %s AND tree_size = %s",
                month,
                int(place[:12]),
            )
            assert vault.get(name).decode() == row[0]


@pytest.mark.usefixtures("key_file")
async def test_beside_a_server_rows_are_sealed_and_its_end_waits_for_no_database(
    database: Database, url: str, tmp_path: Path
) -> None:
    audit = database.settings.audit.model_copy(update={"seal_every_s": 0.05})
    settings = database.settings.model_copy(update={"data_dir": tmp_path, "audit": audit})
    write(url, AT)
    async with wiring.sealing(settings, Database(url, settings)):
        await until(lambda: count_leaves(url) == 1)
        write(url, AT)
    assert count_leaves(url) == 2
    assert FolderVault(tmp_path / "vault").keys("anchors/2026-11/000000000002.note")
    with shut(database, url), pytest.raises(ConfigurationError, match="affidavit_sealer"):
        async with wiring.sealing(settings, Database(url, settings)):
            """It is not there at the start, and that is said."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(wiring.sealing(settings, Database(url, settings)))
        stack.enter_context(shut(database, url))
        async with asyncio.timeout(WAIT_S):
            await stack.pop_all().aclose()


@pytest.mark.usefixtures("key_file")
def test_the_command_seals_what_is_there(url: str, tmp_path: Path) -> None:
    write(url, *seconds(3))
    command = ("audit", "seal", "--once", "--json")
    said = affidavit(*command, data_dir=tmp_path, DATABASE_URL=url)
    assert json.loads(said.stdout) == {"rows": 3, "anchors": 1, "stamps": 0, "failures": {}, "stopped": ""}
    tamper(url, CHANGES["a leaf changed"])
    write(url, AT)
    said = affidavit(*command, data_dir=tmp_path, DATABASE_URL=url)
    assert said.returncode == 1
    assert json.loads(said.stdout)["failures"] == {
        "2026-11": "2026-11: the first 3 leaves are not those that were signed"
    }


@pytest.mark.usefixtures("key_file")
def test_the_command_seals_until_it_is_stopped_and_then_what_is_left(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine.cli", "audit", "seal", "--data-dir", str(tmp_path)]
    settings = os.environ | {"DATABASE_URL": url, "AFFIDAVIT_AUDIT__SEAL_EVERY_S": "60"}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=settings) as sealer:
        assert sealer.stderr is not None
        assert sealer.stderr.readline().startswith("Sealing.")
        write(url, AT)
        sealer.terminate()
        assert sealer.wait(WAIT_S) == 0
    assert count_leaves(url) == 1


@contextlib.contextmanager
def shut(database: Database, url: str) -> Iterator[None]:
    """To whoever uses it, a database that is away."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(database.url, autocommit=True) as connection:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format
        connection.execute(allow(sql.Identifier(str(name)), sql.SQL("false")))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        try:
            yield
        finally:
            connection.execute(allow(sql.Identifier(str(name)), sql.SQL("true")))
