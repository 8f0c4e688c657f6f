"""What `verify` finds in the log of heads: each change is found where it is, and what witnesses have seen is believed."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from audit.checking.evidence import StoredEvidence
from audit.checking.inspection import inspect
from audit.heads.inspection import UNWATCHED, Seen, Watch
from audit.heads.policy import parse_policy
from audit.heads.vaulted import encode_entries, entries_key, note_key
from audit.proof.verdict import Report, Verdict
from engine.storage.database import AUDITOR, Database, reading
from engine.wiring import now
from tests.logs.sealed_log import EVER, FEBRUARY, SealedLog, place, quiet, sealed_log
from tests.parts.witness.test_log_of_heads import entries, newest, stored
from tests.parts.witness.witnesses import origin_of, policy_text, running, seal


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("heads")) as log:
        yield log


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    yield whole
    whole.restore()


def inspected(log: SealedLog, watch: Watch | None = None) -> Report:
    with reading(log.url, AUDITOR) as connection:
        evidence = StoredEvidence(connection, log.vault, EVER, now())
        evidence.begin()
        return inspect(evidence, log.keys, quiet, watch)


def found(report: Report) -> set[tuple[str, str, str | None, int | None]]:
    return {place(finding) for finding in report.findings if finding.what == "head"}


def replace(log: SealedLog, key: str, content: bytes) -> None:
    path = log.folder / "vault" / key
    path.unlink()
    path.write_bytes(content)


def test_a_log_of_heads_that_nobody_touched_is_valid(log: SealedLog) -> None:
    report = inspected(log, Watch())
    assert (report.verdict, report.findings, report.counted[UNWATCHED]) == (Verdict.VALID, [], 0)


DATABASE = {
    "an entry changed": ("UPDATE audit_head_entries SET entry = replace(entry, 'time 2', 'time 3') WHERE entry_index = 2", {("TAMPERED", 2)}),
    "a leaf changed": ("UPDATE audit_head_entries SET leaf_hash = sha256('x') WHERE entry_index = 2", {("TAMPERED", 2)}),
    "a month changed": ("UPDATE audit_head_entries SET month = '2025-03-01' WHERE entry_index = 2", {("TAMPERED", 2)}),
    "an entry removed": ("DELETE FROM audit_head_entries WHERE entry_index = 2", {("MISSING", 2)}),
    "the last entry removed": ("DELETE FROM audit_head_entries WHERE entry_index = 3", {("MISSING", 3)}),
    "an entry copied to the end": (
        "INSERT INTO audit_head_entries SELECT 4, month, tree_size, entry, sha256('x'), appended_at FROM audit_head_entries WHERE entry_index = 0",
        {("MISSING", 4), ("TAMPERED", 4)},
    ),
    "a head's root changed": ("UPDATE audit_heads SET note = overlay(note PLACING 'AAAA' FROM 55 FOR 4) WHERE tree_size = 3", {("TAMPERED", 2)}),
    "a head's size changed": ("UPDATE audit_heads SET tree_size = 7 WHERE tree_size = 4", {("TAMPERED", 6), ("MISSING", 4), ("MISSING", 5), ("MISSING", 6)}),
    "the last head removed": ("DELETE FROM audit_heads WHERE tree_size = 4", {("TAMPERED", 3)}),
}  # fmt: skip


# Seen red with `_check_stored` left out.
@pytest.mark.parametrize(("statement", "expected"), DATABASE.values(), ids=DATABASE.keys())
def test_a_change_in_the_database_is_found(
    log: SealedLog, statement: str, expected: set[tuple[str, int]]
) -> None:
    log.attack(statement)
    report = inspected(log)
    assert {(verdict, index) for verdict, _, _, index in found(report)} == expected


VAULT: dict[str, tuple[Callable[[SealedLog], None], set[tuple[str, int]]]] = {
    "entries of another head": (
        lambda log: replace(log, entries_key(2, 3), encode_entries(entries(log)[1:2])), {("TAMPERED", 2)},
    ),
    "a file of entries removed": (
        lambda log: (log.folder / "vault" / entries_key(2, 3)).unlink(), {("MISSING", 2), ("MISSING", 3)},
    ),
    "no entries in the file": (lambda log: replace(log, entries_key(3, 4), b"[]\n"), {("MISSING", 3)}),
    "a head of another size": (
        lambda log: replace(log, note_key(4), log.vault.get(note_key(2))), {("TAMPERED", 3)},
    ),
    "a head removed": (lambda log: (log.folder / "vault" / note_key(4)).unlink(), {("MISSING", 3)}),
    "a head of a stranger": (
        lambda log: replace(log, note_key(4), log.vault.get(note_key(4))[:-12] + b"AAAAAAAAAA==\n"), {("TAMPERED", 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("attack", "expected"), VAULT.values(), ids=VAULT.keys())
def test_a_change_in_the_vault_is_found(
    log: SealedLog, attack: Callable[[SealedLog], None], expected: set[tuple[str, int]]
) -> None:
    attack(log)
    report = inspected(log)
    assert report.verdict in {Verdict.TAMPERED, Verdict.MISSING}
    assert {(verdict, index) for verdict, _, _, index in found(report)} >= expected


# Seen red with `_check_seen` that looks at no size.
async def test_a_rollback_of_everything_is_found_by_what_a_witness_has_seen(
    log: SealedLog, tmp_path: Path
) -> None:
    with running(log, tmp_path) as servers:
        policy = policy_text(servers)
        log.write(FEBRUARY, 12)
        assert await seal(log, policy) == ""
        seen = [Seen("w0", servers[0].witness.memory.last(origin_of(log)))]
    watch = Watch(parse_policy(policy), is_required=True, seen=seen)
    assert inspected(log, watch).verdict is Verdict.VALID
    log.restore()
    assert inspected(log).verdict is Verdict.VALID  # without the witness nothing tells
    report = inspected(log, watch)
    assert report.verdict is Verdict.MISSING and "rollback" in str(report)
    log.write(FEBRUARY, 13)
    assert await log.seal() == {}
    report = inspected(log, watch)
    assert report.verdict is Verdict.TAMPERED and "fork" in str(report)


async def test_a_silent_witness_is_a_finding_only_if_a_quorum_is_required(
    log: SealedLog, tmp_path: Path
) -> None:
    with running(log, tmp_path) as servers:
        policy = parse_policy(policy_text(servers))
    seen = [Seen("w0", None, "it does not answer")]
    assert inspected(log, Watch(policy, seen=seen)).verdict is Verdict.VALID
    report = inspected(log, Watch(policy, is_required=True, seen=seen))
    assert report.verdict is Verdict.CANNOT_TELL and "lacks the quorum" in str(report)


async def test_a_changed_cosignature_is_found(log: SealedLog, tmp_path: Path) -> None:
    with running(log, tmp_path) as servers:
        policy = policy_text(servers)
        log.write(FEBRUARY, 12)
        assert await seal(log, policy) == ""
    content = log.vault.get(note_key(5))
    replace(log, note_key(5), content[:-10] + (b"A" if content[-10:-9] != b"A" else b"B") + content[-9:])
    report = inspected(log, Watch(parse_policy(policy)))
    assert ("TAMPERED", "head", None, 4) in found(report)


async def test_an_older_copy_of_the_database_takes_over_what_the_vault_has(log: SealedLog) -> None:
    """As after a failover that lost the last transactions."""
    log.attack(
        "DELETE FROM audit_head_anchors WHERE tree_size > 2",
        "DELETE FROM audit_heads WHERE tree_size > 2",
        "DELETE FROM audit_head_entries WHERE entry_index >= 2",
    )
    report = inspected(log)
    assert found(report) == {("MISSING", "head", None, 2)}
    assert await log.seal() == {}
    assert inspected(log).verdict is Verdict.VALID
    assert newest(log) and stored(log, "SELECT max(tree_size) FROM audit_head_anchors") == [(4,)]
    with psycopg.connect(log.url) as connection:
        assert connection.execute("SELECT count(*) FROM audit_head_entries").fetchone() == (4,)
