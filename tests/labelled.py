"""Labelled data: our own in tests/data, and more that is published, where it is beside the checkout (../shared/data)."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

OWN, PUBLISHED = ROOT / "tests" / "data", ROOT.parent / "shared" / "data"
SAMPLE_BOOK = ROOT / "config" / "sample-book"
PHYSICAL_AI = PUBLISHED / "books" / "physical-ai" / "docs"
BOOKS = [SAMPLE_BOOK, *([PHYSICAL_AI] if PHYSICAL_AI.is_dir() else [])]


def own(name: str) -> list[dict[str, Any]]:
    return _rows(OWN / name)


def published(name: str) -> list[dict[str, Any]]:
    """None, where it is not beside the checkout."""
    return _rows(PUBLISHED / name) if (PUBLISHED / name).exists() else []


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def sample_questions() -> list[dict[str, Any]]:
    return own("sample_questions.jsonl")
