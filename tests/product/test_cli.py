"""The console script: help with an example, JSON where it reports, exit codes that a script can trust."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.cli.main import COMMANDS, parser
from engine.cli.output import print_rows
from engine.storage.database import Database
from tests.command_line import affidavit
from tests.conftest import ROOT, Records


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_it_does_and_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*name.split(), "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert (COMMANDS[name].run.__doc__ or "?").split()[0] in said
    assert "Example: affidavit" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_is_an_example_of_it(name: str) -> None:
    assert shlex.split(COMMANDS[name].example)[1 : 1 + len(name.split())] == name.split()


def test_the_version_is_the_one_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "affidavit 0.1.0\n")


# Seen red: the readers of all formats, Arrow and the web framework were loaded by each command.
@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        (
            "engine.cli.main",
            {"nltk", "pypdf", "selectolax", "pyarrow", "fastapi", "duckdb", "boto3", "onnxruntime"},
        ),
        ("engine.cli.serving", {"nltk", "pypdf", "selectolax", "pyarrow", "duckdb", "boto3"}),
        ("ingest.read.sandbox", {"nltk", "pypdf", "selectolax", "numpy"}),
        ("audit.checking.range_judge", {"pyarrow", "numpy"}),
    ],
)
def test_a_process_loads_nothing_heavy_before_it_needs_it(module: str, unloaded: set[str]) -> None:
    listing = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert unloaded & set(loaded) == set()


@pytest.mark.parametrize("words", ["", "nothing", "keys", "ingest", "ask", "up --port many"])
def test_wrong_usage_exits_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words.split())
    assert ended.value.code == 2
    assert "usage: affidavit" in capsys.readouterr().err


def test_ask_prints_the_answer_and_leaves_a_row(data_dir: Path, records: Records) -> None:
    said = affidavit("ask", "What is gimbal lock?", "--json", data_dir=data_dir)
    body: dict[str, Any] = json.loads(said.stdout)
    assert said.returncode == 0
    assert body["outcome"] == "answered"
    (row,) = records.of(body["query_id"])
    assert (row["endpoint"], row["client_id"], row["limit_decision"]) == (
        "affidavit ask",
        "operator",
        "operator",
    )
    plain = affidavit("ask", "Who wrote Pride and Prejudice?", data_dir=data_dir)
    assert plain.returncode == 0
    assert plain.stdout.startswith("This question is not covered in the book.")
    assert "nearest:" in plain.stdout


def test_ask_of_a_book_that_is_not_there(data_dir: Path, database: Database) -> None:
    said = affidavit("ask", "What?", "--book", "nothing", data_dir=data_dir)
    assert said.returncode == 1
    assert said.stderr.startswith("affidavit: There is no book nothing. Published here: ")
    assert "(query " in said.stderr


def test_books_as_table_and_json(data_dir: Path, database: Database) -> None:
    (book,) = [
        book
        for book in json.loads(affidavit("books", "--json", data_dir=data_dir).stdout)
        if book["book_id"] == "physical-ai"
    ]
    assert book["documents"] == 10
    assert "physical-ai" in affidavit("books", data_dir=data_dir).stdout


def test_a_key_is_shown_once_listed_and_revoked(data_dir: Path, database: Database) -> None:
    secret = affidavit(
        "keys", "create", "--client", "site", "--limit", "5/minute", data_dir=data_dir
    ).stdout.strip()
    key_id = secret.split("_")[1]
    listed = affidavit("keys", "list", "--json", data_dir=data_dir).stdout
    assert key_id in listed
    assert secret.split("_")[2] not in listed
    assert affidavit("keys", "revoke", key_id, data_dir=data_dir).returncode == 0
    again = affidavit("keys", "revoke", key_id, data_dir=data_dir)
    assert (again.returncode, again.stdout.strip()) == (
        1,
        f"There is no valid key {key_id}: run `affidavit keys list`.",
    )


def test_an_auditor_cannot_write_nor_read_keys(data_dir: Path, database: Database) -> None:
    for sql in ("DELETE FROM audit_logs", "SELECT * FROM api_keys", "SELECT nonsense"):
        said = affidavit("audit", "query", sql, data_dir=data_dir)
        assert said.returncode == 2
        assert said.stderr.startswith("The query failed:")


# Seen red with the driver's words: "the operation in stream() didn't produce a result".
@pytest.mark.parametrize("sql", ["", "SET statement_timeout = 0", "COMMIT"])
def test_sql_that_gives_no_rows_is_refused_in_plain_words(
    sql: str, data_dir: Path, database: Database
) -> None:
    said = affidavit("audit", "query", sql, data_dir=data_dir)
    assert said.returncode == 2
    assert said.stderr.startswith("The query failed: it is empty, or gives no rows. Write one SELECT")


def test_doctor_has_a_line_for_each_part(data_dir: Path, database: Database, key: str) -> None:
    said = affidavit("doctor", "--json", data_dir=data_dir)
    findings = json.loads(said.stdout)
    assert [finding for finding in findings if finding["state"] != "ok"] == []
    assert said.returncode == 0
    assert len(findings) == 32
    assert len(affidavit("doctor", data_dir=data_dir).stdout.splitlines()) == 32


def test_doctor_names_what_is_missing_and_what_to_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    said = affidavit("doctor", data_dir=tmp_path_factory.mktemp("d"))
    assert said.returncode == 1
    assert "affidavit ingest PATH --book physical-ai" in said.stdout
    assert "affidavit keys create" in said.stdout


# Seen red as before: `ingest` read the whole book and failed in the database, `calibrate` said that there is no such book.
@pytest.mark.parametrize("book", ["../x", "", "Robots", "-x", "a/b", "x" * 64, "x\n", "é"])
@pytest.mark.parametrize(
    "words",
    [
        ["ingest", "README.md"],
        ["ask", "What?"],
        ["calibrate", "--questions", "x.jsonl"],
        ["keys", "create", "--client", "x"],
        ["index", "check"],
        ["index", "rebuild"],
    ],
    ids=" ".join,
)
def test_what_is_no_book_id_is_refused_with_the_rule(
    words: list[str], book: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*words, f"--book={book}"])
    assert ended.value.code == 2
    assert "is not a book ID, which is 1 to 63 lower-case letters" in capsys.readouterr().err


def test_a_default_book_that_is_no_id_is_refused_with_the_rule(data_dir: Path) -> None:
    said = affidavit("books", data_dir=data_dir, AFFIDAVIT_BOOKS__DEFAULT="../x")
    assert said.returncode == 1
    assert "books.default" in said.stderr
    assert "is not a book ID, which is 1 to 63 lower-case letters" in said.stderr


# Seen red as before: the key was created, and got 403 at its first use.
def test_a_key_that_could_never_be_used_is_not_created(data_dir: Path, database: Database) -> None:
    said = affidavit(
        "keys", "create", "--client", "x", "--scope", "ask,erase", "--book", "robots", data_dir=data_dir
    )
    assert (said.returncode, said.stdout) == (2, "")
    assert "an erasure reaches all books" in said.stderr


def test_a_wrong_setting_is_named(data_dir: Path) -> None:
    said = affidavit("books", data_dir=data_dir, AFFIDAVIT_RETRIEVAL__TRESHOLD="0.7")
    assert said.returncode == 1
    assert "retrieval.treshold: there is no such setting" in said.stderr


def test_a_provider_that_is_not_available_is_named_with_those_that_are(
    data_dir: Path, database: Database
) -> None:
    said = affidavit("ask", "What?", data_dir=data_dir, AFFIDAVIT_PROVIDERS__EMBEDDER="word2vec")
    assert said.returncode == 1
    assert 'providers.embedder = "word2vec" is not available here. Available: cohere, minilm.' in said.stderr


def test_claude_without_a_key_says_which_variable_to_set(data_dir: Path, database: Database) -> None:
    said = affidavit("ask", "What?", data_dir=data_dir, AFFIDAVIT_PROVIDERS__GENERATOR="claude")
    assert said.returncode == 1
    assert "ANTHROPIC_API_KEY" in said.stderr


def test_a_port_in_use_is_said_at_once(data_dir: Path, server: Any) -> None:
    port = server.url.rsplit(":", 1)[1]
    said = affidavit("up", "--port", port, data_dir=data_dir)
    assert said.returncode == 1
    assert f"Port {port} cannot be used (Address already in use). Use another one: --port" in said.stderr


def test_ingest_reports_as_json(data_dir: Path, database: Database, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Cups\n\nA cup holds tea. A saucer holds the cup.\n")
    (tmp_path / "bad.md").write_bytes(b"\xff\xfe\xff")
    said = affidavit("ingest", tmp_path, "--book", "cups", "--json", data_dir=data_dir)
    result = json.loads(said.stdout)
    assert set(result) == {
        "book", "language", "embedder", "generation", "files_processed", "chunks_created", "chunks_reused", "chunks_removed",
        "chunks_restored", "errors", "index_rebuilt", "warnings", "exit_code", "seconds",
    }  # fmt: skip
    assert (result["files_processed"], result["chunks_created"]) == (1, 1)
    assert [error["file"] for error in result["errors"]] == ["bad.md"]
    assert said.returncode == result["exit_code"] == 1


# Seen red with the texts printed as they are: a stranger's question cleared an auditor's screen, and looked like a column.
@pytest.mark.parametrize("count", [1, 2])
def test_a_question_steers_no_terminal_of_an_auditor(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"question": "\x1b[2J\x07IMU\r\u202ex\noutcome  answered", "outcome": "refused"}] * count)
    shown = capsys.readouterr().out
    assert r"\x1b[2J\x07IMU\r\u202ex" in shown
    assert not set("\x1b\x07\r\u202e") & set(shown)
    assert "\noutcome  answered" not in shown
