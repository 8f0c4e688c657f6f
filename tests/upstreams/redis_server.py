"""A real Redis on a free port: Debian's, which .ci/run installs."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.conftest import free_port

READY_S = 10
PROGRAM = shutil.which("redis-server")

needs_redis = pytest.mark.skipif(
    PROGRAM is None, reason="redis-server is not installed: apt-get install redis-server"
)


@dataclass(slots=True)
class RedisServer:
    """It can go and come back on the same port."""

    port: int
    folder: str
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(READY_S)

    def start(self) -> None:
        self.process = _started(self.port, self.folder)


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="affidavit-redis-") as folder:
        port = free_port()
        server = RedisServer(port, folder, _started(port, folder))
        try:
            yield server
        finally:
            server.stop()


def _started(port: int, folder: str) -> subprocess.Popen[bytes]:
    assert PROGRAM
    process = subprocess.Popen(
        [
            PROGRAM,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            folder,
            "--save",
            "",
            "--appendonly",
            "no",
        ],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return process
