"""Database, vault and key set back to an older copy, or copied and continued twice: only a witness elsewhere finds it."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from audit.heads.head import open_head
from audit.heads.policy import parse_policy
from audit.proof.note import parse_note
from engine.storage.database import Database
from tests.databases import empty_database
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log
from tests.parts.witness.test_log_of_heads import assert_whole, newest, stored
from tests.parts.witness.witnesses import origin_of, policy_text, running, seal


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


async def test_a_head_has_the_cosignatures_of_all_witnesses_in_database_and_vault(
    log: SealedLog, tmp_path: Path
) -> None:
    with running(log, tmp_path, 3) as servers:
        policy = policy_text(servers)
        log.write(FEBRUARY, 12)
        assert await seal(log, policy, is_required=True) == ""
        log.write(FEBRUARY, 13)
        assert await seal(log, policy, is_required=True) == ""
    note = parse_note(newest(log))
    assert parse_policy(policy).cosigners(note) == ["w0", "w1", "w2"]
    assert_whole(log)
    assert stored(log, "SELECT tree_size, has_quorum FROM audit_head_anchors ORDER BY tree_size DESC LIMIT 2") == [
        (6, True), (5, True),
    ]  # fmt: skip
    for server in servers:
        last = server.witness.memory.last(origin_of(log))
        assert last and open_head(last, log.keys)[0].size == 6


# Seen red with `_judge` that takes a larger size of a witness for a refusal.
async def test_a_log_that_was_set_back_is_stopped_by_its_witness(log: SealedLog, tmp_path: Path) -> None:
    """Database, vault and key file are yesterday's: nothing that is left on this machine tells."""
    with running(log, tmp_path) as servers:
        policy = policy_text(servers)
        assert await seal(log, policy) == ""
        log.keep()
        log.write(FEBRUARY, 12)
        assert await seal(log, policy) == ""
        log.restore()
        assert (await log.seal(), log.inspect().findings) == ({}, [])  # without the witness nobody knows
        log.restore()
        log.write(FEBRUARY, 12)
        stopped = await seal(log, policy)
        assert "rollback" in stopped and "w0 has cosigned a head of size 5" in stopped
        assert stored(log, "SELECT count(*) FROM audit_leaves") == [(17,)]  # nothing is sealed on top


# Seen red with `_judge` that takes the reply 422 for a refusal.
async def test_a_log_that_was_set_back_and_grew_again_is_stopped_too(log: SealedLog, tmp_path: Path) -> None:
    with running(log, tmp_path) as servers:
        policy = policy_text(servers)
        log.keep()
        log.write(FEBRUARY, 12)
        assert await seal(log, policy) == ""
        log.restore()
        for place in range(12, 16):
            log.write(FEBRUARY, place)
            await log.seal()
        assert "another history" in await seal(log, policy)


async def test_of_two_machines_with_one_key_the_witness_signs_one_and_keeps_both(
    log: SealedLog, database: Database, tmp_path: Path
) -> None:
    """Fork: a copy of database, vault and key goes on beside the log, up to the same size."""
    with running(log, tmp_path) as servers, empty_database(database, template=_name(log)) as url:
        policy = policy_text(servers)
        shutil.copytree(log.folder, tmp_path / "other", ignore=shutil.ignore_patterns("w0", "other"))
        other = SealedLog(Database(url, log.database.settings), tmp_path / "other", log.key)
        log.write(FEBRUARY, 12)
        other.write(FEBRUARY, 12)
        assert await seal(log, policy) == ""
        assert await other.seal() == {}
        stopped = await seal(other, policy)
        assert "rollback" in stopped and "another head of the same size 5" in stopped
        (fork,) = servers[0].witness.memory.forks(origin_of(log))
        ((theirs,),) = stored(other, "SELECT note FROM audit_heads WHERE tree_size = 5")
        ((ours,),) = stored(log, "SELECT note FROM audit_heads WHERE tree_size = 5")
        assert fork.read_text() == f"{ours}\n{theirs}" and ours != theirs


def _name(log: SealedLog) -> str:
    from psycopg.conninfo import conninfo_to_dict

    return str(conninfo_to_dict(log.url)["dbname"])
