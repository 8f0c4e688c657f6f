"""Labelled data: our own in tests/data, and published data beside the checkout."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


def sample_questions() -> list[dict[str, Any]]:
    lines = (ROOT / "tests/data/sample_questions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


SHARED = ROOT.parent / "shared" / "data"


def shared(name: str) -> Path:
    """Published data that stands beside the repository, where it stands at all."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not there")
    return path


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shared(name).read_text().splitlines()]
