"""A certificate says what a score means, on the word of labelled questions; only for what it was made for."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.types.json import Jsonb

from engine import wiring
from engine.cli import doctor, main
from engine.errors import AffidavitError, NotSeparableError, UnknownBookError
from engine.models import Calibration, Generation
from engine.retrieval.calibrate import Certificate
from engine.settings import CONFIG, Settings
from engine.storage.database import Database
from engine.wiring import SAMPLE_BOOK
from ingest.self_calibration import headings, read_probes
from tests.command_line import affidavit
from tests.conftest import running
from tests.databases import data_of_its_own

BOOK, TINY = "robots", "cups"
PROBES = read_probes((CONFIG / "calibration" / "probes.txt").read_text("utf-8"))
ASKED, OTHERS = (
    PROBES[::5],
    PROBES[1::5],
)  # what the book is published with, and what a certificate is made of
ENVELOPE = {"calibration", "data_sha256", "questions", "threshold", "kept", "let_through", "near_misses_let_through",
            "risk_coverage", "scores"}  # fmt: skip

Line = dict[str, Any]


@pytest.fixture(scope="module")
def shelf_settings(database: Database) -> Iterator[Settings]:
    """A database of its own in the running server, and an index of its own."""
    with data_of_its_own(database, ASKED, AFFIDAVIT_BOOKS__DEFAULT=BOOK) as made:
        yield made


@pytest.fixture(scope="module")
async def shelf(shelf_settings: Settings) -> AsyncIterator[Database]:
    """The sample book and a very small one, self-calibrated."""
    async with wiring.open_database(shelf_settings, lambda _: None) as opened:
        opened.migrate()
        await wiring.make_months_ahead(opened, wiring.now().date())
        await ingested(shelf_settings, opened, BOOK, SAMPLE_BOOK)
        await ingested(shelf_settings, opened, TINY, cups(shelf_settings.data_dir))
        yield opened


@pytest.fixture(autouse=True)
def no_certificate(shelf: Database) -> Iterator[None]:
    yield
    with psycopg.connect(shelf.url) as connection:
        connection.execute("DELETE FROM calibrations")


@pytest.fixture(scope="module")
async def questions(shelf: Database) -> list[Line]:
    """Headings of the book as questions, and what is not in it."""
    async with wiring.open_registry(shelf) as registry:
        names = sorted(await registry.live_chunk_ids(BOOK))
        inside = headings(list((await registry.passages(names)).values()))
    return [
        *({"text": text, "answerable": True} for text in inside[:60]),
        *({"text": text, "answerable": False} for text in OTHERS),
        *({"text": f"{text} Why not?", "answerable": False, "kind": "near_miss"} for text in inside[:10]),
    ]


def cups(folder: Path, more: str = "") -> Path:
    file = folder / "cups.md"
    file.write_text(f"# Cups\n\nA cup holds tea. A saucer holds the cup. {more}\n")
    return file


async def ingested(settings: Settings, shelf: Database, book: str, path: Path) -> list[str]:
    async with wiring.open_ingest(settings, shelf, lambda *_: None) as ingest:
        result = await ingest.run([path], book, "Robots")
    assert result.exit_code == 0
    return result.warnings


def environment(settings: Settings) -> dict[str, str]:
    return {
        "DATABASE_URL": settings.database.url.get_secret_value(),
        "AFFIDAVIT_CALIBRATION__PROBES_FILE": settings.calibration.probes_file,
        "AFFIDAVIT_BOOKS__DEFAULT": BOOK,
    }


@dataclass(frozen=True)
class Said:
    """What a command did."""

    code: int
    out: str
    err: str


async def run(settings: Settings, *arguments: object) -> Said:
    """A command in this process: a new one would load the embedder each time."""
    given = main.parser().parse_args([*map(str, arguments)])
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = await given.run(settings, given)
    return Said(code, out.getvalue(), err.getvalue())


async def calibrate(settings: Settings, file: Path, *more: object, book: str = BOOK) -> Said:
    return await run(settings, "calibrate", "--book", book, "--questions", file, *more)


def written(folder: Path, lines: list[Line]) -> Path:
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def certificates(shelf: Database) -> int:
    with psycopg.connect(shelf.url) as connection:
        row = connection.execute("SELECT count(*) FROM calibrations").fetchone()
    assert row is not None
    return int(row[0])


async def live(shelf: Database, book: str = TINY) -> Generation:
    async with wiring.open_registry(shelf) as registry:
        return await registry.live(book)


def certificate(calibration: Calibration, **changed: Any) -> Certificate:
    """One that says the same with another name, as far as nothing is changed."""
    made = replace(calibration, kind="labelled", calibration_id=f"labelled-{uuid4().hex[:12]}", **changed)
    return Certificate(made, "data", {}, 0.6, 1.0, 0.0, None, [], {})


async def certify(shelf: Database, certified: Certificate, book: str = TINY) -> str:
    async with wiring.open_registry(shelf, "affidavit_owner") as registry:
        await registry.certify(book, certified)
    return certified.calibration.calibration_id


# --- affidavit calibrate


# Seen red with the table printed beside the object.
@pytest.mark.campaign
async def test_a_certificate_is_one_object_in_force_and_in_every_report(
    shelf_settings: Settings, shelf: Database, questions: list[Line], tmp_path: Path
) -> None:
    file = written(tmp_path, questions)
    said = await calibrate(shelf_settings, file, "--json")
    certified = json.loads(said.out)
    assert (said.code, set(certified)) == (0, ENVELOPE)
    assert certified["questions"] == {"answerable": 60, "out_of_scope": len(OTHERS), "near_miss": 10}
    assert certified["kept"] >= 0.9
    assert certified["let_through"] <= 0.1
    name = certified["calibration"]["calibration_id"]
    assert (await live(shelf, BOOK)).calibration.calibration_id == name
    books = {row["book_id"]: row for row in json.loads((await run(shelf_settings, "books", "--json")).out)}
    assert (books[BOOK]["calibration_kind"], books[BOOK]["calibration"]) == ("labelled", name)
    assert (books[TINY]["calibration_kind"], books[BOOK]["warnings"]) == ("self", [])
    state, words = await doctor._calibration(shelf_settings, shelf)
    assert (state, f"{BOOK}, labelled ({name})" in words) == ("ok", True)
    again = await calibrate(shelf_settings, file, "--json")
    assert json.loads(again.out) == certified
    assert certificates(shelf) == 1


@pytest.mark.campaign
async def test_what_is_printed_and_the_report_say_the_same(
    shelf_settings: Settings, shelf: Database, questions: list[Line], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    said = await calibrate(shelf_settings, written(tmp_path, questions), "--report", page)
    about, *table = said.out.splitlines()
    assert about.startswith("Certificate labelled-")
    (gate,) = [line for line in table if "0.60 (gate)" in line]
    html = page.read_text()
    assert ET.fromstring(html).tag == "html"
    assert html.count("<svg") == 2
    assert about.split(":")[0] in html
    assert "0.60 (gate)" in html
    assert not re.findall(r"<script|(?:src|href)=|url\(|@import", html)
    kept, let_through = re.findall(r"[\d.]+%", gate)
    assert f"keeps {kept} and lets {let_through} through" in html


# The id is of the curves alone: as the only key it would leave the second book without one.
async def test_a_certificate_may_be_that_of_two_equal_books(shelf: Database) -> None:
    one = certificate((await live(shelf)).calibration)
    for book in (TINY, BOOK):
        await certify(shelf, one, book)
    for book in (TINY, BOOK):
        assert (await live(shelf, book)).calibration == one.calibration


# More near misses leave the curves and so the id as they are. Seen red with only the time brought up to date.
async def test_what_is_stored_is_what_was_measured_last(shelf: Database) -> None:
    one = certificate((await live(shelf)).calibration)
    for near_misses in (0, 10):
        await certify(shelf, replace(one, questions={"near_miss": near_misses}))
    with psycopg.connect(shelf.url) as connection:
        stored = connection.execute("SELECT certificate FROM calibrations").fetchall()
    assert [row[0]["questions"] for row in stored] == [{"near_miss": 10}]


# --- What is refused


async def test_sets_that_do_not_separate_are_refused_and_nothing_is_stored(
    shelf_settings: Settings, shelf: Database, questions: list[Line], tmp_path: Path
) -> None:
    mixed = [line | {"answerable": number % 2 == 0} for number, line in enumerate(questions[:120])]
    with pytest.raises(
        NotSeparableError, match=r"\(AUROC 0\.\d{3}, at least 0\.9 is required\).* Check the labels"
    ):
        await calibrate(shelf_settings, written(tmp_path, mixed))
    assert certificates(shelf) == 0


GOOD = '{"text": "What?", "answerable": true}'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f"{GOOD}\n{{nonsense\n", "questions.jsonl:2: Invalid JSON"),
        (f"{GOOD}\n[]\n", "questions.jsonl:2: Input should be an object"),
        (f'{GOOD}\n\n{{"answerable": true}}\n', "questions.jsonl:3: text: Field required"),
        (f'{GOOD}\n{{"text": "What?"}}\n', "questions.jsonl:2: answerable: Field required"),
        (f'{GOOD}\n{{"text": "", "answerable": true}}\n', "questions.jsonl:2: text: "),
        (f'{GOOD}\n{{"text": " ", "answerable": true}}\n', "questions.jsonl:2: text: "),
        ('{"text": "What?", "answerable": false, "kind": "odd"}\n', "questions.jsonl:1: kind: "),
        ('{"text": "What?", "answerable": true, "kind": "near_miss"}\n', "questions.jsonl:1: "),
        ('{"text": "What?", "answerable": true, "kind": "out_of_scope"}\n', "questions.jsonl:1: "),
        (b'{"text": "Wh\xff?", "answerable": true}\n', "questions.jsonl:1: Invalid JSON"),
        ("", "questions.jsonl contains no questions"),
        (None, "questions.jsonl"),
    ],
    ids=["json", "list", "no text", "no answerable", "empty text", "blank text", "kind", "near and answerable",
         "out and answerable", "not UTF-8", "empty", "missing"],
)  # fmt: skip
async def test_a_file_that_cannot_be_used_is_named_with_its_line(
    shelf_settings: Settings, shelf: Database, tmp_path: Path, content: str | bytes | None, says: str
) -> None:
    file = tmp_path / "questions.jsonl"
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises((AffidavitError, OSError)) as wrong:
        await calibrate(shelf_settings, file)
    assert says in str(wrong.value)
    assert certificates(shelf) == 0


def test_what_is_wrong_is_said_in_a_line_with_exit_1(
    shelf_settings: Settings, shelf: Database, tmp_path: Path
) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(f"{GOOD}\nnonsense\n")
    said = affidavit(
        "calibrate", "--book", BOOK, "--questions", file,
        data_dir=shelf_settings.data_dir, **environment(shelf_settings),
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.splitlines()[-1].startswith(f"affidavit: {file}:2: Invalid JSON")
    assert "Traceback" not in said.stderr


async def test_a_book_that_is_not_there_is_named(
    shelf_settings: Settings, shelf: Database, questions: list[Line], tmp_path: Path
) -> None:
    with pytest.raises(UnknownBookError):
        await calibrate(shelf_settings, written(tmp_path, questions), book="nothing")
    assert "book" in str(UnknownBookError())


# --- In force


# Seen red with the certificate read only together with a new generation's vocabulary.
async def test_a_certificate_is_in_force_at_once_and_survives_an_ingest(
    shelf_settings: Settings, shelf: Database, tmp_path: Path
) -> None:
    async with wiring.open_house(shelf_settings, shelf) as house:
        before = await house.library.live(TINY)
        name = await certify(shelf, certificate(before.calibration))
        assert (await house.library.live(TINY)).calibration.calibration_id == name
        assert await ingested(shelf_settings, shelf, TINY, cups(tmp_path, "A spoon stirs it.")) == []
        after = await house.library.live(TINY)
        newer = await certify(shelf, certificate(before.calibration))
        assert (await house.library.live(TINY)).calibration.calibration_id == newer
    assert after.generation_id != before.generation_id
    assert after.calibration.calibration_id == name


OTHER = {"embedder": "cohere", "dimension": 1024, "normalisation": "max-of-results"}


# Seen red with `mismatch` asked for the embedder only, and with the certificate in force all the same.
@pytest.mark.parametrize("name", OTHER)
async def test_a_certificate_for_something_else_is_not_used_and_that_is_said_loudly(
    shelf_settings: Settings, shelf: Database, tmp_path: Path, name: str
) -> None:
    own = (await live(shelf)).calibration
    unused = await certify(shelf, certificate(own, **{name: OTHER[name]}))
    assert (await live(shelf)).calibration == own
    says = f"The certificate {unused} is not used: it was made for the {name} {OTHER[name]}, not "
    assert f"WARNING: {TINY}: {says}" in (await run(shelf_settings, "books")).err
    state, words = await doctor._calibration(shelf_settings, shelf)
    assert (state, f"{TINY}: {says}" in words) == ("failed", True)
    said = await run(shelf_settings, "ingest", cups(tmp_path, f"Of {name}."), "--book", TINY)
    assert f"WARNING: {says}" in said.err


async def test_serving_starts_with_the_warning(
    shelf_settings: Settings, shelf: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused = await certify(shelf, certificate((await live(shelf)).calibration, dimension=7))
    for variable, value in environment(shelf_settings).items():
        monkeypatch.setenv(variable, value)
    with running(shelf_settings.data_dir, command="serve") as started:
        assert any(f"WARNING: {TINY}: The certificate {unused} is not used" in line for line in started.said)


# --- Roles


@contextmanager
def acting(shelf: Database, role: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(shelf.url) as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        yield connection
        connection.rollback()


# Seen red with INSERT granted to affidavit_engine.
@pytest.mark.parametrize(
    "role", ["affidavit_engine", "affidavit_auditor", "affidavit_sealer", "affidavit_archiver"]
)
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO calibrations (calibration_id, book_id, calibration, certificate) VALUES ('c', 'robots', '{}', '{}')",
        "UPDATE calibrations SET created_at = now()",
        "DELETE FROM calibrations",
        "TRUNCATE calibrations",
    ],
)
def test_only_the_owner_writes_certificates(shelf: Database, role: str, statement: str) -> None:
    with acting(shelf, role) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(statement.encode())


@pytest.mark.parametrize("role", ["affidavit_engine", "affidavit_auditor"])
async def test_engine_and_auditor_read_certificates(shelf: Database, role: str) -> None:
    name = await certify(shelf, certificate((await live(shelf)).calibration))
    with acting(shelf, role) as connection:
        found = connection.execute("SELECT calibration_id, book_id FROM calibrations").fetchall()
    assert found == [(name, TINY)]


@pytest.mark.parametrize("column", ["embedder", "dimension", "lexicon", "content_hash"])
def test_the_engine_changes_nothing_else_of_a_generation(shelf: Database, column: str) -> None:
    update = sql.SQL("UPDATE generations SET {0} = {0}").format(sql.Identifier(column))
    with acting(shelf, "affidavit_engine") as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(update)


def test_the_auditor_changes_no_calibration(shelf: Database) -> None:
    with acting(shelf, "affidavit_auditor") as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute("UPDATE generations SET calibration = %s", (Jsonb({}),))
