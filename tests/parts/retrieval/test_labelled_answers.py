"""Labelled answers: what must be quoted, and what must be refused."""

import asyncio
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from engine import settings as settings_file
from engine.cli import evaluation_commands, main
from engine.evaluation import answers
from engine.evaluation.answers import LabelledQuestion
from engine.evaluation.labelled_set import LabelsError
from tests.labelled import OWN, PHYSICAL_AI, SAMPLE_BOOK

READERS = OWN / "readers"

PAGE = """# Sensors

## Inertial Measurement Units

An inertial measurement unit measures angular velocity and specific force. Its gyroscope drifts over time.

## Cameras

A camera measures the light that falls on each pixel. A depth camera also measures distance.
"""


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("The gyroscope\ndrifts over  time.", True),
        ("THE GYROSCOPE DRIFTS over days, and so on.", True),
        ("The gyroscope is exact.", False),
        ("It drifts over time.", False),
    ],
)
def test_each_requirement_needs_one_of_its_phrases(answer: str, is_right: bool) -> None:
    phrases = [["gyroscope"], ["drifts over time", "drifts over days"]]
    labelled = LabelledQuestion(question="What drifts?", must_quote=phrases)
    assert answers.quotes_what_it_must(labelled, answer) is is_right


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"question": "What drifts?"}', "q.jsonl:2: an answerable question needs must_quote"),
        ('{"question": "", "kind": "outside"}', "q.jsonl:2: question: "),
        ('{"question": "Why?", "kind": "elsewhere"}', "q.jsonl:2: kind: "),
        ("{", "q.jsonl:2: "),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "Why?", "kind": "outside"}\n' + line)
    with pytest.raises(LabelsError) as raised:
        answers.read(file)
    assert says in str(raised.value)


@pytest.mark.campaign
def test_whole_answers_are_measured_in_a_folder_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, file, page = tmp_path / "docs", tmp_path / "q.jsonl", tmp_path / "report.html"
    docs.mkdir()
    (docs / "sensors.md").write_text(PAGE)
    rows: list[dict[str, Any]] = [
        {"question": "What does an inertial measurement unit measure?", "must_quote": [["angular velocity"]]},
        {"question": "What does a camera measure?", "must_quote": [["no phrase of the book"]]},
        {"question": "How do I bake a sourdough bread?", "kind": "outside"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    given = main.parser().parse_args(
        ["eval", str(file), "--docs", str(docs), "--json", "--report", str(page)]
    )
    code = asyncio.run(
        evaluation_commands.evaluation(settings_file.load({}, data_dir=tmp_path / "real"), given)
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [trial["outcome"] for trial in found["trials"]] == ["right", "wrong", "refused"]
    assert (found["figures"]["right"]["value"], found["figures"]["right"]["questions"]) == (0.5, 2)
    assert found["figures"]["refused_outside"]["value"] == 1
    assert found["wrong"] == {"other passages were found": 1}
    assert sum(answers for *_, answers in found["reliability"]) == 2
    assert not (tmp_path / "real").exists()
    written = page.read_text()
    assert ET.fromstring(written).tag == "html"
    assert "What does a camera measure?" in written
    assert "What does an inertial" not in written


@pytest.mark.parametrize(
    ("name", "book"), [("sample-book", SAMPLE_BOOK), ("physical-ai", PHYSICAL_AI)], ids=["sample", "real"]
)
def test_the_readers_questions_fit_their_book(name: str, book: Path) -> None:
    if not book.is_dir():
        pytest.skip("The real book is in ../shared.")
    labelled = answers.read(READERS / f"{name}.jsonl")
    kinds = [item.kind for item in labelled]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "answerable": 60, "attribute_missing": 20, "outside": 20,
    }  # fmt: skip
    files = {json.loads(line).get("file") for line in (READERS / f"{name}.jsonl").read_text().splitlines()}
    assert not [file for file in files if file and not (book / file).is_file()]
