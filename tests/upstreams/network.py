"""A network between an engine and a server: a TCP address in a process of its own, which can be cut.

Stopped by a signal it takes connections and bytes and passes none on, as a network does that swallows everything.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conftest import ROOT, free_port

READ_BYTES = 1 << 16
ENDED_S = 10


@dataclass(frozen=True, slots=True)
class Link:
    port: int
    process: subprocess.Popen[str]

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def link(to: str) -> Iterator[Link]:
    """To the port of this machine, or the path of a socket, that is named."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(port), to], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield Link(port, process)
    finally:
        process.kill()
        process.wait(ENDED_S)
        if process.stdout is not None:
            process.stdout.close()


async def _serve(port: int, to: str) -> None:
    async def connected(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            server, forth = await _connect(to)
            await asyncio.gather(_pass_on(client, forth), _pass_on(server, back))
        back.close()

    async with await asyncio.start_server(connected, "127.0.0.1", port) as listening:
        print("ready", flush=True)
        await listening.serve_forever()


async def _connect(to: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if to.isdigit():
        return await asyncio.open_connection("127.0.0.1", int(to))
    return await asyncio.open_unix_connection(to)


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.read(READ_BYTES):
            sink.write(piece)
            await sink.drain()
    sink.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))
