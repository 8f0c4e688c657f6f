"""A port that several servers share, or that systemd holds: nobody who connects is lost when one of them leaves."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.cli.serving import LINGER_S
from engine.connections import listening
from engine.connections.listening import Port
from engine.storage.database import Database
from tests.command_line import affidavit
from tests.conftest import HUNG_S, PATIENCE, READY_S, ROOT, free_port, killed_after

CLIENTS = 40
IMU = {"query": "What does an IMU measure?"}
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="SO_REUSEPORT shares connections on Linux only"
)


# As systemd passes a socket: the process id is known in the process only.
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""


def handing(held: socket.socket) -> list[str]:
    return [sys.executable, "-c", HAND_OVER, str(held.fileno())]


@contextlib.contextmanager
def serving(data: Path, *command: str, held: socket.socket | None = None) -> Iterator[subprocess.Popen[str]]:
    """Ready, in a process of its own; from this socket, if it is handed one."""
    process = subprocess.Popen(
        [*(handing(held) if held else []), sys.executable, "-m", "engine.cli", "serve", "--data-dir", str(data), *command],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=os.environ | PATIENCE,
        pass_fds=[held.fileno()] if held else [],
    )  # fmt: skip
    assert process.stdout
    try:
        with killed_after(HUNG_S, process):
            assert process.stdout.readline().startswith("Affidavit is ready")
        yield process
    finally:
        process.terminate()
        process.wait(READY_S)
        process.stdout.close()


def in_a_queue(listener: socket.socket) -> list[socket.socket]:
    listener.setblocking(False)
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(listener.accept()[0])
    return found


async def connected(port: int) -> None:
    """Until the server says a byte; `ConnectionResetError` if it was lost."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.readexactly(1) == b"y"
    writer.close()


async def greet(listener: socket.socket) -> None:
    listener.setblocking(False)
    while True:
        visitor, _ = await asyncio.get_running_loop().sock_accept(listener)
        visitor.send(b"y")
        visitor.close()


# Seen red with a `_refuse_handshakes` that does nothing: about half of them waited in the queue that was closed, and were reset.
async def test_who_connects_while_a_server_leaves_the_port_is_served_by_another() -> None:
    port = free_port()
    leaving, staying = (listening.listen("127.0.0.1", port, Port.REUSED) for _ in range(2))
    leaving.listen(CLIENTS)
    staying.listen(CLIENTS)
    greeting = asyncio.create_task(greet(staying))
    left = asyncio.create_task(listening.leave(leaving, Port.REUSED))
    await asyncio.sleep(0)  # it has begun
    clients = [asyncio.create_task(connected(port)) for _ in range(CLIENTS)]
    await left
    late = in_a_queue(leaving)
    for each in (*late, leaving):
        each.close()
    lost = [failure for failure in await asyncio.gather(*clients, return_exceptions=True) if failure]
    greeting.cancel()
    staying.close()
    assert (late, lost) == ([], [])


# Seen red with a `leave` that does not look into the queue.
async def test_who_waits_in_the_queue_is_taken_in_first() -> None:
    leaving = listening.listen("127.0.0.1", free_port(), Port.REUSED)
    leaving.listen(CLIENTS)
    waiting = [socket.create_connection(leaving.getsockname()) for _ in range(3)]
    left = asyncio.create_task(listening.leave(leaving, Port.REUSED))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(listening.HANDSHAKE_S + 0.2):
            await asyncio.shield(left)
    visitors = in_a_queue(leaving)
    await left
    assert len(visitors) == len(waiting)
    for each in (*visitors, *waiting, leaving):
        each.close()


def test_a_port_is_shared_only_among_those_that_agreed() -> None:
    port = free_port()
    with (
        contextlib.closing(listening.listen("127.0.0.1", port)),
        pytest.raises(OSError, match="the server that has it runs without --reuse-port"),
    ):
        listening.listen("127.0.0.1", port, Port.REUSED)


def test_a_server_that_starts_takes_no_connection_before_it_is_ready() -> None:
    port = free_port()
    with (
        contextlib.closing(listening.listen("127.0.0.1", port, Port.REUSED)),
        pytest.raises(ConnectionRefusedError),
    ):
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_systemd_must_pass_one_listening_socket(kind: socket.SocketKind, tmp_path: Path) -> None:
    with socket.socket(type=kind) as held:
        held.bind(("127.0.0.1", 0))
        said = subprocess.run(
            [*handing(held), sys.executable, "-m", "engine.cli", "serve", "--data-dir", str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, pass_fds=[held.fileno()],
        )  # fmt: skip
    assert said.returncode == 1
    assert "one listening TCP socket" in said.stderr


def test_a_socket_for_another_process_is_left_alone() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "PATH": "/bin"}
    assert listening.inherited(environment) is None
    assert environment == {"PATH": "/bin"}


# Seen red with a shutdown that does not wait for connections at rest.
@pytest.mark.campaign
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_connection_that_rests_gets_one_more_answer_from_a_server_that_leaves(
    data_dir: Path, database: Database, key: str, workers: str
) -> None:
    port = free_port()
    url, headers = f"http://127.0.0.1:{port}/v1/query", {"Authorization": f"Bearer {key}"}
    with (
        serving(data_dir, "--port", str(port), "--reuse-port", "--workers", workers) as server,
        httpx.Client(headers=headers, timeout=30) as client,
    ):
        assert client.post(url, json=IMU).headers.get("connection") != "close"
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                socket.create_connection(("127.0.0.1", port), timeout=30).close()
        time.sleep(2 * LINGER_S)  # a rest, and longer than requests that are on their way take
        response = client.post(url, json=IMU)
    assert response.is_success
    assert response.headers["connection"] == "close"


@pytest.mark.campaign
def test_two_servers_share_a_port_and_an_embedded_database(
    data_dir: Path, database: Database, key: str
) -> None:
    port = free_port()
    shared, headers = ("--port", str(port), "--reuse-port"), {"Authorization": f"Bearer {key}"}
    with serving(data_dir, *shared) as old, serving(data_dir, *shared):
        old.send_signal(signal.SIGTERM)
        for _ in range(20):
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/query", json=IMU, headers=headers, timeout=30)
            assert answer.is_success, answer.text
        assert old.wait(READY_S) == 0
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/query", json=IMU, headers=headers, timeout=30)
        assert answer.is_success, answer.text


@pytest.mark.campaign
def test_systemds_socket_outlives_the_server(data_dir: Path, database: Database, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    with socket.create_server(("127.0.0.1", 0)) as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1/query"
        with serving(data_dir, held=held):
            assert httpx.post(url, json=IMU, headers=headers, timeout=30).is_success
        with socket.create_connection(held.getsockname()) as early:  # while nobody serves
            early.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            with serving(data_dir, held=held):
                assert early.recv(12) == b"HTTP/1.1 200"


def test_two_servers_on_a_port_need_the_option(data_dir: Path, database: Database) -> None:
    port = free_port()
    with serving(data_dir, "--port", str(port)):
        said = affidavit("serve", "--port", port, "--reuse-port", data_dir=data_dir)
        assert said.returncode == 1
        assert "Restart that one with --reuse-port first" in said.stderr
