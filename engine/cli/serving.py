"""The server: one process, or several that share the port and are replaced when they die.

Workers share what lives outside of them: the database, the index's worker, the limits if they are in Redis. Each stops in
order on SIGTERM, and when whoever started it is gone. The embedded database is stopped by the last who uses it.
"""

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine import logs, wiring
from engine.cli.output import FOUND_SOMETHING, quiet, say
from engine.database import Database
from engine.errors import AffidavitError
from engine.http.app import create_app
from engine.settings import Settings

STOP_S = 6  # a question takes five seconds at most; who has not read its answer by then is not waited for
LAST_ROWS_S = 1.0  # for those that are cut off then: their rows take half a second
UNREAD_S = 30  # as long as engine/http/stream.py waits for a reader
ARRIVE_S = (
    10.0  # a request that has not come whole by then is not waited for; the engine gave up on it before
)
HEAD_BYTES_MAX = 16 * 1024  # a key, a request id and whatever proxies add take less than 2 KiB
AGAIN_S = 1.0  # before a worker that died is replaced: what it died of may last
BEAT_S = 1.0  # so often a worker says that it lives
HUNG_S = 30.0  # a worker that was silent for so long has broken every promise: it is killed, and replaced
LEAVE_S = 20.0  # to stop in order: requests, their rows, a last seal

_BEAT, _READY = b".", b"!"  # what a worker says
_SAID_MAX = 64

_SPAWN = multiprocessing.get_context("spawn")

log = logging.getLogger(__name__)


async def serve(
    settings: Settings, database: Database, listening: socket.socket, ready: str, workers: int = 1
) -> int:
    """Until SIGINT or SIGTERM. What is in flight then is finished, or its row says how far it came."""
    async with wiring.open_registry(database) as registry:
        for book in await registry.books():
            for warning in book.warnings:
                say(f"WARNING: {book.book_id}: {warning}")
    stop = _told_to_stop(signal.SIGINT, signal.SIGTERM)
    if workers == 1:
        is_served = await _served(settings, database, listening, lambda: print(ready, flush=True), stop)
    else:
        is_served = await _served_by(workers, settings, listening, ready, stop)
    say("Stopped.")
    return 0 if is_served else FOUND_SOMETHING


def listen(host: str, port: int) -> socket.socket:
    """Taken before anything is started, so that a port in use is said at once."""
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as failure:
        raise OSError(
            f"Port {port} cannot be used ({os.strerror(failure.errno or 0)}). Try another: --port {port + 1}"
        ) from None
    listening.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # else each answer waits 40 ms for an acknowledgement
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else a reader who stops reading keeps its connection for ever
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
    return listening


async def _served(
    settings: Settings,
    database: Database,
    listening: socket.socket,
    ready: Callable[[], None],
    stop: asyncio.Event,
    metrics_folder: Path | None = None,
) -> bool:
    """By this process."""
    async with wiring.open_house(settings, database) as house:
        app = create_app(lambda: nullcontext(house), metrics_folder)
        server = _Server(
            uvicorn.Config(
                app, http=Timely, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False,
                timeout_graceful_shutdown=STOP_S, h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            )
        )  # fmt: skip
        server.ready = ready
        stopping = asyncio.create_task(_exit_when(stop, server))
        await server.serve(sockets=[listening])
        stopping.cancel()
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=LAST_ROWS_S)
    return server.started


class Timely(H11Protocol):
    """HTTP/1.1 for those who speak: a head or a body that comes drop by drop holds a connection ten seconds, not for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as there
        super().connection_made(transport)
        self._await_rest()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Between two requests nothing is owed: uvicorn's own limit for idle connections holds then."""
        is_begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        if not is_begun:
            self._stop_waiting()
        elif self._deadline is None:
            self._await_rest()

    def _await_rest(self) -> None:
        self._deadline = self.loop.call_later(ARRIVE_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """Says when it is ready, and leaves signals to us: after the last request the database must be stopped too."""

    ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what lives as long as we do is not looked at again: a full collection would stop the loop for 30 ms
        if self.started:
            self.ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _exit_when(stop: asyncio.Event, server: _Server) -> None:
    await stop.wait()
    server.should_exit = True


def _told_to_stop(*signals: signal.Signals) -> asyncio.Event:
    stop = asyncio.Event()
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _served_by(
    count: int, settings: Settings, listening: socket.socket, ready: str, stop: asyncio.Event
) -> bool:
    """By workers. If one of the first cannot start, none of them could stay."""
    with tempfile.TemporaryDirectory(prefix="affidavit-figures-") as folder:
        crew = _Crew(settings, listening, Path(folder))
        workers = [await crew.hire() for _ in range(count)]
        keeping: Sequence[asyncio.Task[None]] = []
        is_ready = await _unless(stop, asyncio.gather(*(worker.is_ready() for worker in workers)))
        if is_ready and all(is_ready):
            print(ready, flush=True)
            keeping = [asyncio.create_task(crew.keep(worker)) for worker in workers]
            await stop.wait()
        for task in keeping:
            task.cancel()
        await crew.dismiss()
    return bool(keeping)


async def _unless(stop: asyncio.Event, waiting: "asyncio.Future[list[bool]]") -> list[bool] | None:
    stopping = asyncio.create_task(stop.wait())
    both: list[asyncio.Future[Any]] = [stopping, waiting]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not waiting.done():
        waiting.cancel()
        return None
    return waiting.result()


class _Crew:
    """The workers that are alive."""

    def __init__(self, settings: Settings, listening: socket.socket, folder: Path) -> None:
        self._settings, self._listening, self._folder = settings, listening, folder
        self._workers: set[_Worker] = set()

    async def hire(self) -> "_Worker":
        worker = await _Worker.started(self._settings, self._listening, self._folder)
        self._workers.add(worker)
        return worker

    async def keep(self, worker: "_Worker") -> None:
        """Whatever it dies of: an outage may hold up its successors too, but not those who still work."""
        while True:
            code = await worker.ended()
            self._workers.discard(worker)
            log.error("A worker ended (exit code %s); another takes its place", code)
            await asyncio.sleep(AGAIN_S)
            worker = await self.hire()

    async def dismiss(self) -> None:
        """All at once, so that they take no longer than one."""
        for worker in self._workers:
            worker.process.terminate()
        await asyncio.gather(*(worker.gone() for worker in self._workers))


class _Worker:
    """A process that serves. Its pipe says that it lives and is ready, and by ending that it is dead."""

    def __init__(self, process: multiprocessing.process.BaseProcess, pipe: asyncio.StreamReader) -> None:
        self.process = process
        self._pipe = pipe

    @classmethod
    async def started(cls, settings: Settings, listening: socket.socket, folder: Path) -> "_Worker":
        hears, tells = _SPAWN.Pipe(duplex=False)
        level = logging.getLogger("engine").level
        process = _SPAWN.Process(target=_work, args=(settings, listening, tells, folder, level))
        process.start()
        tells.close()
        pipe = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), hears)
        return cls(process, pipe)

    async def is_ready(self) -> bool:
        while said := await self._pipe.read(_SAID_MAX):
            if _READY in said:
                return True
        return False

    async def ended(self) -> int | None:
        """Dead, or made so because it hung: then its pipe ends too."""
        is_open = True
        while is_open:
            try:
                async with asyncio.timeout(HUNG_S):
                    is_open = bool(await self._pipe.read(_SAID_MAX))
            except TimeoutError:
                log.error("A worker did nothing for %s s and is killed", HUNG_S)  # noqa: TRY400  not our fault
                self.process.kill()
        await asyncio.to_thread(self.process.join)
        return self.process.exitcode

    async def gone(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.ended()
        except TimeoutError:
            self.process.kill()


def _work(settings: Settings, listening: socket.socket, tells: Connection, folder: Path, level: int) -> None:
    """A worker's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of us; one decides
    logs.configure(level)
    try:
        is_served = asyncio.run(_worked(settings, listening, tells, folder))
    except (AffidavitError, OSError) as failure:
        sys.exit(f"affidavit: {failure}")
    sys.exit(0 if is_served else FOUND_SOMETHING)


async def _worked(settings: Settings, listening: socket.socket, tells: Connection, folder: Path) -> bool:
    stop = _told_to_stop(signal.SIGTERM)
    parent = multiprocessing.parent_process()
    assert parent
    asyncio.get_running_loop().add_reader(parent.sentinel, stop.set)  # nobody would stop us, or replace us
    beating = asyncio.create_task(_beat(tells))
    try:
        async with wiring.open_database(settings, quiet) as database:
            return await _served(settings, database, listening, lambda: _say(tells, _READY), stop, folder)
    finally:
        beating.cancel()
        asyncio.get_running_loop().remove_reader(parent.sentinel)


async def _beat(tells: Connection) -> None:
    """From the loop that serves: if it stands still, so does its heart."""
    while True:
        _say(tells, _BEAT)
        await asyncio.sleep(BEAT_S)


def _say(tells: Connection, word: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # who listened is gone, and we are told to stop
        os.write(tells.fileno(), word)
