"""The engine is asked sixty questions about itself, of its manual: a wrong answer must not be of high confidence."""

import json
import os
import subprocess
import sys

from tests.conftest import PATIENCE, ROOT
from tests.labelled import OWN, own

ASKED_S = 600
QUESTIONS = OWN / "manual_questions.jsonl"


def test_no_wrong_answer_about_the_manual_is_of_high_confidence() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "engine.cli", "eval", str(QUESTIONS), "--docs", "docs", "--json"],
        cwd=ROOT, env=os.environ | PATIENCE, capture_output=True, text=True, timeout=ASKED_S, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    trials = json.loads(asked.stdout)["trials"]
    assert len(trials) == 60
    assert [one for one in trials if (one["outcome"], one["level"]) == ("wrong", "high")] == []


def test_the_questions_name_pages_that_exist() -> None:
    labelled = own(QUESTIONS.name)
    pages = {item["file"] for item in labelled if item["kind"] == "answerable"}
    assert [page for page in sorted(pages) if not (ROOT / "docs" / page).is_file()] == []
