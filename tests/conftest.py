"""Real parts for all tests: one embedded PostgreSQL with the sample book, copied once for each process of the run."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from engine import settings as settings_file
from engine import wiring
from engine.house import House
from engine.settings import Settings
from engine.storage.database import Database
from tests.prepared import with_sample_book

pytest_plugins = ["tests.product.docusaurus"]
# Their assertions show both sides too.
pytest.register_assert_rewrite(
    "tests.campaigns", "tests.logs", "tests.parts", "tests.product", "tests.upstreams"
)
ROOT = Path(__file__).resolve().parent.parent
READY_S = 60
HUNG_S = 240.0  # on a busy machine a start takes a minute
# `make campaign` gives a number: so often is everything disturbed there. 0: no campaign, and the short version of each test.
CAMPAIGN_ROUNDS = int(os.environ.get("CAMPAIGN_ROUNDS", "0"))
# Two runs share a disk here, and a flush may take its time. What is promised to readers is asserted in test_faults.py.
PATIENCE = {"AFFIDAVIT_BUDGET__AUDIT_S": "2.0", "AFFIDAVIT_BUDGET__TOTAL_S": "6.5"}

# With several processes a long file must not come last. Longest first, by what they took on two quiet cores.
LONGEST = (
    "test_patroni", "test_docusaurus_sites", "test_ingest", "test_indexing", "test_faults", "test_archive", "test_erase", "test_injection",
    "test_outage", "test_kill", "test_crash_campaign", "test_s3", "test_flood_kill", "test_server",
    "test_embedded_postgres", "test_archive_crash", "test_hostile_files", "test_self_calibration", "test_archive_format", "test_languages",
    "test_index_contract", "test_tiers", "test_cli", "test_spooling", "test_connections", "test_breaks", "test_contract_table", "test_ingest_crash", "test_edge", "test_certify", "test_openapi", "test_faults_in_memory",
    "test_sandbox", "test_seal", "test_retention", "test_stream", "test_contracts", "test_widget_requests", "test_retrieve", "test_shown_rows", "test_install",
)  # fmt: skip


def campaign_only(value: object) -> Any:
    """A parameter whose test belongs to the campaigns."""
    return pytest.param(value, marks=pytest.mark.campaign)


def is_campaign(item: pytest.Item) -> bool:
    """Among the campaigns, or marked: as one of theirs, or as one that finds more in more rounds."""
    is_marked = any(item.get_closest_marker(name) for name in ("campaign", "rounds"))
    return is_marked or "campaigns" in item.path.parts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the campaigns out of `make test`, and out of the campaigns what they would only repeat; the longest files first."""
    if CAMPAIGN_ROUNDS:
        kept = [item for item in items if is_campaign(item)]
    else:
        kept = [item for item in items if not item.get_closest_marker("campaign")]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    """A short path: a Unix socket's name must fit into it."""
    with tempfile.TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def settings(data_dir: Path) -> Settings:
    return settings_file.load(PATIENCE, data_dir=data_dir)


@pytest.fixture(scope="session")
def sample_book(data_dir: Path) -> None:
    with_sample_book(data_dir)


@pytest.fixture(scope="session")
async def database(anyio_backend: str, settings: Settings, sample_book: None) -> AsyncIterator[Database]:
    """Migrated, with the sample book published."""
    async with wiring.open_database(settings, lambda _: None) as opened:
        yield opened


@pytest.fixture(scope="session")
async def house(anyio_backend: str, settings: Settings, database: Database) -> AsyncIterator[House]:
    async with wiring.open_house(settings, database) as opened:
        yield opened


@pytest.fixture(scope="session")
async def key(anyio_backend: str, database: Database) -> str:
    async with wiring.open_keys(database) as keys:
        return await keys.create("tests", ["ask"], "100000/minute")


@dataclass(frozen=True, slots=True)
class Records:
    """The audit log as an auditor sees it."""

    url: str

    def of(self, query_id: object) -> list[dict[str, Any]]:
        return self.where("query_id = %s", query_id)

    def where(self, condition: str, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            connection.execute("SET ROLE affidavit_auditor")
            query = f"SELECT *, tableoid::regclass::text AS partition FROM audit_logs WHERE {condition}"
            return connection.execute(query.encode(), values).fetchall()


@pytest.fixture(scope="session")
def records(database: Database) -> Records:
    return Records(database.url)


@dataclass(slots=True)
class Running:
    """An engine in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    key: str
    said: list[str]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextlib.contextmanager
def killed_after(seconds: float, process: subprocess.Popen[str]) -> Iterator[None]:
    """If the block takes longer: then reading from the process ends, and a hang becomes a failure with what it said."""
    watchdog = threading.Timer(seconds, process.kill)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


@contextlib.contextmanager
def running(
    data_dir: Path,
    *,
    command: str = "up",
    within: Sequence[str] = (),
    manual: str = "",
    port: str = "",
    **environment: str,
) -> Iterator[Running]:
    """`affidavit up` until the end of the block, then Ctrl-C; within a program that becomes it, if one is named."""
    bound = port or str(free_port())
    process = subprocess.Popen(
        [*within, sys.executable, "-m", "engine.cli", *command.split(), "--port", bound, "--data-dir", str(data_dir)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env=os.environ | PATIENCE | {"AFFIDAVIT_BOOKS__MANUAL": manual} | environment,
    )  # fmt: skip
    said: list[str] = []
    try:
        assert process.stdout is not None
        with killed_after(HUNG_S, process):
            for line in process.stdout:
                said.append(line.rstrip())
                if line.startswith("Demo key") or (
                    command.startswith("serve") and line.startswith("Affidavit is ready")
                ):
                    break
            else:
                raise AssertionError("\n".join(["It ended or hung before it was ready:", *said]))
        secret = said[-1].removeprefix("Demo key: ")
        yield Running(process, f"http://127.0.0.1:{bound}", secret, said)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(READY_S)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="session")
def server(data_dir: Path, database: Database) -> Iterator[Running]:
    with running(data_dir, command="serve") as started:
        yield started


@pytest.fixture
def client(server: Running, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=10) as opened:
        yield opened
