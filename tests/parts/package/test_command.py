"""`affidavit audit package`, and those who check what it makes: the command, the module, the file inside."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from audit.proof.keys import public_file
from engine.storage.database import Database
from tests.command_line import affidavit
from tests.conftest import ROOT
from tests.logs.packing import content, quoting_log, read_json
from tests.logs.sealed_log import SealedLog

PERIOD = ("--from", "2025-01-01", "--to", "2025-03-01")


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with quoting_log(database, tmp_path_factory.mktemp("commanded")) as made:
        with psycopg.connect(made.url) as connection:
            connection.execute("SELECT audit_make_month(date_trunc('month', now())::date)")
        yield made


def packed(log: SealedLog, *arguments: object) -> subprocess.CompletedProcess[str]:
    return affidavit("audit", "package", *arguments, data_dir=log.folder, DATABASE_URL=log.url)


def test_the_package_names_the_record_of_its_making_and_three_verifiers_take_it(
    log: SealedLog, tmp_path: Path
) -> None:
    file, keys = tmp_path / "evidence.zip", public_file(log.folder / "signing.key")
    said = packed(log, *PERIOD, "--basis", "ticket 4711", "--case", "../../etc: <b>", "-o", file, "--json")
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert (found["records"], found["check"]["verdict"]) == (14, "VALID")
    event = read_json(file, "manifest.json")["event"]
    with psycopg.connect(log.url) as connection:
        ((endpoint, outcome, details),) = connection.execute(
            "SELECT endpoint, outcome, details FROM audit_logs WHERE log_id = %s", (event,)
        ).fetchall()
    assert (endpoint, outcome) == ("affidavit audit package", "recorded")
    assert (details["basis"], details["case"]) == ("ticket 4711", "../../etc: <b>")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["evidence.zip"]
    assert b"<b>" not in content(file)["README.md"]
    checked = affidavit("audit", "check", file, "--public-key", keys, "--json")
    assert (checked.returncode, json.loads(checked.stdout)["verdict"]) == (0, "VALID")
    program = tmp_path / "auditor.pyz"
    program.write_bytes(content(file)["auditor.pyz"])
    for command in (["-m", "audit.auditor"], ["-I", program]):
        ran = subprocess.run(
            [sys.executable, *map(str, command), file, "--public-key", keys, "--json"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ran.returncode, json.loads(ran.stdout)) == (0, json.loads(checked.stdout))


def test_a_tampered_package_ends_with_code_one(log: SealedLog, tmp_path: Path) -> None:
    file, keys = tmp_path / "evidence.zip", public_file(log.folder / "signing.key")
    assert packed(log, *PERIOD, "--redacted", "-o", file).returncode == 0
    file.write_bytes(file.read_bytes() + b"x")
    checked = affidavit("audit", "check", file, "--public-key", keys)
    assert (checked.returncode, checked.stdout.split()[0]) == (1, "TAMPERED")


@pytest.mark.parametrize(
    "arguments",
    [
        (*PERIOD,),
        (*PERIOD, "--redacted", "--basis", "b"),
        (*PERIOD, "--basis", "mail to anna@example.org"),
        ("--from", "2025-01-01", "--redacted"),
        ("--from", "2025-03-01", "--to", "2025-01-01", "--redacted"),
        (*PERIOD, "--redacted", "--case", "a\x1bb"),
    ],
)
def test_wrong_usage_ends_with_code_two(log: SealedLog, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    said = packed(log, *arguments, "-o", tmp_path / "evidence.zip")
    assert (said.returncode, list(tmp_path.iterdir())) == (2, [])


def test_a_package_of_nothing_ends_with_code_one(log: SealedLog, tmp_path: Path) -> None:
    said = packed(
        log, "--from", "2024-01-01", "--to", "2024-02-01", "--redacted", "-o", tmp_path / "evidence.zip"
    )
    assert said.returncode == 1
    assert "CANNOT_TELL" in said.stdout
