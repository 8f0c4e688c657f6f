"""An archiver that is killed (-9) at a point that a test names: before or after any statement, call of the vault or event.

`python -m tests.logs.dying_archiver` reads one order a line, does it in a child of its own and says what became of that: how
the child ended, and how many points it passed. Children are forks, so that hundreds of them take seconds and not minutes.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psycopg

from audit.archive.archiver import Archiver
from audit.proof.keys import SigningKey
from audit.vault import Stored, Vault
from engine import settings as settings_file
from engine.storage.database import ARCHIVER, Database, as_role
from tests.logs import archiving
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog

GIVES_UP = 64  # the archiver ended by itself, and not well


@dataclass(slots=True)
class Points:
    """What happens at the point with this number."""

    at: int
    strike: Callable[[], None]
    passed: int = 0

    def pass_one(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            self.strike()


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _work(order, writing)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading) as said:
            passed = said.read()
        print(
            json.dumps({"ended": os.waitstatus_to_exitcode(status), "passed": int(passed or 0)}), flush=True
        )


def _work(order: dict[str, Any], writing: int) -> None:
    """In the child. The number of points is told only by one that was not killed."""
    ended = GIVES_UP
    try:
        points = Points(order["kill_at"], lambda: _kill(order["delay_s"]))
        outcomes = asyncio.run(_run(order, points))
        os.write(writing, str(points.passed).encode())
        ended = 0 if all(outcomes) else GIVES_UP
    finally:
        os._exit(ended)


def _kill(delay_s: float) -> None:
    """At once, or while the next thing is under way."""
    if not delay_s:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()


async def _run(order: dict[str, Any], points: Points) -> list[bool]:
    archiver = disturbed(log_of(order), points)
    match order["work"]:
        case "archive":
            return [outcome.is_well for outcome in await archiver.archive(FEBRUARY)]
        case "restore":
            return [(await archiver.restore(JANUARY)).is_well]
        case _:
            return [(await archiver.end_restore(JANUARY)).is_well]


def log_of(order: dict[str, Any]) -> SealedLog:
    folder = Path(order["folder"])
    settings = settings_file.load({}, data_dir=Path(order["data_dir"]))
    return SealedLog(Database(order["url"], settings), folder, SigningKey.load(folder / "signing.key"))


def disturbed(log: SealedLog, points: Points) -> Archiver:
    """The archiver, with a point before and after all that it asks of the world."""
    archiver = archiving.archiver_of(log)

    class Asynchronous(psycopg.AsyncConnection[Any]):
        async def execute(self, *asked: Any, **options: Any) -> Any:
            points.pass_one()
            answered = await super().execute(*asked, **options)
            points.pass_one()
            return answered

    class Synchronous(psycopg.Connection[Any]):
        def execute(self, *asked: Any, **options: Any) -> Any:
            points.pass_one()
            return super().execute(*asked, **options)

    @asynccontextmanager
    async def connect() -> AsyncIterator[psycopg.AsyncConnection]:
        async with await Asynchronous.connect(as_role(log.url, ARCHIVER), autocommit=True) as connection:
            yield connection

    @contextmanager
    def reading() -> Iterator[psycopg.Connection]:
        with Synchronous.connect(as_role(log.url, ARCHIVER)) as connection:
            yield connection

    @asynccontextmanager
    async def event(command: str, **about: Any) -> AsyncIterator[object]:
        points.pass_one()
        async with archiver.event(command, **about) as trail:
            points.pass_one()
            yield trail
            points.pass_one()
        points.pass_one()

    return archiving.archiver_of(
        log, connect=connect, reading=reading, event=event, vault=Disturbed(archiver.vault, points)
    )


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A vault with a point before and after each call."""

    vault: Vault
    points: Points

    def put(self, key: str, content: bytes) -> str:
        with self._between():
            return self.vault.put(key, content)

    def put_file(self, key: str, path: Path) -> Stored:
        with self._between():
            return self.vault.put_file(key, path)

    def get(self, key: str, version: str | None = None) -> bytes:
        with self._between():
            return self.vault.get(key, version)

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        with self._between():
            return self.vault.open(key, version)

    def keys(self, prefix: str = "") -> list[str]:
        return self.vault.keys(prefix)

    @contextmanager
    def _between(self) -> Iterator[None]:
        self.points.pass_one()
        yield
        self.points.pass_one()


if __name__ == "__main__":
    main()
