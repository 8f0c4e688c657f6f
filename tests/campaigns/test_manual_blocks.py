"""Each tutorial, each how-to and the README, typed block after block into a shell as a reader would: nothing fails, and what a page shows comes."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx
import psycopg
import pytest

from engine import settings as settings_file
from engine.providers.postgres import EmbeddedPostgres
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import HUNG_S, PATIENCE, READY_S, ROOT, free_port, killed_after
from tests.databases import empty_database
from tests.logs.sealed_log import sealed_log
from tests.manual.blocks import PLAYED, Example, examples, is_shown
from tests.manual.documented import PAGES
from tests.pure.reading.pdf_files import column, made
from tests.upstreams import messages, qdrant_server, s3
from tests.upstreams.faults import true_blocks

ASK, ARCHIVES, BUCKET, PRODUCTION, QDRANT, REVIEWS = (
    f"docs/how-to/{page}.md"
    for page in ("ask-the-log", "archive-old-months", "bucket", "production", "qdrant", "review-answers")
)
OWN_DATA = {ARCHIVES, BUCKET, PRODUCTION}  # the other pages have the data of `make run`
ENGINE = "http://127.0.0.1:8000"  # as the pages name it
UNTIL_STOPPED = re.compile(r"make run|\S*affidavit (?:up|serve)\b")
READY = re.compile(r"^Demo key: (\S+)|^Affidavit is ready at")
SITE = "https://book.example.org"
OWN_BOOK = (
    "after-a-failover",
    "disk-database-and-clock",
    "erase-a-person",
    "incident",
    "rotate-keys",
)  # small: it is embedded
PROBES = ROOT / "config/calibration/probes.txt"
IMU = {"query": "What does an IMU measure?"}


@dataclass
class Reader:
    """Somebody with a copy of the repository and a shell, whose exported variables and folder last from block to block."""

    folder: Path
    port: int
    environment: dict[str, str]
    given: dict[str, str] = field(default_factory=dict)  # what a page leaves open as `NAME=…`
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def type(self, example: Example) -> None:
        """The last line may be a server, which runs until the page ends."""
        lines = self._filled(example.text).rstrip().splitlines()
        server = lines.pop() if UNTIL_STOPPED.match(lines[-1]) else ""
        place = f"{example.page}:{example.line}"
        finished = self.run("\n".join(lines))
        said = finished.stdout + finished.stderr
        assert finished.returncode == example.exit_code, f"{place}: exit code {finished.returncode}\n{said}"
        assert is_shown(example.shown, said), f"{place} shows something else:\n{said}"
        if server:
            self.start(server)

    def run(self, lines: str) -> subprocess.CompletedProcess[str]:
        after = self.folder / ".variables"
        finished = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{lines}\nenv -0 > {after}"],
            cwd=self.environment.get("PWD", self.folder), env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=HUNG_S, check=False,
        )  # fmt: skip
        if finished.returncode == 0:
            variables = after.read_text().rstrip("\0").split("\0")
            self.environment = dict(variable.split("=", 1) for variable in variables)
        return finished

    def start(self, line: str) -> str:
        """The line's demo key, if it has one, as soon as it is ready."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {self._on_its_port(line)}"], cwd=self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.started.append(process)
        assert process.stdout is not None
        said = []
        with killed_after(HUNG_S, process):
            for each in process.stdout:
                said.append(each)
                ready = READY.match(each)
                if ready and (ready[1] or "serve" in line):
                    return ready[1] or ""
        raise AssertionError(f"{line} ended or hung before it was ready:\n{''.join(said)}")

    def stop(self) -> None:
        for process in self.started:
            process.terminate()
            process.wait(READY_S)
            assert process.stdout is not None
            process.stdout.close()

    def _filled(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            return f"{found[1]}={shlex.quote(self.given[found[1]])}"

        return re.sub(r"\b([A-Z][A-Z0-9_]*)=\S*…", value, text).replace(
            ENGINE, f"http://127.0.0.1:{self.port}"
        )

    def _on_its_port(self, line: str) -> str:
        command = line.partition("#")[0].strip()
        return f"{command} PORT={self.port} OPTIONS=--no-open" if "make" in command else f"{command} --port 0"


@dataclass(frozen=True, slots=True)
class Demo:
    """The engine of `make run`, which most pages have before them."""

    data: Path
    port: int
    key: str

    @property
    def database(self) -> Database:
        return Database(EmbeddedPostgres(self.data).url, settings_file.load(PATIENCE, data_dir=self.data))

    def sealed_answer(self) -> str:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=10,
        ) as client:
            query_id = str(client.post("/v1/query", json=IMU).json()["query_id"])
            deadline = time.monotonic() + HUNG_S
            while client.get(f"/v1/receipts/{query_id}").status_code != 200:
                assert time.monotonic() < deadline, "it was not sealed"
                time.sleep(0.2)
            return query_id


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """With a book of the reader's own, and open to the pages of one site."""
    with copy() as folder, reader_in(folder, free_port()) as reader:
        reader.environment["AFFIDAVIT_SERVER__ALLOWED_ORIGINS"] = SITE
        key = reader.start("make run")
        prepared = reader.run("affidavit ingest docs --book my-book")
        assert prepared.returncode == 0, prepared.stderr
        yield Demo(folder / ".affidavit", reader.port, key)


@pytest.mark.parametrize("page", PLAYED)
async def test_a_page_works_block_after_block(page: str, demo: Demo) -> None:
    async with about_to_read(page, demo) as reader:
        for example in examples(page):
            if not example.not_run and example.language == "sql":
                type_sql(example, demo.database)
            elif not example.not_run and not example.text.startswith("make run"):
                await asyncio.to_thread(reader.type, example)


def type_sql(example: Example, database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        if example.page == ASK:
            connection.execute("SET ROLE affidavit_auditor")
        connection.execute(example.text.encode())


@contextlib.asynccontextmanager
async def about_to_read(page: str, demo: Demo) -> AsyncIterator[Reader]:
    """In a fresh folder, with what the page takes for granted."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(copy(None if page in OWN_DATA else demo.data))
        reader = stack.enter_context(reader_in(folder, demo.port))
        today = now().date()
        reader.given |= {"KEY": demo.key, "FROM": f"{today:%Y-%m-01}", "TO": f"{today + timedelta(days=1)}"}
        reader.given["AFFIDAVIT_DATA_DIR"] = str(folder / "own")
        own_files(folder)
        if "export KEY_ID=…" in PAGES[page]:
            reader.given["KEY_ID"] = reader.run("affidavit keys create --client x").stdout.split("_")[1]
        if "export QUERY_ID=…" in PAGES[page] or page == REVIEWS:
            reader.given["QUERY_ID"] = demo.sealed_answer()
        if page == ARCHIVES:
            log = await stack.enter_async_context(sealed_log(demo.database, folder / ".affidavit"))
            reader.environment["DATABASE_URL"] = log.url
        if page in {BUCKET, PRODUCTION, "README.md"}:
            reader.given["DATABASE_URL"] = stack.enter_context(empty_database(demo.database))
        if page == BUCKET:
            reader.given |= stack.enter_context(s3.serving()).environment
        if page in {PRODUCTION, "README.md"}:
            claude = await stack.enter_async_context(messages.serving())
            claude.write = true_blocks
            reader.environment["ANTHROPIC_BASE_URL"] = claude.url
            reader.given["ANTHROPIC_API_KEY"] = "sk-of-nobody"
        if page in {PRODUCTION, QDRANT, "README.md"}:
            reader.given["QDRANT_URL"] = stack.enter_context(qdrant_server.single()).url
        yield reader


def own_files(folder: Path) -> None:
    """What only the reader has: a PDF, and enough labelled questions."""
    (folder / "handbook.pdf").write_bytes(made(column("The pump is primed with oil before its first start.")))
    headings = re.findall(
        r"^#+ (.+)$", "\n".join(PAGES[f"docs/how-to/{name}.md"] for name in OWN_BOOK), re.MULTILINE
    )
    answerable = [form.format(heading) for heading in headings for form in ("{}", "What is said about {}?")]
    probes = [probe for probe in PROBES.read_text().splitlines() if probe and not probe.startswith("#")]
    labelled = [(text, text in answerable) for text in answerable + probes[: len(answerable)]]
    lines = [json.dumps({"text": text, "answerable": is_answerable}) for text, is_answerable in labelled]
    (folder / "questions.jsonl").write_text("\n".join(lines))


@contextlib.contextmanager
def copy(data: Path | None = None) -> Iterator[Path]:
    """A fresh folder that looks like a copy of the repository after its first `make`, perhaps with data. Its path is short."""
    with tempfile.TemporaryDirectory(prefix="affidavit-page-", ignore_cleanup_errors=True) as made_up:
        folder = Path(made_up)
        for source in ROOT.iterdir():
            if source.name not in {".venv", ".affidavit", ".git", "docs"}:
                (folder / source.name).symlink_to(source)
        (folder / "docs").mkdir()
        for name in OWN_BOOK:
            (folder / "docs" / f"{name}.md").write_text(PAGES[f"docs/how-to/{name}.md"])
        (folder / ".venv").mkdir()
        for source in Path(sys.prefix).iterdir():
            (folder / ".venv" / source.name).symlink_to(source)
        (folder / ".venv/.ready").unlink(missing_ok=True)
        (folder / ".venv/.ready").touch()
        if data:
            (folder / ".affidavit").symlink_to(data)
        yield folder


@contextlib.contextmanager
def reader_in(folder: Path, port: int) -> Iterator[Reader]:
    """With the programs of the environment on the path, and nothing else of ours."""
    path = f"{folder}/.venv/bin:{os.environ['PATH']}"
    given = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT), "PWD": str(folder)}
    reader = Reader(folder, port, given | PATIENCE)
    try:
        yield reader
    finally:
        reader.stop()
