"""The version of the code that reads files: it changes with the code, and with nothing else."""

import shutil
from pathlib import Path

import pytest

from ingest import reading_version
from ingest.reading_version import CODE, HOUSE


def version_at(house: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(reading_version, "HOUSE", house)
    return reading_version.reading_version.__wrapped__()


# Seen red with the names of the files left out, and with the parsers' versions left out.
def test_any_change_of_a_reader_or_a_parser_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in CODE:
        if (HOUSE / place).is_dir():
            shutil.copytree(HOUSE / place, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HOUSE / place, tmp_path / place)
    found = [version_at(HOUSE, monkeypatch)]
    assert version_at(tmp_path, monkeypatch) == found[0]
    reader = tmp_path / "ingest" / "read" / "text.py"
    reader.write_text(reader.read_text() + "\n")
    found.append(version_at(tmp_path, monkeypatch))
    reader.rename(reader.with_name("texts.py"))
    found.append(version_at(tmp_path, monkeypatch))
    monkeypatch.setattr(reading_version, "_version", lambda name: "9" if name == "pypdf" else "1")
    found.append(version_at(tmp_path, monkeypatch))
    monkeypatch.setattr(reading_version, "_version", lambda _: "1")
    found.append(version_at(tmp_path, monkeypatch))
    assert len(set(found)) == 5
