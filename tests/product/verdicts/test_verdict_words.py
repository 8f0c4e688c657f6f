"""Every verdict word, on the command line, about a real log to which just that has happened."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest

from audit.proof.verdict import PROVEN, Verdict
from engine.storage.database import Database
from tests.command_line import affidavit
from tests.conftest import ROOT
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log
from tests.parts.sealing.test_breaks import fail_over

BASIS = ("--basis", "ticket 4711")


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    """January with 5 records, February with 12; the commands record themselves today."""
    async with sealed_log(database, tmp_path) as made:
        with psycopg.connect(made.url) as connection:
            connection.execute("SELECT audit_make_month(now()::date)")
        yield made


def run(log: SealedLog, *arguments: object) -> tuple[int, str]:
    done = affidavit(*arguments, data_dir=log.folder, DATABASE_URL=log.url)
    return done.returncode, done.stdout or done.stderr


def succeed(log: SealedLog, *arguments: object) -> str:
    code, said = run(log, *arguments)
    assert code == 0, said
    return said


def verify(log: SealedLog) -> Verdict:
    return _of(*run(log, "audit", "verify", "--json"))


def check(log: SealedLog, content: str) -> Verdict:
    """An auditor has a file and the public keys, and no log."""
    file = log.folder / "handed over"
    file.write_text(content)
    keys = log.folder / "signing.key.pub"
    done = affidavit("audit", "check", file, "--public-key", keys, "--json")
    return _of(done.returncode, done.stdout)


def _of(code: int, said: str) -> Verdict:
    verdict = Verdict(json.loads(said)["verdict"])
    assert code == (0 if verdict in PROVEN else 1)
    return verdict


def prove(log: SealedLog, index: int = 3) -> str:
    return succeed(log, "audit", "prove", log.rows[FEBRUARY, index]["query_id"])


def valid(log: SealedLog) -> set[Verdict]:
    return {verify(log), check(log, prove(log))}


def tampered(log: SealedLog) -> set[Verdict]:
    proof = prove(log)
    log.attack(
        "UPDATE audit_logs SET answer_text = 'Other.' WHERE log_id = %(id)s", id=log.log_id(FEBRUARY, 3)
    )
    return {verify(log), check(log, proof.replace("It measures", "It weighs"))}


def missing(log: SealedLog) -> set[Verdict]:
    log.attack("DELETE FROM audit_logs WHERE log_id = %(id)s", id=log.log_id(FEBRUARY, 3))
    return {verify(log)}


def unsealed(log: SealedLog) -> set[Verdict]:
    log.write(FEBRUARY, 50)
    code, said = run(log, "audit", "prove", log.rows[FEBRUARY, 50]["query_id"])
    assert code == 1
    return {verify(log), Verdict(said.partition(":")[0])}


def erased(log: SealedLog) -> set[Verdict]:
    succeed(log, "audit", "erase", "--query", log.rows[FEBRUARY, 3]["query_id"], *BASIS)
    assert verify(log) is Verdict.VALID  # an erasure is no fault of the log
    return {check(log, prove(log))}


def archived(log: SealedLog) -> set[Verdict]:
    succeed(log, "audit", "archive", "--before", "2025-02")
    (manifest,) = (key for key in log.vault.keys("archive/") if key.endswith("manifest.json"))
    assert _of(*run(log, "audit", "verify", "--archive", manifest, "--json")) is Verdict.VALID
    return {verify(log)}


def cannot_tell(log: SealedLog) -> set[Verdict]:
    unknown = prove(log).replace('"schema_version":4', '"schema_version":99')
    return {check(log, unknown)}


def wrong_vault(log: SealedLog) -> set[Verdict]:
    (log.folder / "vault").rename(log.folder / "elsewhere")
    return {verify(log)}


def lost_by_failover(log: SealedLog) -> set[Verdict]:
    fail_over(log, 8)
    assert verify(log) is Verdict.MISSING
    succeed(log, "audit", "break", "--month", "2025-02", *BASIS)
    return {verify(log)}


SHOWN: dict[Verdict, Callable[[SealedLog], set[Verdict]]] = {
    Verdict.VALID: valid,
    Verdict.TAMPERED: tampered,
    Verdict.MISSING: missing,
    Verdict.UNSEALED: unsealed,
    Verdict.ERASED: erased,
    Verdict.ARCHIVED: archived,
    Verdict.CANNOT_TELL: cannot_tell,
    Verdict.WRONG_VAULT: wrong_vault,
    Verdict.LOST_BY_FAILOVER: lost_by_failover,
}


@pytest.mark.campaign
@pytest.mark.parametrize("verdict", Verdict)
def test_each_verdict_is_said_when_just_that_has_happened(log: SealedLog, verdict: Verdict) -> None:
    assert SHOWN[verdict](log) == {verdict}


def test_the_manual_explains_each_verdict() -> None:
    page = (ROOT / "docs" / "reference" / "refusals-and-verdicts.md").read_text()
    rows = [line for line in page.partition("## Verdicts")[2].splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [str(verdict) for verdict in Verdict]
    assert all(len(row.split("|")[2].strip()) > len("explained") for row in rows)
