"""The sealer killed between any two steps of the log of heads: the next round, here or elsewhere, repairs it."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from audit.heads.vaulted import entries_key, list_heads
from audit.sealing.head_growth import HeadGrowth
from audit.vault import FolderVault
from engine.storage.database import Database
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, sealed_log
from tests.parts.witness.test_log_of_heads import assert_whole, entries, stored
from tests.parts.witness.witnesses import origin_of, policy_text, running, seal, witnessing


class Killed(BaseException):
    """Nothing catches it on purpose, as nothing catches SIGKILL."""


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


class DyingVault(FolderVault):
    """Ends the process before or after it writes a key that begins so."""

    def __init__(self, folder: Path, prefix: str, suffix: str, *, is_after: bool) -> None:
        super().__init__(folder)
        self._at, self._is_after = (prefix, suffix), is_after

    def put(self, key: str, content: bytes) -> str:
        is_it = key.startswith(self._at[0]) and key.endswith(self._at[1])
        if is_it and not self._is_after:
            raise Killed
        version = super().put(key, content)
        if is_it:
            raise Killed
        return version


POINTS = {
    "before the month's anchor": ("anchors/", ".note", False),
    "after the month's anchor": ("anchors/", ".note", True),
    "before the entry is in the vault": ("heads/", ".entries", False),
    "after the entry is in the vault, before the commit": ("heads/", ".entries", True),
    "after the commit, before the head is in the vault": ("heads/", ".note", False),
    "after the head is in the vault, before the commit": ("heads/", ".note", True),
}


# Seen red with `take_over` that returns at once.
@pytest.mark.parametrize(("prefix", "suffix", "is_after"), POINTS.values(), ids=POINTS.keys())
async def test_a_kill_between_two_steps_is_repaired_by_the_next_round(
    log: SealedLog, tmp_path: Path, prefix: str, suffix: str, is_after: bool
) -> None:
    with running(log, tmp_path) as servers:
        policy = policy_text(servers)
        assert await seal(log, policy, is_required=True) == ""
        dying = DyingVault(log.folder / "vault", prefix, suffix, is_after=is_after)
        log.write(FEBRUARY, 12)
        async with witnessing(policy, is_required=True) as asked:
            async with log.sealer(vault=dying, witnessing=asked) as sealer:
                with pytest.raises(Killed):
                    await sealer.seal_once()
        for place in (13, 14):
            log.write(FEBRUARY, place)
            assert await seal(log, policy, is_required=True) == ""
            assert_whole(log)
            assert log.inspect().findings == []
        assert servers[0].witness.memory.forks(origin_of(log)) == []


async def test_another_sealer_takes_over_from_one_that_was_killed(log: SealedLog) -> None:
    """It has been running meanwhile, so it does not look into the vault before it fails to write there."""
    async with log.sealer() as other:
        await other.seal_once()
        log.write(FEBRUARY, 12)
        dying = DyingVault(log.folder / "vault", "heads/", ".entries", is_after=True)
        async with log.sealer(vault=dying) as sealer:
            with pytest.raises(Killed):
                await sealer.seal_once()
        log.write(JANUARY, 5)  # so that its next entry is another one
        await other.seal_once()
        await other.seal_once()
        assert (other.stopped, other.failures) == ("", {})
    assert_whole(log)
    assert len(entries(log)) == 6


# Seen red with `_compare` left out.
async def test_two_histories_of_the_log_of_heads_stop_the_sealing(log: SealedLog) -> None:
    key = entries_key(3, 4)
    (log.folder / "vault" / key).unlink()
    log.vault.put(key, log.vault.get(entries_key(2, 3)))
    async with log.sealer() as sealer:
        await sealer.seal_once()
        assert "two histories were signed" in sealer.stopped


# Seen red with `_catch_up` that does not compare the roots.
@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE audit_head_entries SET leaf_hash = sha256('x') WHERE entry_index = 1",
        "DELETE FROM audit_heads WHERE tree_size = 4",
        "DELETE FROM audit_head_entries WHERE entry_index = 1",
        "UPDATE audit_heads SET note = overlay(note PLACING 'AAAA' FROM 55 FOR 4)",
    ],
)
async def test_a_log_of_heads_that_was_altered_is_not_signed_again(log: SealedLog, attack: str) -> None:
    log.attack(attack)
    log.write(FEBRUARY, 12)
    async with log.sealer() as sealer:
        await sealer.seal_once()
        assert sealer.stopped
    assert stored(log, "SELECT max(tree_size) FROM audit_heads")[0][0] in {3, 4}
    assert list_heads(log.vault).size == 4


# Seen red with `_extend` that does not read back.
async def test_two_ways_to_the_root_agree_before_it_is_signed(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flipped(*_: object) -> bytes:
        return bytes(32)

    async with log.sealer() as sealer:
        await sealer.seal_once()
        log.write(FEBRUARY, 12)
        monkeypatch.setattr(HeadGrowth, "_read_back", flipped)
        await sealer.seal_once()
        assert "Two ways to compute the root of 5 heads do not agree" in sealer.stopped
    assert stored(log, "SELECT max(tree_size) FROM audit_heads") == [(4,)]


async def test_a_log_from_before_begins_its_log_of_heads_at_the_next_anchor(log: SealedLog) -> None:
    log.attack("DELETE FROM audit_head_anchors", "DELETE FROM audit_heads", "DELETE FROM audit_head_entries")
    for path in (log.folder / "vault" / "heads").iterdir():
        path.unlink()
    log.write(FEBRUARY, 12)
    assert await log.seal() == {}
    assert_whole(log)
    assert len(entries(log)) == 1 and log.inspect().findings == []


async def test_a_new_vault_gets_all_entries(log: SealedLog, tmp_path: Path) -> None:
    log.write(FEBRUARY, 12)
    new = FolderVault(tmp_path / "new")
    assert await log.seal(vault=new, may_begin_vault=True) == {}
    assert list_heads(new).size == 5 and list_heads(new).files == [(0, 5)]


async def test_nobody_but_the_sealer_can_write_and_nobody_can_change(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        for table in ("audit_head_entries", "audit_heads", "audit_head_anchors"):
            for role in ("affidavit_engine", "affidavit_archiver", "affidavit_auditor"):
                asked = connection.execute("SELECT has_table_privilege(%s, %s, 'INSERT')", (role, table))
                assert asked.fetchone() == (False,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(f"DELETE FROM {table}".encode())
