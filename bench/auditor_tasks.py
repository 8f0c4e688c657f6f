"""Twelve tasks of an auditor, at the console and by command: how many steps each takes, and how long the machine needs.

Run as `python -m bench.auditor_tasks`. Needs Chromium. A step at the console is a page that is opened by its word in the navigation, a
field that is filled, or a click; by command it is a command. The seconds are the machine's, from the first step until what was
wanted is there: nobody thinks or types in them. Each command is a new process, which loads the program first.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx

from bench.load import QUESTIONS, _prepare, _serving
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.wiring import now
from tests.product.browser import Page, browser

ASKED = 60  # requests before the first task; the answers and refusals of them are sampled
READER = f"user:{uuid4()}"
SEALED_S = 120.0
_LEAVE = "window.isLeft = true"  # the next page does not know it


@dataclass(slots=True)
class Auditor:
    """A person at a browser, who is signed in."""

    page: Page
    url: str
    steps: int = 0

    def go(self, word: str) -> None:
        """By the navigation."""
        link = f"[...document.querySelectorAll('nav a')].find(one => one.textContent === {json.dumps(word)})"
        self._act(f"{_LEAVE}; {link}.click()")
        self.sees("nav [aria-current]")

    def fill(self, selector: str, text: str) -> None:
        self._act(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def unfold(self, selector: str) -> None:
        self._act(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, selector: str) -> None:
        """What leads to another page."""
        self._act(f"{_LEAVE}; document.querySelector({json.dumps(selector)}).click()")

    def sees(self, selector: str) -> None:
        """On the page that came then."""
        found = f"!!document.querySelector({json.dumps(selector)})"
        self.page.wait(f"document.readyState === 'complete' && !window.isLeft && {found}")

    def _act(self, script: str) -> None:
        self.steps += 1
        self.page.read(f"{{ {script}; }} undefined")


@dataclass(frozen=True, slots=True)
class AuditorTask:
    """`at_console` is None where only a command does it."""

    name: str
    at_console: Callable[[Auditor], None] | None
    commands: list[list[str]]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="affidavit-tasks-", ignore_cleanup_errors=True) as folder:
        figures = asyncio.run(_measured(Path(folder)))
    record("auditor_tasks", [asdict(figure) for figure in figures])


async def _measured(folder: Path) -> list[Figure]:
    async with wiring.open_database(settings_file.load(data_dir=folder), lambda _: None) as database:
        reader_key = await _prepare(database)
        async with wiring.open_keys(database) as keys:
            auditor_key = await keys.create("auditor-1", ["audit", "lead"], "100/second")
        async with _serving(str(folder)) as (_, port):
            url = f"http://127.0.0.1:{port}"
            query_id = await asyncio.to_thread(_ask, url, reader_key)
            await asyncio.to_thread(_seal, folder)
            return await asyncio.to_thread(_timed, folder, url, auditor_key, _tasks(query_id, folder))


def _ask(url: str, key: str) -> str:
    """The id of the last one, an answer to the reader."""
    head = {"Authorization": f"Bearer {key}", "X-End-User": READER}
    with httpx.Client(base_url=url, headers=head, timeout=10) as client:
        for number in range(ASKED):
            client.post("/v1/query", json={"query": QUESTIONS[number % len(QUESTIONS)]})
        told = client.post("/v1/query", json={"query": QUESTIONS[0]})
        return str(told.json()["query_id"])


def _seal(folder: Path) -> None:
    """Until the newest records are sealed and anchored, which a running engine does within a minute."""
    until = time.monotonic() + SEALED_S
    while json.loads(_command(folder, ["audit", "seal", "--once", "--json"]) or "{}").get("sealed"):
        assert time.monotonic() < until


PLOTS = {
    "outcomes": "requests by outcome",
    "refusals": "refusals by reason",
    "gate": "confidence against the gate",
    "latency": "time by stage",
}


def _tasks(query_id: str, folder: Path) -> list[AuditorTask]:
    since, until = (now().date() + timedelta(days=days) for days in (-7, 1))
    period = ["--from", str(since), "--to", str(until)]
    said = "timestamp, outcome, user_query_text, answer_text FROM audit_logs"

    def found(text: str, wanted: str) -> Callable[[Auditor], None]:
        def do(auditor: Auditor) -> None:
            auditor.go("Search")
            auditor.fill("input[name=text]", text)
            auditor.press("form[role=search] button")
            auditor.sees(wanted)

        return do

    def last_week(auditor: Auditor) -> None:
        auditor.go("Search")
        auditor.unfold("form[role=search] summary")
        auditor.fill("input[name=from]", str(since))
        auditor.press("form[role=search] button")
        auditor.sees("ol.records li")

    def proven(auditor: Auditor) -> None:
        found(query_id, "#recompute")(auditor)
        auditor.steps += 1
        proof = "fetch(document.querySelector('#recompute a').href).then(it => it.text())"
        assert "affidavit proof" in auditor.page.read(proof)

    def verified(auditor: Auditor) -> None:
        auditor.go("Coverage")
        auditor.press('form[action="/console/verification"] button')
        auditor.sees(".verdict")

    def drawn(name: str) -> Callable[[Auditor], None]:
        def do(auditor: Auditor) -> None:
            auditor.go("Charts")
            auditor.sees(f"#{name} svg")

        return do

    def accesses(auditor: Auditor) -> None:
        auditor.go("Who read what")
        auditor.sees("table")

    package, sample = str(folder / "evidence.zip"), str(folder / "sample.json")
    return [
        AuditorTask("the questions of last week", last_week, [["audit", "query", f"SELECT {said} WHERE timestamp >= '{since}' ORDER BY timestamp DESC LIMIT 25"]]),
        AuditorTask("why was this refused", found(query_id, "h1"), [["audit", "search", query_id]]),
        AuditorTask("what was told to this reader", found(READER, "ol.records"), [["audit", "search", READER]]),
        AuditorTask("prove an answer to a third party", proven, [["audit", "prove", query_id, "-o", str(folder / "proof.json")]]),
        AuditorTask("verify all", verified, [["audit", "verify"]]),
        AuditorTask("hand over a period", None, [["audit", "package", *period, "--basis", "benchmark", "-o", package]]),
        AuditorTask("sample 25", None, [["audit", "sample", "--size", "25", *period, "-o", sample]]),
        AuditorTask("who read what", accesses, [["audit", "query", "SELECT read_at, who, asked_for, records FROM audit_access ORDER BY read_at DESC"]]),
        *(AuditorTask(f"plot: {words}", drawn(name), [["audit", "chart", name, *period, "-o", str(folder / f"{name}.svg")]]) for name, words in PLOTS.items()),
    ]  # fmt: skip


def _timed(folder: Path, url: str, key: str, tasks: list[AuditorTask]) -> list[Figure]:
    figures = []
    with browser() as page:
        page.look()
        page.open(f"{url}/console")
        page.focus("#key")
        page.type(key)
        page.press("Enter")
        page.wait("!!document.querySelector('nav')")
        for task in tasks:
            for figure in _both_ways(task, Auditor(page, url), folder):
                show(figure)
                figures.append(figure)
    return figures


def _both_ways(task: AuditorTask, auditor: Auditor, folder: Path) -> list[Figure]:
    figures = []
    if task.at_console:
        began = time.perf_counter()
        task.at_console(auditor)
        took_s = round(time.perf_counter() - began, 2)
        figures += [
            Figure(f"{task.name}, at the console: steps", auditor.steps, ""),
            Figure(f"{task.name}, at the console: s", took_s, ""),
        ]
    began = time.perf_counter()
    for command in task.commands:
        _command(folder, command)
    took_s = round(time.perf_counter() - began, 2)
    return [
        *figures,
        Figure(f"{task.name}, by command: steps", len(task.commands), ""),
        Figure(f"{task.name}, by command: s", took_s, ""),
    ]


def _command(folder: Path, words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", *words, "--data-dir", str(folder)], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
