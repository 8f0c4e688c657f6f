"""The server, in one process or under a supervisor whose workers share the port and are restarted when they die or hang.

Workers share what is outside of them: the database, the index's worker, the limits if they are in Redis. One more than serve is
kept ready, for the first that dies; while none serves the supervisor answers that they are not ready. Each shuts down gracefully
on SIGTERM, and when the supervisor has died. The last process that uses the embedded database stops it.
"""

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

import uvicorn

from audit import worker
from audit.errors import AuditError
from engine import logs, wiring
from engine.admission.proxies import TrustedProxies
from engine.answer import Engine
from engine.cli.output import FOUND_SOMETHING, say
from engine.connections import descriptors
from engine.connections.door import QUEUE, Door
from engine.connections.occupancy import Occupancy
from engine.connections.protocol import PatientProtocol
from engine.connections.turned_away import Stopgap
from engine.errors import AffidavitError
from engine.house import House
from engine.http.app import create_app
from engine.settings import Settings
from engine.storage.database import Database

STOP_S = 6  # a question takes five seconds at most; a client that has not read its answer by then is cut off
LAST_ROWS_S = 1.0  # for the requests that are cut off then: their rows take half a second
UNREAD_S = 30  # as long as engine/http/stream.py waits for a reader
LINGER_S = 0.5  # at the end, for requests that are on their way over connections that are open
RESTART_S = 1.0  # the backoff before a worker is restarted: the cause of its death may last
HEARTBEAT_S = 1.0
TURNED_AWAY_MAX = 256  # connections that the supervisor answers at once while no worker is ready
HUNG_S = 30.0  # a worker without a heartbeat for so long missed every deadline: it is killed and restarted
SHUTDOWN_S = 20.0  # for a graceful shutdown: requests, their rows, a last seal

# What a worker does not get with the settings: the vault's and the database's own variables, and the way to the network.
FROM_ENVIRONMENT = (
    "AWS_", "PG", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip

# Between the supervisor and a worker
READY = b"ready"  # it can serve, and waits until it is told to
SERVE = b"serve"  # with the number of requests that the supervisor has turned away
RECORDED = b"recorded"  # the row that counts them is written
SEARCHABLE = b"searchable"  # the first question to it can be answered

log = logging.getLogger(__name__)


async def serve(
    settings: Settings, database: Database, listening: socket.socket, ready: str, workers: int = 1
) -> int:
    """Runs until SIGINT or SIGTERM, then shuts down gracefully: requests in flight finish or are recorded as cut off."""
    async with wiring.open_registry(database) as registry:
        for book in await registry.books():
            for warning in book.warnings:
                say(f"WARNING: {book.book_id}: {warning}")
    for warning in await wiring.warnings_at_start(settings, database):
        say(f"WARNING: {warning}.")
    stop = _event_on(signal.SIGINT, signal.SIGTERM)
    if workers == 1:
        say_ready = partial(print, ready, flush=True)
        has_started = await _serve_here(settings, database, listening, _open_at_once, say_ready, stop)
    else:
        has_started = await _serve_by_workers(workers, settings, listening, ready, stop)
    say("Stopped.")
    return 0 if has_started else FOUND_SOMETHING


def listen(host: str, port: int) -> socket.socket:
    """Binds the port before anything else starts, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=QUEUE)
    except OSError as failure:
        reason = os.strerror(failure.errno or 0)
        raise OSError(f"Port {port} cannot be used ({reason}). Use another one: --port {port + 1}") from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait 40 ms for an ACK
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else a client that stops reading keeps its connection for ever
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
    return listening


def _open_at_once(server: "_Server", _: Engine) -> None:
    server.door.open()


async def _serve_here(
    settings: Settings, database: Database, listening: socket.socket, started: Callable[["_Server", Engine], None],
    ready: Callable[[], None], stop: asyncio.Event, metrics_folder: Path | None = None,
) -> bool:  # fmt: skip
    """Serves in this process, once `started` opens the door. False if the server did not start."""
    async with (
        wiring.open_house(settings, database) as house,
        wiring.heartbeat_of(house.engine.ledger).beating(),
    ):
        app = create_app(lambda: contextlib.nullcontext(house), metrics_folder)
        config = uvicorn.Config(
            app, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=STOP_S,
            proxy_headers=False,  # they would be believed from this machine: see admission/proxies.py
        )  # fmt: skip
        server = _Server(config, listening, house.proxies, settings.database.connections_max)
        server.started_with = lambda: started(server, house.engine)
        stopping = asyncio.create_task(_exit_when(stop, server))
        saying_ready = asyncio.create_task(_say_when_ready(server, house, ready))
        await server.serve(sockets=[])
        stopping.cancel()
        saying_ready.cancel()
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=LAST_ROWS_S)
    return server.started


class _Server(uvicorn.Server):
    """Calls `started_with` after its start, and leaves signals to `serve`, which stops the database after the last request.

    It is given no sockets: its door accepts connections, once it is opened.
    """

    started_with: Callable[[], None]
    door: Door
    recording: asyncio.Task[None]

    def __init__(
        self,
        config: uvicorn.Config,
        listening: socket.socket,
        proxies: TrustedProxies,
        database_connections: int,
    ) -> None:
        super().__init__(config)
        self._listening, self._proxies, self._database_connections = listening, proxies, database_connections
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # objects that live as long as the process: a full collection of them would block the loop for 30 ms
        in_all = descriptors.connections_max(self._database_connections)
        self._occupancy = Occupancy(in_all, self._proxies)
        visitor = partial(
            PatientProtocol, self.config, self.server_state, self.lifespan.state, self._occupancy
        )
        self.door = Door(self._listening, self._occupancy, visitor)
        self.started_with()
        if self.started:
            self.has_started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Whoever is connected gets one more answer: a client cannot know that it should not have asked."""
        self._occupancy.is_ending = True
        self.door.close()
        for connection in list(self.server_state.connections):
            assert isinstance(connection, PatientProtocol)
            connection.note_progress()
        await asyncio.sleep(LINGER_S)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _say_when_ready(server: _Server, house: House, ready: Callable[[], None]) -> None:
    """Not before the first question can be answered. The server listens meanwhile: /readyz tells the state."""
    await server.has_started.wait()
    if missing := house.missing_index():
        say(f"Not ready yet: {missing}.")
    await house.watched_index.wait_until_searchable()
    ready()


async def _exit_when(stop: asyncio.Event, server: _Server) -> None:
    await stop.wait()
    server.should_exit = True


def _event_on(*signals: signal.Signals) -> asyncio.Event:
    stop = asyncio.Event()
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _serve_by_workers(
    count: int, settings: Settings, listening: socket.socket, ready: str, stop: asyncio.Event
) -> bool:
    """Serves by workers. False if one of the first workers did not start: another try would fail in the same way."""
    with tempfile.TemporaryDirectory(prefix="affidavit-figures-") as folder:
        supervisor = _Supervisor(count, settings, listening, Path(folder))
        keeping = [asyncio.create_task(supervisor.keep()) for _ in range(count)]
        await _first_of(supervisor.is_complete, supervisor.has_lost, stop)
        has_started = supervisor.is_complete.is_set()
        if has_started:
            await _first_of(supervisor.is_searchable, stop)
            if supervisor.is_searchable.is_set():
                print(ready, flush=True)
            spare = supervisor.keep()  # only now, because the others needed all the CPU to start
            keeping.append(asyncio.create_task(spare))
            await stop.wait()
        for task in keeping:
            task.cancel()
        await supervisor.stop()
    return has_started


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


class _Supervisor:
    """Keeps workers: some serve, and a spare one can at once, when one of them dies. Answers itself while none serves."""

    def __init__(self, count: int, settings: Settings, listening: socket.socket, folder: Path) -> None:
        self._count, self._settings, self._listening, self._folder = count, settings, listening, folder
        self._workers: set[Process] = set()
        self._spare: list[Process] = []
        self._serving: dict[Process, int] = {}  # with the number of turned away that it has not recorded yet
        self.is_complete, self.has_lost = asyncio.Event(), asyncio.Event()
        self.is_searchable = asyncio.Event()
        in_all = min(TURNED_AWAY_MAX, descriptors.connections_max(0))
        proxies = TrustedProxies.named(settings.server.trusted_proxies)
        self._stopgap = Stopgap(listening, Occupancy(in_all, proxies))
        self._assign()

    async def keep(self) -> None:
        """One worker after the other, with a backoff. Each has its own, so one crash loop does not delay the other workers."""
        while True:
            process = await self.start()
            code = await worker.wait_for_end(process, HUNG_S, partial(self.hear, process))
            self._forget(process)
            log.error("A worker ended (exit code %s) and is restarted", code)
            await asyncio.sleep(RESTART_S)

    async def start(self) -> Process:
        level = logging.getLogger("engine").level
        process = await asyncio.create_subprocess_exec(
            *worker.command(__name__),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=[self._listening.fileno()],
            env=worker.environment(*FROM_ENVIRONMENT),
        )
        message = pickle.dumps((self._settings, self._listening.fileno(), self._folder, level))
        _tell(process, b"", message)
        self._workers.add(process)
        return process

    def hear(self, process: Process, header: bytes) -> None:
        if header == READY:
            self._spare.append(process)
            self._assign()
            log.info("A worker is ready")
        elif header == SEARCHABLE:
            self.is_searchable.set()
        elif header == RECORDED:
            self._serving[process] = 0

    async def stop(self) -> None:
        """Graceful shutdown of all workers at once. They send no more heartbeats, so a late one is killed."""
        self._stopgap.set_open(is_needed=False)
        self._listening.close()  # whoever waits is left to the workers; when they close it too, nobody waits in vain
        for process in self._workers:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(worker.wait_for_end(process, SHUTDOWN_S) for process in self._workers))

    def _forget(self, process: Process) -> None:
        self.has_lost.set()
        self._workers.discard(process)
        self._stopgap.turned_away += self._serving.pop(process, 0)
        if process in self._spare:
            self._spare.remove(process)
        self._assign()

    def _assign(self) -> None:
        while self._spare and len(self._serving) < self._count:
            process = self._spare.pop(0)
            turned_away, self._stopgap.turned_away = self._stopgap.turned_away, 0
            self._serving[process] = turned_away
            _tell(process, SERVE, str(turned_away).encode())
        if len(self._serving) == self._count:
            self.is_complete.set()
        self._stopgap.set_open(is_needed=not self._serving)


def _tell(process: Process, header: bytes, body: bytes) -> None:
    assert process.stdin
    process.stdin.writelines(worker.frame(header, body))


# In the worker's process


def _run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the supervisor decides
    try:
        has_started = asyncio.run(_serve_as_worker())
    except (AffidavitError, AuditError, OSError, EOFError) as failure:
        sys.exit(f"affidavit: {failure}")
    sys.exit(0 if has_started else FOUND_SOMETHING)


async def _serve_as_worker() -> bool:
    stop = _event_on(signal.SIGTERM)
    loop = asyncio.get_running_loop()
    source, sink = worker.channel(when_parent_ends=lambda: loop.call_soon_threadsafe(stop.set))
    _, message = worker.receive(source, worker.MESSAGE_BYTES_MAX)
    settings, descriptor, folder, level = pickle.loads(message)  # noqa: S301  from the supervisor
    logs.configure(level)
    heartbeats = asyncio.create_task(worker.send_heartbeats(sink, HEARTBEAT_S, stop))
    try:
        with socket.socket(fileno=descriptor) as listening:
            async with wiring.open_database(settings) as database:
                started = partial(_open_when_told, source, sink)
                ready = partial(worker.notify, sink, SEARCHABLE)
                return await _serve_here(settings, database, listening, started, ready, stop, folder)
    finally:
        heartbeats.cancel()


def _open_when_told(source: IO[bytes], sink: IO[bytes], server: _Server, engine: Engine) -> None:
    loop = asyncio.get_running_loop()

    def open_door() -> None:
        loop.remove_reader(source)
        with contextlib.suppress(EOFError):  # the supervisor has ended, which `channel` notices
            _, turned_away = worker.receive(source, worker.NOTICE_BYTES_MAX)
            server.door.open()
            server.recording = loop.create_task(_record_turned_away(int(turned_away), engine, sink))

    loop.add_reader(source, open_door)
    worker.notify(sink, READY)


async def _record_turned_away(count: int, engine: Engine, sink: IO[bytes]) -> None:
    """If that fails, the supervisor still has them, and tells the worker that follows this one."""
    if count:
        await engine.record_turned_away(count)
        worker.notify(sink, RECORDED)


if __name__ == "__main__":
    _run()
