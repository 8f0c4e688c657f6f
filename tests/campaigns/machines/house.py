"""One house on several machines: three engines with folders of their own, one PostgreSQL over TCP, one Qdrant, Redis with
Sentinel, one bucket. Each part is a process that can be killed, cut off and started again.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from engine.providers.postgres import DATABASE, SOCKET, SUPERUSER, EmbeddedPostgres
from engine.wiring import SAMPLE_BOOK
from tests.conftest import HUNG_S, READY_S, ROOT, free_port, killed_after
from tests.upstreams import qdrant_server, s3
from tests.upstreams.network import Link, link
from tests.upstreams.qdrant_server import RealQdrant
from tests.upstreams.redis_sentinel import RedisSentinel, redis_sentinel
from tests.upstreams.redis_server import needs_redis

ENGINES = 3
SETTLED_S = 120
UNLIMITED = "1000000/minute"
needs_machines = needs_redis  # the others skip by themselves
QUICK = {
    "AFFIDAVIT_PROVIDERS__LIMITS": "redis", "AFFIDAVIT_LIMITS__AUTHENTICATED": UNLIMITED, "AFFIDAVIT_BOOKS__MANUAL": "",
    "AFFIDAVIT_AUDIT__SEAL_EVERY_S": "1.0", "AFFIDAVIT_AUDIT__ANCHOR_EVERY_S": "2.0",
}  # fmt: skip

_OPEN = """
SELECT trail ->> 'endpoint' AS endpoint, opened_at::text, to_hex(owner) AS owner FROM audit_open
WHERE trail ->> 'endpoint' <> 'heartbeat' AND opened_at < now() - %s * interval '1 s'
"""

# Another machine's clock, so many seconds off: only the engine's own reading of it.
WITH_CLOCK = """
import sys
from datetime import timedelta
from engine.wiring import providers
real = providers.datetime
class Shifted(real):
    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + off
providers.datetime = Shifted
off = timedelta(seconds=float(sys.argv.pop(1)))
from engine.cli.main import main
main()
"""


@dataclass(slots=True)
class Engine:
    """A machine that serves. Its disk outlives its process."""

    data: Path
    port: int
    environment: dict[str, str]
    network: Link | None = None  # to the database, if it can be cut
    process: subprocess.Popen[str] | None = None
    is_serving: bool = False  # as a load balancer sees it that asks /readyz
    said: list[str] = field(default_factory=list)
    listening: threading.Thread = field(default_factory=threading.Thread)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, clock_off_s: float = 0.0) -> None:
        program = ["-c", WITH_CLOCK, str(clock_off_s)] if clock_off_s else ["-m", "engine.cli"]
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", "--port", str(self.port), "--data-dir", str(self.data)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=self.environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        with killed_after(HUNG_S, self.process):
            for line in self.process.stdout:
                self.said.append(line.rstrip())
                if line.startswith("Affidavit is ready"):
                    break
            else:
                raise AssertionError("\n".join(["It ended or hung before it was ready:", *self.said]))
        self.is_serving = True
        self.listening = threading.Thread(target=self.said.extend, args=(self.process.stdout,), daemon=True)
        self.listening.start()  # a full pipe must not hold it up

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.is_serving = False
            self._end(self.process)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.is_serving = False
            self._end(self.process)

    def _end(self, process: "subprocess.Popen[str]") -> None:
        process.wait(READY_S)
        if process.stdout is not None and self.listening.ident:
            self.listening.join(READY_S)
            process.stdout.close()

    def command(self, *words: object) -> subprocess.CompletedProcess[str]:
        """`affidavit …` on this machine."""
        return subprocess.run(
            [sys.executable, "-m", "engine.cli", *map(str, words), "--data-dir", str(self.data)],
            cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S, check=False, env=self.environment,
        )  # fmt: skip

    def cut_off_from_postgres(self) -> AbstractContextManager[None]:
        assert self.network is not None
        return self.network.cut()

    def spooled_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.data / "spool").glob("*.spool"))


class Database(Protocol):
    @property
    def url(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class Machines:
    postgres: Database
    redis: RedisSentinel
    bucket: s3.Upstream
    engines: list[Engine]
    key: str = ""

    def make_key(self, *options: str, client: str = "readers") -> str:
        made = self.engines[0].command("keys", "create", "--client", client, *options)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def fetch(self, query: str, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.postgres.url, row_factory=dict_row) as connection:
            return connection.execute(query.encode(), values or None).fetchall()

    def settle(self, *, open_s: float = 0.0) -> None:
        """Every engine is ready, what was spooled is in the database, and what was open for so long is closed."""
        deadline = time.monotonic() + SETTLED_S
        while unsettled := self._unsettled(open_s):
            assert time.monotonic() < deadline, unsettled
            time.sleep(0.1)

    def _unsettled(self, open_s: float) -> str:
        for engine in self.engines:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{engine.url}/readyz", timeout=READY_S).status_code == 200:
                    if engine.spooled_bytes():
                        return f"{engine.data.name} has a spool"
                    continue
            return f"{engine.data.name} is not ready"
        with contextlib.suppress(psycopg.OperationalError):
            found = self.fetch(_OPEN, open_s)
            return f"open: {found}" if found else ""
        return "the database is away"

    def verify(self) -> dict[str, Any]:
        """The verdict on the whole log, sealed up to now."""
        sealed = self.engines[0].command("audit", "seal", "--once")
        assert sealed.returncode == 0, sealed.stdout + sealed.stderr
        found: dict[str, Any] = json.loads(self.engines[0].command("audit", "verify", "--json").stdout)
        return found


@dataclass(slots=True, kw_only=True)
class House(Machines):
    """Of each store one, and a network that can be cut."""

    postgres: EmbeddedPostgres
    qdrant: RealQdrant
    qdrant_network: Link


@contextlib.contextmanager
def house(*, can_be_cut: bool = True, **environment: str) -> Iterator[House]:
    """All of it, with the sample book published and a key without a limit. What can be cut costs some CPU."""
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="affidavit-house-", ignore_cleanup_errors=True)
        )
        folder = Path(name)
        folder.chmod(0o755)
        qdrant = stack.enter_context(qdrant_server.single())
        qdrant_network = stack.enter_context(link(str(qdrant.http_port)))
        redis = stack.enter_context(redis_sentinel())
        bucket = stack.enter_context(s3.serving())
        postgres = stack.enter_context(_postgres(folder))
        given = bucket.environment | {
            "QDRANT_URL": f"http://127.0.0.1:{qdrant_network.port if can_be_cut else qdrant.http_port}", "AFFIDAVIT_PROVIDERS__INDEX": "qdrant",
            "REDIS_URL": redis.url,
        } | QUICK | environment  # fmt: skip
        engines = [_engine(folder / f"engine-{number}", postgres, given, stack) for number in range(ENGINES)]
        if not can_be_cut:
            for engine in engines:
                engine.environment["DATABASE_URL"] = postgres.url
        made = House(
            postgres=postgres, qdrant=qdrant, qdrant_network=qdrant_network, redis=redis, bucket=bucket, engines=engines
        )  # fmt: skip
        with serving(made):
            yield made


@contextlib.contextmanager
def serving(made: Machines) -> Iterator[None]:
    """Every engine serves the sample book."""
    _furnish(made)
    try:
        for engine in made.engines:
            engine.start()
        yield
    finally:
        for engine in made.engines:
            engine.kill()


def _furnish(made: Machines) -> None:
    first, *others = made.engines
    for words in (
        ["migrate"],
        ["audit", "key", "--new"],
        ["ingest", str(SAMPLE_BOOK), "--book", "physical-ai"],
    ):
        done = first.command(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    share_keys(first, others)
    made.key = made.make_key("--limit", UNLIMITED)


def share_keys(
    first: Engine, others: Sequence[Engine], names: Sequence[str] = ("signing.key.pub", "signing.key")
) -> None:
    """The signing key is one for all."""
    for engine in others:
        engine.data.mkdir(exist_ok=True)
        for name in names:
            shutil.copy2(first.data / name, engine.data / name)


def _engine(
    data: Path, postgres: EmbeddedPostgres, environment: dict[str, str], stack: contextlib.ExitStack
) -> Engine:
    network = stack.enter_context(link(str(postgres._sockets() / SOCKET)))
    url = make_conninfo(host="127.0.0.1", port=network.port, user=SUPERUSER, dbname=DATABASE)
    return Engine(data, free_port(), os.environ | environment | {"DATABASE_URL": url}, network)


@contextlib.contextmanager
def _postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
