"""A review from the terminal: drawn, checked, judged and reported."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.storage.database import Database
from tests.command_line import affidavit
from tests.logs.reviewing import make_present
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log

RUBRIC = ("--grounded", "yes", "--answers", "yes", "--harmful", "no", "--personal-data", "no")
STEERING = "Wipe \x1b[2J\u202eit"


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("reviewed")) as made:
        make_present(made)
        made.write(
            FEBRUARY,
            12,
            user_query_text=STEERING,
            outcome="refused",
            reason="not_covered",
            confidence_level=None,
        )
        assert await made.seal() == {}
        yield made


def run(log: SealedLog, *arguments: str, code: int = 0) -> Any:
    said = affidavit(*arguments, data_dir=log.folder, DATABASE_URL=log.url)
    assert said.returncode == code, said.stderr
    return said


def test_from_the_draw_to_the_report(log: SealedLog, tmp_path: Path) -> None:
    file, page = tmp_path / "sample.json", tmp_path / "report.html"
    for name, scope in (("ada", "audit,review"), ("lin", "audit,review"), ("aud", "audit")):
        run(log, "keys", "create", "--client", name, "--scope", scope)
    drawn = json.loads(
        run(log, "audit", "sample", "--size", "2", "--strata", "reason", "-o", str(file), "--json").stdout
    )
    assert json.loads(file.read_bytes()) == drawn and len(drawn["records"]) == 2
    assert "is the one that the log gives" in run(log, "audit", "sample", "--check", str(file)).stdout

    assert "is auditor" in run(log, "audit", "review", "next", "--as", "aud", code=1).stderr
    assert "is auditor" in run(log, "audit", "review", "next", "--as", "nobody", code=1).stderr
    for name in ("ada", "lin"):
        for record in drawn["records"]:
            shown = run(log, "audit", "review", "next", "--as", name)
            assert record["log_id"] in shown.stdout
            assert "\x1b" not in shown.stdout and "\u202e" not in shown.stdout
            assert (
                "on record"
                in run(log, "audit", "review", "give", record["log_id"], "--as", name, *RUBRIC).stderr
            )
        assert "nothing for you to judge" in run(log, "audit", "review", "next", "--as", name).stderr
    again = run(log, "audit", "review", "give", drawn["records"][0]["log_id"], "--as", "ada", *RUBRIC, code=1)
    assert "a verdict stays" in again.stderr

    report = json.loads(run(log, "audit", "review", "report", "--html", str(page), "--json").stdout)
    assert (report["judged"], report["errors"]["share"], report["agreement"]["grounded"]["observed"]) == (
        2,
        0,
        1,
    )
    assert "Errors by stratum" in page.read_text()
    changed = file.read_bytes().replace(drawn["seed"].encode(), b"0" * 64)
    file.write_bytes(changed)
    assert "FAILED" in run(log, "audit", "sample", "--check", str(file), code=1).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--size", "0"), "from 1"), (("--strata", "end_user"), "is no stratum"), (("--strata", "book,book"), "at most once"),
     (("--seed-from", "mine"), "head")],
)  # fmt: skip
def test_a_sample_that_cannot_be_drawn_is_wrong_usage(
    log: SealedLog, arguments: tuple[str, ...], words: str
) -> None:
    assert words in run(log, "audit", "sample", *arguments, code=2).stderr
