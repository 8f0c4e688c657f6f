"""From outside: a witness is started, the log is pointed to it, a proof is handed over, and a rollback is found by `verify` and `doctor`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.storage.database import Database
from tests.command_line import affidavit
from tests.conftest import ROOT
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log
from tests.parts.witness.witnesses import origin_of


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


def run(log: SealedLog, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return affidavit(*arguments, data_dir=log.folder, DATABASE_URL=log.url, **environment)


def verdict(log: SealedLog, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(log, "audit", "verify", "--json", **environment).stdout)
    return found


@pytest.mark.campaign
async def test_a_rollback_of_everything_is_found_by_command(log: SealedLog, tmp_path: Path) -> None:
    key = run(log, "audit", "key", "--for-witness").stdout.strip()
    assert key.startswith(f"{origin_of(log)}+")
    arguments = [
        "--log",
        key,
        "--folder",
        tmp_path / "elsewhere",
        "--name",
        "example.org/witness",
        "--port",
        "0",
    ]
    witness = _started(*arguments)
    assert witness.stdout is not None
    try:
        said = [witness.stdout.readline() for _ in range(3)]
        line = said[2].partition("policy: ")[2].strip()
        policy = log.folder / "witnesses.policy"
        policy.write_text(f"{line}\nquorum witness-1\n")
        asks = {"AFFIDAVIT_WITNESS__POLICY": policy.name, "AFFIDAVIT_WITNESS__REQUIRED": "true"}
        log.keep()
        log.write(FEBRUARY, 12)
        sealed = run(log, "audit", "seal", "--once", "--json", **asks)
        assert (sealed.returncode, json.loads(sealed.stdout)["stopped"]) == (0, "")
        assert verdict(log, **asks)["verdict"] == "VALID"
        _hand_over(log, tmp_path, policy)
        log.restore()
        assert verdict(log)["verdict"] == "VALID"  # alone it has no way to know
        assert "0 witnesses are configured" in run(log, "audit", "verify").stdout
        found = verdict(log, **asks)
        assert found["verdict"] == "MISSING" and "rollback" in str(found["findings"])
        doctor = json.loads(run(log, "doctor", "--json", **asks).stdout)
        states = {part["part"]: (part["state"], part["words"]) for part in doctor}
        assert states["witnesses"][0] == "failed" and "rollback" in states["witnesses"][1]
        sealed = run(log, "audit", "seal", "--once", "--json", **asks)
        assert sealed.returncode == 1 and "rollback" in json.loads(sealed.stdout)["stopped"]
    finally:
        witness.send_signal(signal.SIGTERM)
        assert witness.wait(10) == 0
        witness.stdout.close()


def _started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "witness", *map(str, arguments)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip


def _hand_over(log: SealedLog, folder: Path, policy: Path) -> None:
    """Checked by the offline verifier alone, with and without the record's own proof."""
    proof, heads = folder / "proof.json", folder / "proof.tlog-proof"
    query_id = log.rows[FEBRUARY, 12]["query_id"]
    assert run(log, "audit", "prove", query_id, "-o", proof, "--heads", heads).returncode == 0
    key = log.folder / "signing.key.pub"
    auditor = [sys.executable, "-m", "audit.auditor"]
    for given in ([heads], [proof, "--heads", heads]):
        arguments = [*given, "--public-key", key, "--policy", policy, "--json"]
        done = subprocess.run(
            [*auditor, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        found = json.loads(done.stdout)
        assert (done.returncode, found["verdict"]) == (0, "VALID"), done
        assert found["counted"]["witnesses cosigned the head of the log of heads"] == 1
    other = folder / "other.json"
    query_id = log.rows[FEBRUARY, 0]["query_id"]
    assert run(log, "audit", "prove", query_id, "-o", other).returncode == 0
    done = affidavit("audit", "check", other, "--public-key", key, "--heads", heads)
    assert done.returncode == 1 and "TAMPERED" in done.stdout  # the proof is of another head of the month


@pytest.mark.parametrize(
    ("policy", "words"),
    [("quorum nobody\n", "Line 1 of the witness policy is wrong"), (None, "cannot be used")],
)
async def test_a_wrong_policy_is_named_before_anything_starts(
    log: SealedLog, policy: str | None, words: str
) -> None:
    if policy:
        (log.folder / "p").write_text(policy)
    done = run(log, "audit", "seal", "--once", AFFIDAVIT_WITNESS__POLICY="p")
    assert done.returncode == 1 and words in done.stderr


async def test_a_required_quorum_needs_a_policy(log: SealedLog) -> None:
    done = run(log, "audit", "status", AFFIDAVIT_WITNESS__REQUIRED="true")
    assert done.returncode == 1 and "witness.policy names no file" in done.stderr
