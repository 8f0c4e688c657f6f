"""The server as operators know it: several workers, an orderly end, and patience with nobody who holds it up."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psycopg
import pytest

from audit import worker
from engine import wiring
from engine.cli import serving
from engine.connections.listening import Port, listen
from engine.connections.protocol import ARRIVE_S
from engine.providers.postgres import EmbeddedPostgres
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import HUNG_S, PATIENCE, ROOT, Records, Running, free_port, killed_after, running
from tests.product.http.metrics_text import added, read

IMU = {"query": "What does an IMU measure?"}
SOON_S = 30.0  # far more than anything here takes
PROC = Path("/proc")


class Served:
    """`affidavit serve` with workers, and what it says."""

    def __init__(
        self,
        data_dir: Path,
        workers: int,
        descriptors: int | tuple[int, int] | None = None,
        **environment: str,
    ) -> None:
        self.port = free_port()
        self.started = now()
        self.url = f"http://127.0.0.1:{self.port}"
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with us; a pipe would stay open as long as the index's worker lives
        self.process = subprocess.Popen(
            [*limited(descriptors), sys.executable, "-m", "engine.cli", "serve", "--port", str(self.port), "--data-dir", str(data_dir),
             "--workers", str(workers)],
            stdout=subprocess.PIPE, stderr=self._stderr, text=True, cwd=ROOT, env=os.environ | PATIENCE | environment,
        )  # fmt: skip
        assert self.process.stdout
        with killed_after(HUNG_S, self.process):
            self.is_ready = self.process.stdout.readline().startswith("Affidavit is ready")

    @property
    def said(self) -> list[str]:
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode().splitlines()

    def workers(self) -> set[int]:
        """Its processes that serve."""
        return {
            int(path.parent.name)
            for path in PROC.glob("[0-9]*/cmdline")
            if "engine.cli.serving" in told(path) and parent_of(int(path.parent.name)) == self.process.pid
        }  # fmt: skip

    def stop(self) -> int:
        self.process.terminate()
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(SOON_S)
        assert self.process.stdout
        self.process.stdout.close()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop()
        self._stderr.close()


def limited(descriptors: int | tuple[int, int] | None) -> list[str]:
    """A command before the command that sets the soft and the hard limit of open files.

    Not a `preexec_fn`: that forks this process, and gRPC's threads here do not survive it.
    """
    if descriptors is None:
        return []
    soft, hard = (descriptors, descriptors) if isinstance(descriptors, int) else descriptors
    return ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh"]


def told(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent_of(pid: int) -> int:
    fields = told(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + SOON_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextlib.contextmanager
def served(
    data_dir: Path, workers: int, descriptors: int | tuple[int, int] | None = None, **environment: str
) -> Iterator[Served]:
    server = Served(data_dir, workers, descriptors, **environment)
    try:
        assert server.is_ready, server.said
        yield server
    finally:
        server.close()


def ask(server: Served, secret: str, **body: str) -> httpx.Response:
    """On a connection of its own, so that any worker may take it."""
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.post(f"{server.url}/v1/query", json=body or IMU, headers=headers, timeout=SOON_S)


@pytest.fixture(scope="module")
def two(data_dir: Path, database: Database) -> Iterator[Served]:
    with served(data_dir, 2) as server:
        yield server


# Seen red with a page of one worker's figures alone.
def test_several_workers_share_the_port_and_the_figures_add_up(
    two: Served, key: str, records: Records
) -> None:
    assert len(two.workers()) in {2, 3}  # a spare one too, soon
    before = read(httpx.get(f"{two.url}/metrics").text)
    answers = [ask(two, key) for _ in range(20)]
    assert {response.status_code for response in answers} == {200}
    for response in answers:
        assert len(records.of(response.json()["query_id"])) == 1

    def is_counted() -> bool:
        after = read(httpx.get(f"{two.url}/metrics").text)
        return added(before, after, "affidavit_requests_total", 'endpoint="/v1/query"') == 20

    wait_for(is_counted)


async def test_a_revoked_key_is_refused_within_a_second_by_every_worker(
    two: Served, database: Database
) -> None:
    async with wiring.open_keys(database) as keys:
        secret = await keys.create("leaving", ["ask"], "100000/minute")
        statuses = {(await asyncio.to_thread(ask, two, secret)).status_code for _ in range(10)}
        assert statuses == {200}
        await keys.revoke(key_id=secret.split("_")[1])
    await asyncio.sleep(1.0)  # the promise itself
    statuses = {(await asyncio.to_thread(ask, two, secret)).status_code for _ in range(20)}
    assert statuses == {401}


# Seen red with `keep` hiring nobody.
def test_a_dead_worker_is_replaced_while_the_other_serves(two: Served, key: str) -> None:
    wait_for(lambda: len(two.workers()) == 3)
    before = two.workers()
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: victim not in two.workers())
    wait_for(lambda: len(two.workers()) == 3)
    assert len(two.workers() - before) == 1
    assert {ask(two, key).status_code for _ in range(20)} == {200}
    assert any("and is restarted" in line for line in two.said)


# Seen red with a `wait_for_end` that waits for ever.
async def test_a_worker_that_hangs_is_killed(database: Database, tmp_path: Path) -> None:
    with contextlib.closing(listen("127.0.0.1", 0)) as bound:
        run = serving.ServingRun(database.settings, bound, Port.OWN, asyncio.Event(), asyncio.Event())
        process = await serving._Supervisor(1, run, tmp_path).start()

        def stop_it(header: bytes) -> None:
            if header == serving.READY:
                process.send_signal(signal.SIGSTOP)

        async with asyncio.timeout(SOON_S):
            assert await worker.wait_for_end(process, 3.0, stop_it) == -signal.SIGKILL


def test_an_orderly_end_leaves_no_process_and_the_requests_in_flight_are_answered(
    data_dir: Path, database: Database, key: str, records: Records
) -> None:
    started = now()
    with served(data_dir, 2) as server:
        heard: list[httpx.Response] = []
        asking = [threading.Thread(target=lambda: heard.append(ask(server, key))) for _ in range(8)]
        for thread in asking:
            thread.start()
        wait_for(lambda: bool(heard))
        workers = server.workers()
        assert server.stop() == 0
        for thread in asking:
            thread.join(SOON_S)
    assert {response.status_code for response in heard} == {200}
    assert not any((PROC / str(pid)).exists() for pid in workers)
    with psycopg.connect(database.url) as connection:
        left = "SELECT count(*) FROM audit_open WHERE trail ->> 'client_id' = 'tests' AND opened_at >= %s"
        assert connection.execute(left, (started,)).fetchone() == (0,)


# Seen red without the watch on the parent.
@pytest.mark.campaign
def test_workers_end_when_the_one_who_started_them_is_killed(data_dir: Path, database: Database) -> None:
    server = Served(data_dir, 2)
    workers = server.workers()
    server.process.kill()
    server.ended()
    wait_for(lambda: not any((PROC / str(pid)).exists() for pid in workers))
    server.close()


@pytest.mark.campaign
def test_what_keeps_workers_from_starting_is_said_and_ends_the_server(
    data_dir: Path, database: Database
) -> None:
    server = Served(data_dir, 2, AFFIDAVIT_PROVIDERS__GENERATOR="claude", ANTHROPIC_API_KEY="")
    assert not server.is_ready
    assert server.ended() == 1
    assert any("set ANTHROPIC_API_KEY" in line for line in server.said)
    assert not any("Traceback" in line for line in server.said)
    server.close()


@pytest.mark.campaign
def test_the_embedded_database_is_stopped_by_the_last(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder of its own: the session's database is used by the session too."""
    folder = tmp_path_factory.mktemp("w")
    with served(folder, 2) as server:
        with psycopg.connect(EmbeddedPostgres(folder).url) as connection:
            assert connection.execute("SELECT 1").fetchone()
        assert server.stop() == 0
    assert not (folder / "postgres" / "postmaster.pid").exists()


def connect(server: Running) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port or 80), timeout=SOON_S)


DRIPS = {
    "nothing at all": [b""],
    "a head that never ends": [
        b"POST /v1/query HTTP/1.1\r\nHost: x\r\n",
        b"X-A: a\r\n",
        b"X-B: b\r\n",
        b"X-C: c\r\n",
    ],
    "a body that never ends": [
        b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        b"{",
        b" ",
        b" ",
    ],
    "a second head that never ends": [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal", b"t", b"h", b"z"],
}


@pytest.mark.campaign
def test_who_speaks_drop_by_drop_is_not_waited_for(server: Running) -> None:
    """All of them at once, for each is waited for some seconds."""
    with ThreadPoolExecutor(len(DRIPS)) as pool:
        seconds = dict(
            zip(DRIPS, pool.map(partial(seconds_until_closed, server), DRIPS.values()), strict=True)
        )
    assert {name: spent for name, spent in seconds.items() if spent >= 2 * ARRIVE_S} == {}


def seconds_until_closed(server: Running, drips: list[bytes]) -> float:
    started = time.monotonic()
    with connect(server) as connection:
        for drop in drips:
            connection.sendall(drop)
        connection.settimeout(2 * ARRIVE_S)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                """Whatever it says before it closes."""
    return time.monotonic() - started


def test_two_hundred_who_say_nothing_keep_nobody_from_an_answer(
    server: Running, client: httpx.Client
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(server)).sendall(b"POST /v1/query HTTP/1.1\r\nHost: ")
        assert client.post("/v1/query", json=IMU).status_code == 200


@pytest.mark.parametrize(
    "head", [b"X-Long: " + b"a" * 100_000, b"".join(b"X-%d: a\r\n" % n for n in range(10_000))]
)
def test_a_head_beyond_all_measure_is_refused_at_once(
    server: Running, client: httpx.Client, head: bytes
) -> None:
    with connect(server) as connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + head)
        assert connection.recv(64).startswith(b"HTTP/1.1 400")
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
def test_no_page_of_another_site_is_let_in(client: httpx.Client, method: str) -> None:
    headers = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization"}  # fmt: skip
    for path in ("/v1/query", "/v1/signing-keys", "/metrics", "/openapi.json"):
        response = client.request(method, path, headers=headers)
        assert not [name for name in response.headers if name.startswith("access-control-")]
        assert response.headers["cross-origin-resource-policy"] == "same-origin"


def test_a_web_socket_is_no_way_in(client: httpx.Client, records: Records) -> None:
    request_id = str(uuid4())
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "a",
        "Sec-WebSocket-Version": "13",
    }
    response = client.get("/v1/query", headers=headers | {"X-Request-ID": request_id})
    assert response.status_code == 405
    assert len(records.where("request_id = %s", request_id)) == 1


# Seen red with uvicorn's `proxy_headers`, whose own variable is set here: it takes the address that the client made up.
@pytest.mark.campaign
def test_every_worker_believes_the_proxies_of_the_settings_and_no_others(
    data_dir: Path, database: Database, records: Records
) -> None:
    environment = {"AFFIDAVIT_SERVER__TRUSTED_PROXIES": "127.0.0.1, 10.0.0.0/8", "FORWARDED_ALLOW_IPS": "*"}
    with served(data_dir, 2, None, **environment) as server:
        ids = [str(uuid4()) for _ in range(10)]
        for request_id in ids:
            headers = {"X-Request-ID": request_id, "X-Forwarded-For": "198.51.100.1, 203.0.113.9, 10.0.0.7"}
            assert httpx.get(f"{server.url}/nothing", headers=headers, timeout=SOON_S).status_code == 404
    rows = records.where("request_id = ANY(%s)", ids)
    assert [row["client_address"] for row in rows] == ["203.0.113.9"] * len(ids)


@pytest.mark.parametrize("workers", ["0", "-1", "65", "many"])
def test_a_number_of_workers_that_makes_no_sense_is_wrong_usage(workers: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "engine.cli", "serve", "--workers", workers],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 2
    assert re.search(r"argument --workers: (invalid|it is from 1 to 64)", said.stderr)


# Seen red without the timer: whoever waited did so for as long as the process.
def test_a_start_that_hangs_is_a_failure_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.conftest.HUNG_S", 1.0)
    program = "import time; print('still waiting', flush=True); time.sleep(20); print('gave up')"
    with pytest.raises(AssertionError, match=r"hung before it was ready:\nstill waiting$"):
        with running(tmp_path, within=[sys.executable, "-c", program]):
            """It is never ready."""
