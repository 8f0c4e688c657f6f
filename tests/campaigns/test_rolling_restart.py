"""Two engines share a port and are restarted in turn under load: no request fails, and each answer has its row."""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from audit.proof.keys import SigningKey
from engine import settings as settings_file
from engine import wiring
from tests.campaigns.load import QUESTIONS, in_threads
from tests.conftest import CAMPAIGN_ROUNDS, HUNG_S, READY_S, ROOT, Records, free_port, killed_after
from tests.databases import server_over_tcp

RESTARTS = max(6, CAMPAIGN_ROUNDS)
BETWEEN = 20  # answers before the next restart
PAUSE_S = 0.1  # of each client: a load, but no overload, in which requests fail without any restart
ANSWER_S = 30
# Other tests share these two cores: what must not fail here fails by restarts only.
PATIENCE = {
    "AFFIDAVIT_BUDGET__TOTAL_S": "15", "AFFIDAVIT_BUDGET__RETRIEVAL_S": "10",
    "AFFIDAVIT_BUDGET__GENERATION_S": "10", "AFFIDAVIT_BUDGET__AUDIT_S": "4",
}  # fmt: skip


@dataclass(slots=True)
class Asked:
    """What the clients were told."""

    answers: dict[str, float] = field(default_factory=dict)  # the seconds of each
    failures: list[str] = field(default_factory=list)
    heard: threading.Condition = field(default_factory=threading.Condition)
    is_over: threading.Event = field(default_factory=threading.Event)

    def ask(self, post: Callable[..., httpx.Response], url: str) -> None:
        began = time.monotonic()
        try:
            response = post(f"{url}/v1/query", json={"query": random.choice(QUESTIONS)})
            said = "" if response.is_success else f"{response.status_code} {response.text}"
        except httpx.HTTPError as failure:
            said = repr(failure)
        seconds = time.monotonic() - began
        with self.heard:
            if said:
                self.failures.append(f"{said} after {seconds:.2f} s")
            else:
                self.answers[response.json()["query_id"]] = seconds
            self.heard.notify_all()

    def wait_for_answers(self, count: int) -> None:
        with self.heard:
            until = len(self.answers) + count
            assert self.heard.wait_for(lambda: len(self.answers) >= until, HUNG_S), self.failures[-1:]


@contextmanager
def clients(url: str, key: str) -> Iterator[Asked]:
    """Some keep their connection, one of them pauses between requests, some open a new one for each."""
    asked, headers = Asked(), {"Authorization": f"Bearer {key}"}

    def keep_alive(pause_s: float = PAUSE_S) -> None:
        with httpx.Client(headers=headers, timeout=ANSWER_S) as client:
            while not asked.is_over.wait(pause_s):
                asked.ask(client.post, url)

    def connect_anew() -> None:
        while not asked.is_over.wait(PAUSE_S):
            with httpx.Client(headers=headers, timeout=ANSWER_S) as client:
                asked.ask(client.post, url)

    with (
        in_threads(keep_alive, 2, asked.is_over),
        in_threads(lambda: keep_alive(1.5), 1, asked.is_over),
        in_threads(connect_anew, 3, asked.is_over),
    ):
        yield asked


@contextmanager
def engine(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own, ready, which ends in order."""
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "serve", *command],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=os.environ | PATIENCE | environment,
    )  # fmt: skip
    assert process.stdout
    try:
        with killed_after(HUNG_S, process):
            assert any(line.startswith("Affidavit is ready") for line in process.stdout), (
                "It ended or hung before it was ready"
            )
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S) == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdout.close()


def published(folder: Path, environment: Mapping[str, str]) -> str:
    """The sample book, and an API key without a limit worth the name."""

    async def publish() -> str:
        settings = settings_file.load(environment, data_dir=folder)
        SigningKey.create(folder / "signing.key")
        async with wiring.open_database(settings) as database:
            database.migrate()
            await wiring.make_months_ahead(database, wiring.now().date())
            async with wiring.open_ingest(settings, database, lambda *_: None) as ingest:
                await ingest.run([wiring.SAMPLE_BOOK], settings.books.default, wiring.SAMPLE_TITLE)
            async with wiring.open_keys(database) as keys:
                return await keys.create("tests", ["ask"], "1000000/minute")

    return asyncio.run(publish())


def restart_in_turn(
    start: Callable[[], "ExitStack"], running: list[ExitStack], asked: Asked, restarts: int
) -> None:
    """The new one first, or the old one's end first: both happen."""
    for number, is_new_first in zip(range(restarts), itertools.cycle((False, True)), strict=False):
        asked.wait_for_answers(BETWEEN)
        place = number % len(running)
        old = running[place]
        if is_new_first:
            running[place] = start()
            old.close()
        else:
            old.close()
            running[place] = start()
    asked.wait_for_answers(BETWEEN)


def started(command: tuple[str, ...], environment: Mapping[str, str]) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(engine(*command, **environment))
    return stack


def assert_on_record(url: str, asked: Asked) -> None:
    rows = Counter(
        str(row["query_id"]) for row in Records(url).where("query_id::text = ANY(%s)", list(asked.answers))
    )
    assert rows == Counter(asked.answers.keys())


@pytest.mark.parametrize("workers", [1, 2])
def test_two_engines_are_restarted_in_turn_and_no_request_fails(
    workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as made,
        ExitStack() as stack,
    ):
        (Path(made) / "server").mkdir()
        (Path(made) / "data").mkdir()
        url = stack.enter_context(server_over_tcp(Path(made) / "server"))
        key = published(Path(made) / "data", {"DATABASE_URL": url})
        port = free_port()
        command = (
            "--reuse-port",
            "--port",
            str(port),
            "--workers",
            str(workers),
            "--data-dir",
            f"{made}/data",
        )
        running = [started(command, {"DATABASE_URL": url}) for _ in range(2)]
        try:
            with clients(f"http://127.0.0.1:{port}", key) as asked:
                restart_in_turn(lambda: started(command, {"DATABASE_URL": url}), running, asked, RESTARTS)
        finally:
            for each in running:
                each.close()
        _tell(capsys, f"{workers} worker(s)", asked, RESTARTS)
        assert asked.failures == []
        assert_on_record(url, asked)


def _tell(capsys: pytest.CaptureFixture[str], what: str, asked: Asked, restarts: int) -> None:
    with capsys.disabled():
        print(
            f"\n{what}: {len(asked.answers) + len(asked.failures)} requests, {len(asked.failures)} failed,"
            f" {restarts} restarts, worst response {max(asked.answers.values()):.2f} s"
        )
