"""Connections: idle ones keep nobody from an answer, and what was sent over one is answered, whoever stops or dies."""

import contextlib
import io
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from audit import worker
from engine.cli import serving
from engine.connections.descriptors import RESERVED
from engine.errors import AuditUnavailableError
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import Records
from tests.product.access.test_malformed import connected, split
from tests.product.http.test_server import IMU, SOON_S, Served, ask, served, wait_for

DESCRIPTORS = 96
ATTACKERS = 150
KEEP_ALIVE = 32


@pytest.fixture
def narrow(data_dir: Path, database: Database) -> Iterator[Served]:
    """A server with few file descriptors."""
    with served(data_dir, 1, descriptors=DESCRIPTORS) as server:
        yield server


def is_closed(connection: socket.socket) -> bool:
    """By the server; without waiting."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


# Seen red without a limit: the server had no descriptor left, so this waited for the attackers to go.
@pytest.mark.campaign
@pytest.mark.parametrize("begun", [b"", b"POST /v1/query HTTP/1.1\r\nHost: "], ids=["silent", "unfinished"])
@pytest.mark.parametrize(
    "address",
    [pytest.param("127.0.0.81", marks=pytest.mark.campaign), "127.0.0.1"],
    ids=["elsewhere", "the same address"],
)
def test_idle_connections_make_room_for_whoever_asks(
    narrow: Served, key: str, records: Records, address: str, begun: bytes
) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(narrow, address)) for _ in range(ATTACKERS)]
        for connection in idle:
            with contextlib.suppress(ConnectionError):
                connection.sendall(begun)
        answers = [ask(narrow, key) for _ in range(5)]
        assert is_closed(idle[0]) and not is_closed(idle[-1])
    assert {response.status_code for response in answers} == {200}
    assert all(len(records.of(response.json()["query_id"])) == 1 for response in answers)
    assert not [line for line in narrow.said if line.startswith("{") and '"level": "info"' not in line]


# Seen red with a server that lets connections have every descriptor.
@pytest.mark.campaign
def test_the_audit_reaches_the_database_again_while_strangers_hold_all_they_can_get(
    narrow: Served, key: str, database: Database, records: Records
) -> None:
    assert ask(narrow, key).status_code == 200  # from here on its key is known, whatever the database does
    with contextlib.ExitStack() as stack:
        for number in range(ATTACKERS):
            stack.enter_context(connected(narrow, f"127.0.0.{82 + number % 3}"))
        with psycopg.connect(database.url) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'affidavit %%' AND backend_start >= %s",
                (narrow.started,),
            ).fetchall()
        answers = [ask(narrow, key) for _ in range(5)]
        taken = len(list(Path(f"/proc/{narrow.process.pid}/fd").iterdir()))
    assert ended
    assert taken <= DESCRIPTORS - RESERVED
    assert {response.status_code for response in answers} == {200}
    query_ids = [response.json()["query_id"] for response in answers]
    wait_for(lambda: len(records.where("query_id::text = ANY(%s)", query_ids)) == len(answers))


# Seen red with the limit of the shell.
def test_the_limit_of_descriptors_is_raised_as_far_as_the_system_allows(
    data_dir: Path, database: Database
) -> None:
    with served(data_dir, 2, descriptors=(DESCRIPTORS, 2 * DESCRIPTORS)) as server:
        for pid in {server.process.pid, *server.workers()}:
            limits = Path(f"/proc/{pid}/limits").read_text()
            (files,) = [line.split() for line in limits.splitlines() if line.startswith("Max open files")]
            assert files[3:5] == [str(2 * DESCRIPTORS)] * 2


# Seen red with what is left unchecked: it served.
def test_a_server_that_may_open_too_few_files_says_so_and_does_not_start(
    data_dir: Path, database: Database
) -> None:
    server = Served(data_dir, 1, descriptors=48)
    assert not server.is_ready
    assert server.ended() == 1
    assert any("ulimit -n" in line for line in server.said)
    server.close()


class Talkers:
    """Clients that ask one question after the other on one connection, until they are told that it closes."""

    def __init__(self, server: Served, secrets: list[str], address: str) -> None:
        self.answered = Counter[int]()
        self.request_ids: list[str] = []
        self.unanswered = 0
        self._lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self._talk, args=(server, secret, address)) for secret in secrets
        ]
        for thread in self.threads:
            thread.start()

    def _talk(self, server: Served, secret: str, address: str) -> None:
        body = json.dumps(IMU).encode()
        with connected(server, address) as connection:
            while True:
                request_id = str(uuid4())
                head = (
                    f"POST /v1/query HTTP/1.1\r\nHost: x\r\nX-Request-ID: {request_id}\r\n"
                    f"Authorization: Bearer {secret}\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                status, does_close = self._ask(connection, head.encode() + body)
                with self._lock:
                    self.answered[status] += 1
                    self.request_ids += [request_id] if status != 401 else []
                    self.unanswered += not status
                if does_close:
                    return

    def _ask(self, connection: socket.socket, request: bytes) -> tuple[int, bool]:
        response = b""
        try:
            connection.sendall(request)
            while b"\r\n\r\n" not in response:
                if not (part := connection.recv(65_536)):
                    return 0, True
                response += part
            status, headers, body = split(response)
            while len(body) < int(headers["content-length"]):
                if not (part := connection.recv(65_536)):
                    return 0, True
                body += part
        except ConnectionError:
            return 0, True
        return status, headers.get("connection") == "close"


# Seen red with uvicorn's own end: each of them got neither an answer nor a row for its last request.
@pytest.mark.campaign
@pytest.mark.parametrize("workers", [1, 2])
def test_at_the_end_every_request_on_an_open_connection_is_answered_and_has_its_row(
    data_dir: Path, database: Database, key: str, records: Records, workers: int
) -> None:
    started = now()
    with served(data_dir, workers) as server:
        keyed, strangers = [key] * (KEEP_ALIVE // 4), ["wrong"] * (3 * KEEP_ALIVE // 4)
        talkers = Talkers(server, keyed + strangers, f"127.0.0.{90 + workers}")
        wait_for(lambda: talkers.answered[200] >= KEEP_ALIVE and talkers.answered[401] >= KEEP_ALIVE)
        assert server.stop() == 0
        for thread in talkers.threads:
            thread.join(SOON_S)
    assert talkers.unanswered == 0
    rows = Counter(row["http_status"] for row in records.where("request_id = ANY(%s)", talkers.request_ids))
    assert rows | {401: talkers.answered[401]} == talkers.answered
    with psycopg.connect(database.url) as connection:
        left = "SELECT count(*) FROM audit_open WHERE opened_at >= %s AND trail ->> 'client_address' LIKE '127.0.0.9%%'"
        assert connection.execute(left, (started,)).fetchone() == (0,)
    counted = records.where("client_address = %s AND http_status = 401", f"127.0.0.{90 + workers}")
    assert sum(row["repeat_count"] for row in counted) == talkers.answered[401]


# Seen red with workers that are only started when another has died: seconds without an answer.
@pytest.mark.campaign
def test_when_all_serving_workers_die_the_spare_one_answers_at_once(
    data_dir: Path, database: Database, key: str
) -> None:
    with served(data_dir, 2) as server:
        wait_for(lambda: sum("A worker is ready" in line for line in server.said) == 3)
        *serving, spare = sorted(server.workers())
        for pid in serving:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not server.workers() & set(serving))
        assert {ask(server, key).status_code for _ in range(5)} == {200}
        assert spare in server.workers()


# Seen red with a supervisor that leaves the port to nobody: the request waited until a worker had started.
@pytest.mark.campaign
def test_while_no_worker_is_ready_the_supervisor_answers_and_the_next_worker_records_how_often(
    data_dir: Path, database: Database, key: str, records: Records
) -> None:
    started = now()
    with served(data_dir, 2) as server:
        wait_for(lambda: len(server.workers()) == 3)
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not server.workers())
        turned_away = [ask(server, key) for _ in range(3)]
        assert httpx.get(f"{server.url}/readyz", timeout=SOON_S).status_code == 503
        assert not httpx.head(f"{server.url}/v1/books", timeout=SOON_S).content
        wait_for(lambda: ask_until_ready(server, key, turned_away))
        wait_for(lambda: counted(records, started) == len(turned_away) + 1)
    for response in turned_away:
        problem = response.json()
        assert (response.status_code, response.headers["retry-after"]) == (503, "3")
        assert (problem["query_id"], problem["request_id"]) == (None, "")
        assert "x-request-id" not in response.headers
        assert problem["retryable"]


# Seen red with one try, as before: its failure was asked for by nobody, and the count waited until the worker died.
async def test_a_row_of_the_turned_away_that_fails_is_tried_again_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "RECORD_PAUSE_S", 0.0)
    tried: list[int] = []

    class Recovering:
        async def record_turned_away(self, count: int) -> None:
            tried.append(count)
            if len(tried) < 3:
                raise AuditUnavailableError

    engine: Any = Recovering()
    sink = io.BytesIO()
    await serving._record_turned_away(7, engine, sink)
    assert tried == [7, 7, 7]
    sink.seek(0)
    assert worker.receive(sink, worker.NOTICE_BYTES_MAX)[0] == serving.RECORDED


def ask_until_ready(server: Served, key: str, turned_away: list[httpx.Response]) -> bool:
    response = ask(server, key)
    if response.status_code == 503:
        turned_away.append(response)
    return response.status_code == 200


def counted(records: Records, since: object) -> int:
    rows = records.where("endpoint = 'several' AND http_status = 503 AND timestamp >= %s", since)
    assert all(isinstance(row["query_id"], UUID) and row["client_address"] is None for row in rows)
    return sum(row["repeat_count"] for row in rows)
