"""Redis with Sentinel on free ports: a master, two replicas, three Sentinels. Each can be killed, frozen and started again."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from tests.conftest import free_port
from tests.upstreams.redis_server import PROGRAM

NAME = "limits"
NODES = 3
DOWN_MS = 700  # from then on a silent master counts as dead
READY_S = 20


@dataclass(slots=True)
class Node:
    """One process of Redis or of Sentinel."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        assert PROGRAM
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [PROGRAM, str(self.folder / "conf"), *options], stdout=output, stderr=output
            )

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait(READY_S)

    def freeze(self) -> None:
        assert self.process
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process
        os.kill(self.process.pid, signal.SIGCONT)


@dataclass(slots=True)
class RedisSentinel:
    """Three machines, each with a Redis and a Sentinel."""

    nodes: list[Node] = field(default_factory=list)
    sentinels: list[Node] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in self.sentinels)}/{NAME}"

    def master(self) -> Node:
        """As the first Sentinel that answers says."""
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError):
                port = int(_asked(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError("No Sentinel answers")

    def wait_for_another_master(self, than: Node) -> Node:
        _wait_until(lambda: self.master() is not than and _is_master(self.master()))
        return self.master()

    def wait_for_replicas(self, count: int = NODES - 1) -> None:
        _wait_until(lambda: _replicas(self.master()) == count)


@contextlib.contextmanager
def redis_sentinel() -> Iterator[RedisSentinel]:
    with tempfile.TemporaryDirectory(prefix="affidavit-sentinel-", ignore_cleanup_errors=True) as folder:
        house = RedisSentinel()
        try:
            _start(house, Path(folder))
            yield house
        finally:
            for node in (*house.sentinels, *house.nodes):
                if node.process:
                    node.kill()


def _start(house: RedisSentinel, folder: Path) -> None:
    for number in range(NODES):
        node = _node(folder / f"redis-{number}", 'save ""\nappendonly no\nrepl-diskless-sync-delay 0\n')
        house.nodes.append(node)
        node.start(*(["--replicaof", f"127.0.0.1 {house.nodes[0].port}"] if number else []))
    _wait_until(lambda: _replicas(house.nodes[0]) == NODES - 1)
    for number in range(NODES):
        watching = (
            f"sentinel monitor {NAME} 127.0.0.1 {house.nodes[0].port} 2\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\nsentinel failover-timeout {NAME} 3000\n"
        )
        sentinel = _node(folder / f"sentinel-{number}", watching)
        house.sentinels.append(sentinel)
        sentinel.start("--sentinel")
    _wait_until(lambda: all(_knows_others(each) for each in house.sentinels))


def _node(folder: Path, configuration: str) -> Node:
    folder.mkdir()
    node = Node(folder, free_port())
    (folder / "conf").write_text(
        f"port {node.port}\nbind 127.0.0.1\ndir {folder}\nprotected-mode no\n{configuration}"
    )
    return node


def _replicas(node: Node) -> int:
    return sum(
        1 for name, about in _asked(node, "INFO", "replication").items()
        if name.startswith("slave") and about["state"] == "online"
    )  # fmt: skip


def _is_master(node: Node) -> bool:
    return bool(_asked(node, "INFO", "replication")["role"] == "master")


def _knows_others(sentinel: Node) -> bool:
    others, replicas = (_asked(sentinel, "SENTINEL", what, NAME) for what in ("SENTINELS", "REPLICAS"))
    return len(others) == len(replicas) == NODES - 1


def _asked(node: Node, *words: str) -> Any:
    with redis.Redis(host="127.0.0.1", port=node.port, socket_timeout=1, decode_responses=True) as connection:
        return connection.execute_command(*words)


def _wait_until(condition: Callable[[], bool]) -> None:
    """Another program's readiness is no event of ours; it can only be asked for."""
    deadline = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        assert time.monotonic() < deadline, "Redis or Sentinel did not become ready"
        time.sleep(0.02)
