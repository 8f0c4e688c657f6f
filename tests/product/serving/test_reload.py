"""SIGHUP: settings are taken over while serving, wrong ones change nothing, and a closed terminal is no reload."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from engine import wiring
from engine.house import House
from engine.settings import Settings
from engine.storage.database import Database
from tests.conftest import HUNG_S, PATIENCE, READY_S, ROOT, campaign_only, free_port, killed_after
from tests.product.http.metrics_text import read

ORIGIN = "https://book.example.org"


@dataclass(slots=True)
class Reloaded:
    """A server with a file of settings, and what it logs."""

    process: subprocess.Popen[str]
    url: str
    file: Path
    said: list[str] = field(default_factory=list)
    heard: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            with self.heard:
                self.said.append(line)
                self.heard.notify_all()

    def reload(self, text: str, until: str) -> str:
        """With this file; the line that says it."""
        self.file.write_text(text)
        with self.heard:
            before = len(self.said)
            self.process.send_signal(signal.SIGHUP)
            found: list[str] = []

            def is_said() -> bool:
                found[:] = [line for line in self.said[before:] if until in line]
                return bool(found)

            assert self.heard.wait_for(is_said, READY_S), self.said[-3:]
        return found[0]

    def allowed(self) -> bool:
        response = httpx.get(f"{self.url}/healthz", headers={"Origin": ORIGIN}, timeout=READY_S)
        return bool(response.headers.get("Access-Control-Allow-Origin") == ORIGIN)


@contextlib.contextmanager
def serving(data_dir: Path, file: Path, workers: str) -> Iterator[Reloaded]:
    port = free_port()
    file.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "serve", "--port", str(port), "--workers", workers, "--data-dir", str(data_dir)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | PATIENCE | {"AFFIDAVIT_SETTINGS_FILE": str(file)},
    )  # fmt: skip
    assert process.stdout and process.stderr
    server = Reloaded(process, f"http://127.0.0.1:{port}", file)
    listening = threading.Thread(target=server.listen)
    listening.start()
    try:
        with killed_after(HUNG_S, process):
            assert process.stdout.readline().startswith("Affidavit is ready"), server.said
        yield server
    finally:
        process.terminate()
        process.wait(READY_S)
        process.stdout.close()
        listening.join(READY_S)
        process.stderr.close()


def eventually(what: Callable[[], bool]) -> None:
    """With several workers: each hears of it a moment later."""
    done = threading.Event()
    for _ in range(100):
        if all(what() for _ in range(5)):
            return
        done.wait(0.05)
    raise AssertionError


# Seen red with a supervisor that tells its workers nothing.
@pytest.mark.parametrize("workers", ["1", campaign_only("2")])
def test_settings_are_taken_over_while_serving(
    data_dir: Path, database: Database, tmp_path: Path, key: str, workers: str
) -> None:
    with serving(data_dir, tmp_path / "own.toml", workers) as server:
        pid = server.process.pid
        assert not server.allowed()
        said = server.reload(f'[server]\nallowed_origins = ["{ORIGIN}"]\n', "The settings were reloaded")
        assert "needs a restart" not in said
        eventually(server.allowed)
        said = server.reload("[server\n", "The settings were not reloaded")
        assert "own.toml" in said
        eventually(server.allowed)
        said = server.reload("[budget]\ntotal_s = 6.0\n[claude]\nmax_output_tokens = 9\n", "needs a restart")
        assert "claude.max_output_tokens" in said
        assert "retrieval" not in said
        eventually(lambda: not server.allowed())
        said = server.reload("[limits]\nbody_bytes = 10\n", "The settings were reloaded")

        def is_too_large() -> bool:
            headers = {"Authorization": f"Bearer {key}"}
            asked = httpx.post(
                f"{server.url}/v1/query", json={"query": "What is it?"}, headers=headers, timeout=30
            )
            return asked.status_code == 413

        eventually(is_too_large)
        assert (server.process.pid, server.process.poll()) == (pid, None)

        def is_counted() -> bool:
            figures = read(httpx.get(f"{server.url}/metrics", timeout=READY_S).text)
            family = "affidavit_settings_reloads_total"
            outcomes = {"applied": 2, "refused": 1, "needs_restart": 1}
            return all(
                figures.get((family, f'outcome="{name}"')) == count for name, count in outcomes.items()
            )

        eventually(is_counted)


# Seen red with the rules made anew: after an upgrade on disk, records named a prompt and a version that nobody had used.
async def test_a_reload_takes_over_settings_and_neither_another_prompt_nor_another_version(
    house: House, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answer.md").write_text("Answer as you like.")
    monkeypatch.setattr("engine.wiring.house.PROMPT", tmp_path / "answer.md")
    monkeypatch.setattr("engine.wiring.house.version", lambda _: "99.0")
    stricter = settings.model_copy(
        update={"retrieval": settings.retrieval.model_copy(update={"threshold": 0.9})}
    )
    before, after = house.engine.rules, wiring.reloaded(house, stricter).engine.rules
    assert (after.threshold, after.settings_sha256) == (0.9, stricter.fingerprint())
    undone = replace(after, threshold=before.threshold, settings_sha256=before.settings_sha256)
    assert undone == before


# Seen red with an `obey` that does nothing, as before: SIGHUP killed `up`.
@pytest.mark.campaign
@pytest.mark.parametrize("command", ["up --no-open", "serve"])
def test_a_closed_terminal_ends_the_server_in_order(command: str, data_dir: Path, database: Database) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.environ.update(PATIENCE | {"AFFIDAVIT_BOOKS__MANUAL": ""})
        os.chdir(ROOT)
        program = [
            sys.executable,
            "-m",
            "engine.cli",
            *command.split(),
            "--port",
            "0",
            "--data-dir",
            str(data_dir),
        ]
        os.execv(sys.executable, program)
    said = b""
    while b"Affidavit is ready" not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.campaign
def test_nohup_survives_a_hangup(data_dir: Path, database: Database) -> None:
    program = [
        sys.executable,
        "-m",
        "engine.cli",
        "up",
        "--no-open",
        "--port",
        "0",
        "--data-dir",
        str(data_dir),
    ]
    process = subprocess.Popen(
        ["nohup", *program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True,
        cwd=ROOT, env=os.environ | PATIENCE | {"AFFIDAVIT_BOOKS__MANUAL": ""},
    )  # fmt: skip
    assert process.stdout
    try:
        with killed_after(HUNG_S, process):
            address = process.stdout.readline().split()[-1]
        process.send_signal(signal.SIGHUP)
        assert httpx.get(f"{address}/healthz", timeout=READY_S).is_success
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(READY_S)
        process.stdout.close()


_SERVES = """
import asyncio, os, sys
from engine.terminal import hangup

async def main():
    over, heard = asyncio.Event(), asyncio.Event()
    hangup.obey(over.set)  # as main.py
    hangup.obey(over.set, lambda: None)  # as `serve` before it runs
    hangup.obey(over.set, heard.set)  # as `serve` once it runs
    print("ready", flush=True)
    waiting = [asyncio.create_task(event.wait()) for event in (over, heard)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    os._exit(1 if over.is_set() else 0)

asyncio.run(main())
"""


# Seen red with the disposition asked for at each call: the first handler hid that it was SIG_IGN, and the server ended.
def test_under_nohup_a_server_that_reloads_outlives_its_terminal() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", _SERVES])
    said = b""
    while not said.endswith(b"\n"):  # closed within the line, the terminal would fail its print
        said += os.read(terminal, 4096)
    assert said.strip() == b"ready"
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
