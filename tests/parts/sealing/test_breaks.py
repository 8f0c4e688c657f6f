"""A failover or a restore that lost sealed records: sealing stops, a signed break lets it go on, and every verdict repeats it."""

import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from audit.anchored import break_key, month_anchors, note_key
from audit.archive.reader import LocalFiles
from audit.archive.verify import verify_archive
from audit.auditor import check
from audit.checking import prover
from audit.errors import HistoryWholeError, TreeMismatchError, VaultConflictError, WrongVaultError
from audit.ledger.partitions import next_month
from audit.proof.checkpoint import Checkpoint, HistoryBreak, Link, open_note, sign_break, sign_note
from audit.proof.keys import SigningKey
from audit.proof.merkle import root
from audit.proof.verdict import Report, Verdict
from audit.sealing import log_tables
from audit.sealing.sealer import Sealer
from audit.vault import FolderVault
from engine import settings as settings_file
from engine import wiring
from engine.cli.doctor import examine
from engine.storage.database import AUDITOR, Database, open_lazily
from engine.wiring import now
from tests import proofs, second_verifier
from tests.command_line import affidavit
from tests.logs.archiving import archiver_of
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, place, quiet, sealed_log
from tests.parts.ledger.test_heartbeat import gaps, heartbeat, record, writing

BASIS = "failover of the night, ticket 4711"
LOST = Verdict.LOST_BY_FAILOVER


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    """February has 12 leaves, and anchors of 4, 8 and 12."""
    async with sealed_log(database, tmp_path) as made:
        yield made


def fail_over(log: SealedLog, size: int, rows: int | None = None, month: date = FEBRUARY) -> None:
    """The standby that is promoted has the tree up to `size`, and the rows of so many leaves."""
    of = {"month": month, "end": next_month(month)}
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "DELETE FROM audit_logs WHERE timestamp >= %(month)s AND timestamp < %(end)s AND log_id NOT IN"
            " (SELECT log_id FROM audit_leaves WHERE month = %(month)s AND leaf_index < %(rows)s)",
            of | {"rows": size if rows is None else rows},
        )
        for table, column in (
            ("audit_leaves", "leaf_index + 1"), ("audit_checkpoints", "tree_size"), ("audit_anchors", "tree_size"),
        ):  # fmt: skip
            statement = f"DELETE FROM {table} WHERE month = %(month)s AND {column} > %(size)s"
            connection.execute(statement.encode(), of | {"size": size})


@asynccontextmanager
async def sealer_of(log: SealedLog) -> AsyncIterator[Sealer]:
    async with log.database.pool("affidavit_sealer") as pool:
        yield Sealer(
            pool, log.key, lambda: log.keys, log.vault, seal_every_s=5, anchor_every_s=30, clock=now,
            monotonic=time.monotonic,
        )  # fmt: skip


async def declare(log: SealedLog, month: date = FEBRUARY) -> HistoryBreak:
    """As the command does it: the record of the break is a row of the log, here of January."""
    event = log_event(log)
    async with sealer_of(log) as sealer:
        return await sealer.declare_break(month, BASIS, event)


def log_event(log: SealedLog) -> UUID:
    event = uuid4()
    log.write(JANUARY, 100 + len(log.rows), log_id=event)
    return event


async def write_and_seal(log: SealedLog) -> dict[date, str]:
    log.write(FEBRUARY, 80)
    return await log.seal()


def head(log: SealedLog, size: int, branch: int = 0) -> Checkpoint:
    return open_note(log.vault.get(note_key(FEBRUARY, size, branch)).decode(), log.keys)


def stated(log: SealedLog, kept: Link, lost: Link, key: SigningKey | None = None) -> str:
    """A statement that no sealer made."""
    broken = HistoryBreak(head(log, 8).origin, FEBRUARY, 1, kept, lost, now(), log_event(log), BASIS)
    return sign_break(broken, key or log.key)


def insert(log: SealedLog, note: str) -> None:
    statement = "INSERT INTO audit_breaks VALUES ('2025-02-01', 1, 8, 12, %(note)s, %(event)s, now())"
    log.attack(statement, note=note, event=uuid4())


def breaks_of(report: Report) -> list[str]:
    return [finding.words for finding in report.findings if finding.verdict is LOST]


async def test_after_a_break_sealing_goes_on_and_every_verdict_repeats_it(log: SealedLog) -> None:
    fail_over(log, 8)
    log.write(FEBRUARY, 50, 51)
    assert "audit break --month 2025-02" in (await log.seal())[FEBRUARY]
    assert log.inspect().verdict is Verdict.MISSING
    broken = await declare(log)
    assert (broken.kept.size, broken.lost.size) == (8, 12)
    for _ in range(2):
        assert await log.seal() == {}
        report = log.inspect()
        assert report.verdict is LOST
        assert {place(finding) for finding in report.findings} == {(str(LOST), "break", "2025-02", 8)}
        (words,) = breaks_of(report)
        assert words.startswith(
            "A failover or a restore lost the leaves 8 to 11: 4 of their 4 records are gone"
        )
        assert BASIS in words
        log.write(FEBRUARY, 60 + _)


# Before, the leaves and each anchored head were findings of their own, and nothing said that the rest is whole.
async def test_a_loss_that_nobody_has_stated_is_missing_and_says_its_range(log: SealedLog) -> None:
    fail_over(log, 4)
    report = log.inspect()
    assert [place(finding) for finding in report.findings] == [("MISSING", "leaf", "2025-02", 4)]
    words = report.findings[0].words
    assert "it lacks the last 8 leaves, 4 to 11 (anchored heads: 2), and differs in nothing else" in words
    assert "No failover did this: its PostgreSQL was never promoted (timeline 1)" in words
    assert "audit break --month 2025-02" in words


# Seen red with `_is_older_copy` true whenever the last leaves are missing: the other finding was left out.
@pytest.mark.parametrize(
    "attack",
    [
        "DELETE FROM audit_leaves WHERE month = '2025-02-01' AND leaf_index = 3",
        "DELETE FROM audit_checkpoints WHERE month = '2025-02-01' AND tree_size = 4",
        "UPDATE audit_logs SET answer_text = 'forged' WHERE timestamp >= '2025-02-01' AND answer_text IS NOT NULL",
        "DELETE FROM audit_leaves WHERE month = '2025-02-01' AND leaf_index >= 7",
    ],
    ids=["a leaf is gone", "a head is gone", "a row was changed", "it ends at no head"],
)  # fmt: skip
async def test_what_differs_in_more_than_its_end_is_no_older_copy(log: SealedLog, attack: str) -> None:
    fail_over(log, 8)
    log.attack(attack)
    report = log.inspect()
    assert report.verdict in {Verdict.MISSING, Verdict.TAMPERED}
    assert "older copy" not in str(report)
    assert len(report.findings) > 1


async def test_receipts_and_proofs_show_that_lost_records_existed(log: SealedLog) -> None:
    lost = log.rows[FEBRUARY, 11]
    proof, receipt = await log.prove(lost), json.dumps(proofs.receipt(lost, log.key)).encode()
    fail_over(log, 8)
    await declare(log)
    assert log.inspect().verdict is LOST
    assert check(proof, log.keys).verdict is Verdict.VALID
    assert check(proof, log.keys, receipt).verdict is Verdict.VALID
    assert check(receipt, log.keys).verdict is Verdict.UNSEALED  # it must exist, and does not


# Seen red without the comparison of servers: the sealer went on from its own tree, and the vault got a second history.
async def test_a_sealer_that_lagged_behind_the_vault_makes_no_second_history(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sealer grew and anchored the tree; then a standby took over that is as old as this sealer's own tree."""
    async with sealer_of(log) as lagging:
        log.write(FEBRUARY, 12)
        await lagging.seal_once()
        log.write(FEBRUARY, 13, 14)
        assert await log.seal() == {}
        fail_over(log, 13)
        monkeypatch.setattr(log_tables, "_SERVER", "SELECT 'the standby'")
        log.write(FEBRUARY, 50)
        for _ in range(2):
            await lagging.seal_once()
        assert "audit break --month 2025-02" in lagging.failures[FEBRUARY]
        assert log.inspect().verdict is Verdict.MISSING
        await declare(log)
        await lagging.seal_once()
    assert log.inspect().verdict is LOST


# Seen red without `_forget_broken`.
async def test_a_running_sealer_goes_on_by_itself(log: SealedLog) -> None:
    fail_over(log, 8)
    async with sealer_of(log) as sealer:
        log.write(FEBRUARY, 50)
        await sealer.seal_once()
        assert FEBRUARY in sealer.failures
        await declare(log)
        await sealer.seal_once()
        assert sealer.failures == {}
    assert log.inspect().verdict is LOST


async def test_a_sealer_that_knew_the_lost_history_goes_on_too(log: SealedLog) -> None:
    async with sealer_of(log) as sealer:
        log.write(FEBRUARY, 50)
        await sealer.seal_once()
        fail_over(log, 8)
        log.write(FEBRUARY, 51)
        await sealer.seal_once()
        assert FEBRUARY in sealer.failures
        await declare(log)
        await sealer.seal_once()
        assert sealer.failures == {}
    assert breaks_of(log.inspect())[0].startswith(
        "A failover or a restore lost the leaves 8 to 12: 5 of their 5 records"
    )


# Seen red with all lost leaves counted, whether or not their records are still there.
async def test_records_whose_leaf_alone_was_lost_are_sealed_again(log: SealedLog) -> None:
    fail_over(log, 8, rows=11)
    await declare(log)
    assert await log.seal() == {}
    (words,) = breaks_of(log.inspect())
    assert "1 of their 4 records are gone" in words


# Seen red: the lost records were MISSING for ever, by their numbers.
async def test_the_numbers_of_lost_records_are_explained_by_the_break(log: SealedLog) -> None:
    """The engine went on over the failover. What it wrote after the last anchor is lost too, and in no leaf."""
    month = now().date().replace(day=1)
    with psycopg.connect(log.url) as connection:
        make_months(connection, [month])
    async with writing(log) as ledger:
        await heartbeat(ledger).beat()
        kept = await record(ledger)
        for _ in range(2):
            assert await log.seal() == {}
            await record(ledger)
        fail_over(log, 2, month=month)
        await record(ledger)
        await heartbeat(ledger).beat()
        numbers = f"records 3 to 4 of the process {kept.writer} are neither in the log nor in progress"
        assert any(verdict is Verdict.MISSING and numbers in words for verdict, words in gaps(log))
        await declare(log, month)
        assert await log.seal() == {}
    assert log.inspect().verdict is LOST
    assert any(numbers in words for words in breaks_of(log.inspect()))


async def test_later_heads_and_proofs_name_the_break(log: SealedLog) -> None:
    before = await log.prove(log.rows[FEBRUARY, 3])
    fail_over(log, 8)
    broken = await declare(log)
    log.write(FEBRUARY, 50)
    await log.seal()
    proof = await log.prove(log.rows[FEBRUARY, 50])
    for content, is_told in ((before, False), (proof, True)):
        report = check(content, log.keys)
        assert report.verdict is Verdict.VALID
        assert any("leaves 8 to 11" in what for what in report.counted) is is_told
        assert second_verifier.verdict(content, [str(key) for key in log.keys]) == "VALID"
    (line,) = open_note(json.loads(proof)["checkpoint"], log.keys).breaks
    assert line == broken.line(log.vault.get(break_key(FEBRUARY, 1)).decode())


# Seen red with the roots of chunks cached by their month alone: the lost leaves were in the proof.
async def test_a_prover_that_knew_the_lost_history_proves_the_new_one(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prover, "CHUNK_LEAVES", 4)
    async with open_lazily(log.url, AUDITOR, size_max=1, wait_s=5) as pool:
        proving = prover.Prover(pool)

        async def verdict(at: int) -> Verdict:
            row = await proving.row(UUID(log.rows[FEBRUARY, at]["query_id"]))
            return check(await proving.prove(row), log.keys).verdict

        assert await verdict(11) is Verdict.VALID
        fail_over(log, 8)
        await declare(log)
        log.write(FEBRUARY, *range(50, 56))
        assert await log.seal() == {}
        assert await verdict(55) is Verdict.VALID


async def test_the_branch_has_names_of_its_own_and_what_was_lost_stays(log: SealedLog) -> None:
    lost = {key: log.vault.get(key) for key in log.vault.keys("anchors/2025-02/")}
    fail_over(log, 8)
    await declare(log)
    log.write(FEBRUARY, *range(50, 54))
    assert await log.seal() == {}
    assert {key: log.vault.get(key) for key in lost} == lost
    assert log.vault.get(note_key(FEBRUARY, 12, 1)) != log.vault.get(note_key(FEBRUARY, 12))


async def test_a_second_failover_on_the_branch_is_a_second_break(log: SealedLog) -> None:
    fail_over(log, 8)
    await declare(log)
    for begin in (50, 60):
        log.write(FEBRUARY, *range(begin, begin + 4))
        assert await log.seal() == {}
    fail_over(log, 12)
    log.write(FEBRUARY, 70)
    assert FEBRUARY in await log.seal()
    second = await declare(log)
    assert (second.number, second.kept.size, second.lost.size) == (2, 12, 16)
    assert await log.seal() == {}
    report = log.inspect()
    assert (report.verdict, len(breaks_of(report))) == (LOST, 2)


@pytest.mark.parametrize("size", [0, 4])
async def test_a_failover_to_before_an_earlier_break_is_one_more(log: SealedLog, size: int) -> None:
    fail_over(log, 8)
    await declare(log)
    log.write(FEBRUARY, 50, 51)
    await log.seal()
    fail_over(log, size)
    log.attack("DELETE FROM audit_breaks")
    log.write(FEBRUARY, 60)
    assert "do not hold the same breaks" in (await log.seal())[FEBRUARY]
    assert log.inspect().verdict is Verdict.MISSING
    second = await declare(log)
    assert (second.number, second.kept.size, second.lost.size) == (2, size, 10)
    assert await log.seal() == {}
    report = log.inspect()
    assert report.verdict is LOST
    assert [line.partition(":")[0].partition("lost the ")[2] for line in breaks_of(report)] == [
        "leaves 8 to 11", f"leaves {size} to 9",
    ]  # fmt: skip


async def test_a_month_whose_evidence_is_lost_as_a_whole_can_be_broken(log: SealedLog) -> None:
    fail_over(log, 0)
    broken = await declare(log)
    assert broken.kept == Link(FEBRUARY, 0, root([]))
    assert log.inspect().verdict is LOST
    log.write(FEBRUARY, 50)
    assert await log.seal() == {}
    assert log.inspect().verdict is LOST


# What a break must not be able to do


async def test_where_nothing_is_lost_there_is_no_break(log: SealedLog) -> None:
    with pytest.raises(HistoryWholeError):
        await declare(log)
    log.attack("DELETE FROM audit_logs WHERE log_id = %(id)s", id=log.log_id(FEBRUARY, 11))
    with pytest.raises(HistoryWholeError):
        await declare(log)
    assert not log.vault.keys("breaks/")
    assert log.inspect().verdict is Verdict.MISSING


async def test_no_break_is_stated_over_a_changed_leaf(log: SealedLog) -> None:
    fail_over(log, 8)
    log.attack(
        "UPDATE audit_leaves SET leaf_hash = sha256('x') WHERE month = '2025-02-01' AND leaf_index = 2"
    )
    with pytest.raises(TreeMismatchError, match="no older copy"):
        await declare(log)
    assert not log.vault.keys("breaks/")


# Seen red without the comparison with the anchored root: the second history was kept, and the first one lost.
async def test_no_break_is_stated_over_a_history_that_was_signed_twice(log: SealedLog) -> None:
    """As superuser and with the signing key: other rows from leaf 8 on, under other signatures."""
    elsewhere = FolderVault(log.folder / "elsewhere")
    shutil.copytree(log.folder / "vault", log.folder / "elsewhere")
    for key in elsewhere.keys("anchors/2025-02/"):
        if "000000000012" in key:
            (log.folder / "elsewhere" / key).unlink()
    fail_over(log, 8)
    log.write(FEBRUARY, 50)
    assert await log.seal(vault=elsewhere) == {}
    with pytest.raises(TreeMismatchError, match="no older copy of what the vault holds"):
        await declare(log)


# Seen red with the database's break believed: a superuser wrote one, and the deleted rows were "lost by a failover".
async def test_a_break_that_only_the_database_has_is_tampering(log: SealedLog) -> None:
    fail_over(log, 8)
    insert(log, stated(log, head(log, 8).link, head(log, 12).link))
    report = log.inspect()
    assert (report.verdict, breaks_of(report)) == (Verdict.TAMPERED, [])
    assert FEBRUARY in await write_and_seal(log)


# Seen red with an unsigned break in the vault believed.
async def test_a_break_that_another_key_signed_is_tampering(log: SealedLog, tmp_path: Path) -> None:
    fail_over(log, 8)
    stranger = SigningKey.create(tmp_path / "stranger.key")
    note = stated(log, head(log, 8).link, head(log, 12).link, stranger)
    log.vault.put(break_key(FEBRUARY, 1), note.encode())
    insert(log, note)
    report = log.inspect()
    assert (report.verdict, breaks_of(report)) == (Verdict.TAMPERED, [])
    assert FEBRUARY in await write_and_seal(log)


# Seen red with only the signature checked.
@pytest.mark.parametrize(
    ("kept", "lost", "root_of_lost", "verdict"),
    [
        (4, 12, None, Verdict.TAMPERED), (4, 8, None, Verdict.MISSING), (8, 12, 8, Verdict.TAMPERED), (8, 11, 12, Verdict.MISSING),
        (3, 12, None, Verdict.TAMPERED),
    ],
)  # fmt: skip
async def test_a_signed_break_that_is_not_true_is_found(
    log: SealedLog, kept: int, lost: int, root_of_lost: int | None, verdict: Verdict
) -> None:
    """The sealer states only what is true. Should the key ever sign another range, the vault says otherwise."""
    fail_over(log, 8)
    roots = {4: head(log, 4).root, 8: head(log, 8).root, 12: head(log, 12).root}
    note = stated(
        log,
        Link(FEBRUARY, kept, roots.get(kept, roots[4])),
        Link(FEBRUARY, lost, roots[root_of_lost or lost]),
    )
    log.vault.put(break_key(FEBRUARY, 1), note.encode())
    insert(log, note)
    assert log.inspect().verdict is verdict


# Seen red with breaks read from the database alone: without its row the verdict was VALID again.
async def test_a_break_cannot_be_taken_back(log: SealedLog) -> None:
    fail_over(log, 8)
    await declare(log)
    await write_and_seal(log)
    log.attack("DELETE FROM audit_breaks")
    report = log.inspect()
    assert (report.verdict, len(breaks_of(report))) == (Verdict.MISSING, 1)
    with pytest.raises(VaultConflictError):
        log.vault.put(break_key(FEBRUARY, 1), b"another")


# Seen red without the comparison of a head's lines with the breaks.
async def test_a_head_that_does_not_name_the_break_is_found(log: SealedLog) -> None:
    fail_over(log, 8)
    await declare(log)
    await write_and_seal(log)
    silent = sign_note(replace(head(log, 9, 1), breaks=()), log.key)
    log.attack("UPDATE audit_checkpoints SET note = %(note)s WHERE tree_size = 9", note=silent)
    (log.folder / "vault" / note_key(FEBRUARY, 9, 1)).unlink()
    log.vault.put(note_key(FEBRUARY, 9, 1), silent.encode())
    report = log.inspect()
    assert (report.verdict, "does not name the breaks" in str(report)) == (Verdict.TAMPERED, True)


async def test_what_the_lost_server_went_on_to_seal_is_found(log: SealedLog) -> None:
    """Two primaries: the old one did not know that it was replaced."""
    fail_over(log, 4)
    await declare(log)
    log.vault.put(note_key(FEBRUARY, 13), sign_note(replace(head(log, 12), size=13), log.key).encode())
    report = log.inspect()
    assert report.verdict is Verdict.MISSING
    assert "does not name all that was lost: the vault has a head of size 13" in str(report)


async def test_a_break_without_its_record_is_found(log: SealedLog) -> None:
    fail_over(log, 8)
    broken = await declare(log)
    log.attack("DELETE FROM audit_logs WHERE log_id = %(id)s", id=broken.event)
    report = log.inspect()
    assert report.verdict is Verdict.MISSING
    assert "has no record in the log" in str(report)


async def test_a_break_that_was_interrupted_is_finished_by_the_next_one(log: SealedLog) -> None:
    fail_over(log, 8)
    broken = await declare(log)
    log.attack("DELETE FROM audit_breaks")  # as if the process had died between the vault and the database
    with pytest.raises(HistoryWholeError):
        await declare(log)
    assert month_anchors(log.vault, FEBRUARY).read_breaks() == [broken]
    assert await log.seal() == {}
    assert log.inspect().verdict is LOST


@pytest.mark.campaign
def test_the_command_states_it_records_itself_and_seals(log: SealedLog) -> None:
    fail_over(log, 8)
    log.write(FEBRUARY, 50)
    run = ("audit", "break", "--month", "2025-02", "--basis")
    assert affidavit(*run, " ", data_dir=log.folder, DATABASE_URL=log.url).returncode == 2
    with psycopg.connect(log.url) as connection:
        connection.execute("SELECT audit_make_month(now()::date)")
    said = affidavit(*run, BASIS, data_dir=log.folder, DATABASE_URL=log.url)
    assert (said.returncode, said.stdout) == (
        0,
        "Stated: the leaves 8 to 11 of 2025-02 are lost. 2 records were sealed after it.\n",
    ), said.stderr
    verified = affidavit("audit", "verify", data_dir=log.folder, DATABASE_URL=log.url)
    assert (verified.returncode, verified.stdout.split()[0]) == (1, "LOST_BY_FAILOVER"), verified.stdout
    told = affidavit("audit", "status", data_dir=log.folder, DATABASE_URL=log.url).stdout
    assert "BREAK" in told and "8 to 11" in told
    again = affidavit(*run, BASIS, data_dir=log.folder, DATABASE_URL=log.url)
    assert (again.returncode, "is not broken" in again.stderr) == (1, True)


# Seen red with no anchor taken for missing, and with a sealer that anchors into whichever vault it is given.
async def test_replicas_with_a_vault_each_are_told_so(log: SealedLog) -> None:
    settings = settings_file.load({"DATABASE_URL": log.url}, data_dir=log.folder)
    replica = settings.model_copy(update={"data_dir": log.folder / "replica"})
    database = Database(log.url, settings)
    assert await wiring.foreign_vault_of(settings, database) == ""
    log.write(FEBRUARY, 12)
    with pytest.raises(WrongVaultError, match="none of its anchors"):
        await log.seal(vault=FolderVault(replica.data_dir / "vault"))
    assert await log.seal(vault=FolderVault(replica.data_dir / "vault"), may_begin_vault=True) == {}
    for own, count in ((settings, 1), (replica, 4)):
        words = await wiring.foreign_vault_of(own, database)
        assert words.startswith(f"{count} of the log's last 5 anchors are not in this vault")
        assert words in await wiring.warnings_at_start(own, database)
    doctor = {line.part: line for line in await examine(settings, database)}
    assert doctor["anchors"].state == "failed"
    assert "AFFIDAVIT_PROVIDERS__VAULT=s3" in doctor["anchors"].words


# Seen red with the archiver's old list of verdicts: the month could never leave the database.
async def test_an_archive_repeats_the_break_with_and_without_the_vault(log: SealedLog) -> None:
    fail_over(log, 8)
    await declare(log)
    await write_and_seal(log)
    with psycopg.connect(log.url) as connection:
        make_months(connection, [now().date()])
    outcomes = await archiver_of(log).archive(date(2025, 3, 1))
    assert [(outcome.state, outcome.words) for outcome in outcomes if not outcome.is_well] == []
    (key,) = (key for key in log.vault.keys("archive/2025-02/") if key.endswith("manifest.json"))
    copied = log.folder / "vault" / "archive" / "2025-02"
    for source, manifest in ((log.vault, key), (LocalFiles(copied), Path(key).name)):
        report = verify_archive(source, manifest, None, log.keys, None, quiet)
        assert report.verdict is LOST
        assert breaks_of(report) == [
            "A failover or a restore lost the leaves 8 to 11; others took their places"
        ]
    assert len(breaks_of(log.inspect())) == 1


# Seen red with the vault's breaks believed without their signature.
async def test_an_archive_s_break_that_another_key_signed_is_tampering(
    log: SealedLog, tmp_path: Path
) -> None:
    note = stated(log, head(log, 8).link, head(log, 12).link, SigningKey.create(tmp_path / "stranger.key"))
    with psycopg.connect(log.url) as connection:
        make_months(connection, [now().date()])
    await archiver_of(log).archive(date(2025, 3, 1))
    log.vault.put(break_key(FEBRUARY, 1), note.encode())
    (key,) = (key for key in log.vault.keys("archive/2025-02/") if key.endswith("manifest.json"))
    report = verify_archive(log.vault, key, None, log.keys, None, quiet)
    assert (report.verdict, breaks_of(report)) == (Verdict.TAMPERED, [])
