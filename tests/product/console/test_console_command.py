"""`affidavit console`: the pages alone, on this machine, with a login that can only read the log."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from engine import settings as settings_file
from engine import wiring
from engine.answer import Asked
from engine.house import House
from engine.models import Client, Trail
from engine.storage.database import Database
from tests.conftest import HUNG_S, PATIENCE, ROOT, killed_after
from tests.in_process import application
from tests.product.console.signed_in import form_token_in

WRITES = ["/console/verification"]


class Opened:
    """The console of one command, and the code that it printed."""

    def __init__(self, url: str, code: str) -> None:
        self.url, self.code = url, code

    def browser(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Origin": self.url}, timeout=30)


@pytest.fixture(scope="module")
def opened(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """As an auditor's login, in a data folder without a key."""
    folder = tmp_path_factory.mktemp("auditor")
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "console", "--port", "0", "--no-open", "--data-dir", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env=os.environ | PATIENCE | {"DATABASE_URL": make_conninfo(database.url, user="affidavit_auditor")},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        with killed_after(HUNG_S, process):
            yield Opened(*_read_start(process.stdout))
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


def _read_start(lines: Iterator[str]) -> tuple[str, str]:
    said, address = [], ""
    for line in lines:
        said.append(line)
        if line.startswith("The console is at "):
            address = line.split()[-1].removesuffix("/console")
        if line.startswith("Code to sign in: "):
            return address, line.split()[-1]
    raise AssertionError("".join(said))


@pytest.fixture
def client(opened: Opened) -> Iterator[httpx.Client]:
    with opened.browser() as signed_in:
        assert signed_in.post("/console/sign-in", data={"key": opened.code}).status_code == 303
        yield signed_in


def test_an_auditors_login_sees_the_coverage(client: httpx.Client) -> None:
    page = client.get("/console")
    assert page.status_code == 200
    assert "Months ahead" in page.text
    assert "affidavit audit verify" in page.text
    assert client.get("/console/charts").status_code == 200
    assert "affidavit_auditor" in page.text
    assert "This console only reads" in page.text


@pytest.fixture
async def query_id(anyio_backend: str, house: House, key: str) -> str:
    async with application(house, key=key) as (_, reader):
        told = await reader.post("/v1/query", json={"query": "Why do humanoid robots need an IMU?"})
    return str(told.json()["query_id"])


# Seen red: the parts that a console alone does not have were asked for public keys, and each record was a failure.
def test_a_record_is_found_and_opened_without_a_public_key(client: httpx.Client, query_id: str) -> None:
    """Its folder has none, so what was signed cannot be judged, and the page says so."""
    page = client.get("/console/search", params={"text": query_id})
    assert page.status_code == 303
    page = client.get(page.headers["location"])
    assert page.status_code == 200
    assert "IMU" in page.text
    assert "CANNOT_TELL" in page.text
    assert client.get(f"{page.url.path}/proof").status_code in {200, 409}  # it may wait for its seal
    assert query_id in client.get("/console/search", params={"text": "humanoid robots"}).text
    token = form_token_in(client.get("/console").text)
    pasted = client.post("/console/search", data={"form_token": token, "pasted": query_id})
    assert pasted.headers["location"].endswith(query_id)


async def test_it_judges_with_the_keys_of_its_folder(house: House, database: Database) -> None:
    async with wiring.open_console(database.settings, database) as (alone, _):
        assert await alone.public_keys() == await house.public_keys() != []


# Seen red: entries that always answered with 403.
def test_each_entry_of_the_navigation_opens(client: httpx.Client) -> None:
    entries = re.findall(r'<li><a href="(/console[^"]*)"', client.get("/console").text)
    assert "/console/search" in entries
    assert {path: client.get(path).status_code for path in entries} == dict.fromkeys(entries, 200)
    assert "Keep this search" not in client.get("/console/search").text


def test_only_the_code_signs_in(opened: Opened) -> None:
    with opened.browser() as nobody:
        assert nobody.get("/console").status_code == 401
        assert nobody.post("/console/sign-in", data={"key": "guessed"}).status_code == 401
        assert nobody.get("/console").status_code == 401


@pytest.mark.parametrize("path", WRITES)
def test_nothing_is_changed(client: httpx.Client, database: Database, path: str) -> None:
    with psycopg.connect(database.url) as connection:
        count = "SELECT (SELECT count(*) FROM verification_runs), (SELECT count(*) FROM console_sessions)"
        before = connection.execute(count).fetchone()
        token = form_token_in(client.get("/console").text)
        assert client.post(path, data={"form_token": token}).status_code == 403
        assert connection.execute(count).fetchone() == before


def test_it_answers_no_question_and_has_no_page_but_its_own(client: httpx.Client) -> None:
    assert client.post("/v1/query", json={"query": "What is ROS 2?"}).status_code == 404
    assert client.get("/").status_code == 404
    assert client.get("/metrics").status_code == 404


def test_signing_out_ends_it(client: httpx.Client) -> None:
    token = form_token_in(client.get("/console").text)
    assert client.post("/console/sign-out", data={"form_token": token}).status_code == 200
    assert client.get("/console").status_code == 401


# Seen red with the access left out of `close`.
async def test_what_it_shows_of_people_is_reported_before_it_is_shown(
    database: Database, tmp_path: Path
) -> None:
    """The login writes no record: the read waits in the database until an engine records it."""
    url = make_conninfo(database.url, user="affidavit_auditor")
    settings = settings_file.load({"DATABASE_URL": url}, data_dir=tmp_path)
    async with wiring.open_console(settings, Database(url, settings)) as (house, code):

        async def read(_: Client, trail: Trail) -> str:
            trail.details = {
                "access": {
                    "who": "x", "role": "auditor", "filter": "secret words", "columns": ["answer_text"], "records": 3, "basis": None,
                    "second": None,
                }
            }  # fmt: skip
            return "shown"

        asked = Asked("/console/search", "", secret=code, scopes=frozenset({"audit"}))
        assert await house.engine.serve(asked, read) == "shown"
    with psycopg.connect(database.url) as connection:
        query = "SELECT login FROM audit_reads_waiting WHERE details::text LIKE '%secret words%'"
        waiting = connection.execute(query).fetchall()
        recorded = connection.execute(
            "SELECT who FROM audit_access WHERE asked_for = 'secret words'"
        ).fetchall()
    assert waiting or recorded
