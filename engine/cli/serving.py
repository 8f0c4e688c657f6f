"""The server, in one process or under a supervisor whose workers share the port and are restarted when they die or hang.

Workers share what is outside of them: the database, the index's worker, the limits if they are in Redis. One more than serve is
kept ready, for the first that dies; while none serves the supervisor answers that they are not ready. Each shuts down gracefully
on SIGTERM, and when the supervisor has died. The last process that uses the embedded database stops it.
"""

import asyncio
import contextlib
import gc
import logging
import pickle
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from engine.connections import descriptors, event_loop, listening
from engine.connections.door import Door
from engine.connections.listening import Port
from engine.connections.occupancy import Occupancy
from engine.connections.protocol import PatientProtocol
from engine.connections.turned_away import Stopgap
from engine.errors import AffidavitError, AuditUnavailableError
from engine.house import House
from engine.http.app import create_app
from engine.http.metrics import Figures
from engine.settings import Settings
from engine.storage.database import Database
from engine.terminal import hangup
from engine.wiring import FROM_ENVIRONMENT, Reloading

STOP_S = 6  # a question takes five seconds at most; a client that has not read its answer by then is cut off
LAST_ROWS_S = 1.0  # for the requests that are cut off then: their rows take half a second
IDLE_LOOK_S = 0.05
LINGER_S = 0.5  # at the end, for requests that are on their way over connections that are open
RECORD_PAUSE_S, RECORD_PAUSE_MAX_S = (
    1.0,
    30.0,
)  # between two tries to record the requests that were turned away
RESTART_S = 1.0  # the backoff before a worker is restarted: the cause of its death may last
HEARTBEAT_S = 1.0
TURNED_AWAY_MAX = 256  # connections that the supervisor answers at once while no worker is ready
HUNG_S = 30.0  # a worker without a heartbeat for so long missed every deadline: it is killed and restarted
SHUTDOWN_S = 25.0  # for a graceful shutdown: idle connections, requests, their rows, a last seal

# Between the supervisor and a worker
READY = b"ready"  # it can serve, and waits until it is told to
SERVE = b"serve"  # with the number of requests that the supervisor has turned away
RELOAD = b"reload"  # with the settings
RECORDED = b"recorded"  # the row that counts them is written
SEARCHABLE = b"searchable"  # the first question to it can be answered

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingRun:
    """One run of the server: what it serves with and where, and how it is told to stop."""

    settings: Settings
    listening: socket.socket
    port: Port
    asked_to_stop: asyncio.Event
    stop: asyncio.Event  # no connection is lost from here on
    load: Callable[[], Settings] | None = None  # reads the settings again

    def reloads(self, take_over: Callable[[Settings], None], count: Callable[[str], None]) -> None:
        """From now on SIGHUP does, if this run has settings that can be read again."""
        again = Reloading(self.settings, self.load, take_over, count).reload if self.load else None
        hangup.obey(self.asked_to_stop.set, again)


async def serve(
    settings: Settings,
    database: Database,
    listening: socket.socket,
    say_ready: Callable[[], None],
    workers: int = 1,
    *,
    port: Port = Port.OWN,
    load: Callable[[], Settings] | None = None,
) -> int:
    """Runs until SIGINT or SIGTERM, then shuts down gracefully: requests in flight finish or are recorded as cut off."""
    await _warn(settings, database)
    run = ServingRun(
        settings, listening, port, _event_on(signal.SIGINT, signal.SIGTERM), asyncio.Event(), load
    )
    hangup.obey(run.asked_to_stop.set, (lambda: None) if load else None)  # there is nothing to reload yet
    leaving = asyncio.create_task(_leave_when_asked(run))
    if workers == 1:
        has_started = await _serve_here(run, database, partial(_open_at_once, run), say_ready)
    else:
        has_started = await _serve_by_workers(workers, run, say_ready)
    leaving.cancel()
    say("Stopped.")
    return 0 if has_started else FOUND_SOMETHING


async def _warn(settings: Settings, database: Database) -> None:
    async with wiring.open_registry(database) as registry:
        books = await registry.books()
        for book in books:
            for warning in book.warnings:
                say(f"WARNING: {book.book_id}: {warning}")
    default = settings.books.default
    if not any(book.book_id == default and book.generation for book in books):
        say(f"WARNING: the default book {default} is not published: affidavit ingest PATH --book {default}")
    for warning in await wiring.warnings_at_start(settings, database):
        say(f"WARNING: {warning}.")


async def _leave_when_asked(run: ServingRun) -> None:
    await run.asked_to_stop.wait()
    await listening.leave(run.listening, run.port)
    run.stop.set()


def _open_at_once(run: ServingRun, serving: "_Serving") -> None:
    serving.server.door.open()
    run.reloads(serving.take_over, serving.count_reload)


async def _serve_here(
    run: ServingRun, database: Database, started: Callable[["_Serving"], None], ready: Callable[[], None],
    metrics_folder: Path | None = None,
) -> bool:  # fmt: skip
    """Serves in this process, once `started` opens the door. False if the server did not start."""
    settings = run.settings
    async with (
        wiring.open_house(settings, database) as house,
        wiring.heartbeat_of(house.engine.ledger).beating(),
        house.eraser.finishing(house.pool, partial(house.operator_events.event, "audit erase")),
    ):
        app = create_app(lambda: contextlib.nullcontext(house), metrics_folder)
        config = uvicorn.Config(
            app, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=STOP_S,
            proxy_headers=False,  # they would be believed from this machine: see admission/proxies.py
        )  # fmt: skip
        server = _Server(config, run, house.proxies)
        serving = _Serving(server, house)
        server.started_with = partial(_start, run, serving, started)
        stopping = asyncio.create_task(_exit_when(run.stop, server))
        saying_ready = asyncio.create_task(_say_when_ready(run, serving, started, ready))
        await server.serve(sockets=[])
        stopping.cancel()
        saying_ready.cancel()
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=LAST_ROWS_S)
    return server.started


@dataclass(slots=True)
class _Serving:
    """What serves in this process."""

    server: "_Server"
    house: House

    def take_over(self, settings: Settings) -> None:
        """Whole, between two requests: each keeps the house that it began with."""
        self.house = wiring.reloaded(self.house, settings)
        self.server.lifespan.state["house"] = self.house
        self.server.occupancy.proxies = self.house.proxies
        logs.set_level(settings.server.log_level)

    def count_reload(self, outcome: str) -> None:
        self.server.lifespan.state["metrics"].figures.count_reload(outcome)


def _start(run: ServingRun, serving: _Serving, started: Callable[[_Serving], None]) -> None:
    """Where other servers have the port, it is left to them until questions can be answered here too."""
    if run.port is not Port.REUSED:
        started(serving)


class _Server(uvicorn.Server):
    """Calls `started_with` after its start, and leaves signals to `serve`, which stops the database after the last request.

    It is given no sockets: its door accepts connections, once it is opened.
    """

    started_with: Callable[[], None]
    door: Door
    occupancy: Occupancy
    obeying: asyncio.Task[None]
    recording: asyncio.Task[None]

    def __init__(self, config: uvicorn.Config, run: ServingRun, proxies: TrustedProxies) -> None:
        super().__init__(config)
        self._run, self._proxies = run, proxies
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # objects that live as long as the process: a full collection of them would block the loop for 30 ms
        in_all = descriptors.connections_max(self._run.settings.database.connections_max)
        self.occupancy = Occupancy(in_all, self._proxies)
        visitor = partial(
            PatientProtocol, self.config, self.server_state, self.lifespan.state, self.occupancy
        )
        self.door = Door(self._run.listening, self.occupancy, visitor)
        self.started_with()
        if self.started:
            self.has_started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Whoever is connected gets one more answer: a client cannot know that it should not have asked."""
        self.occupancy.is_ending = True
        self.door.close()
        for connection in list(self.server_state.connections):
            assert isinstance(connection, PatientProtocol)
            connection.note_progress()
        await asyncio.sleep(LINGER_S)
        if self._run.port is not Port.OWN:
            await self._wait_for_idle()
        await super().shutdown(sockets)

    async def _wait_for_idle(self) -> None:
        """Idle connections end as on any other day, by their timeout: a client that asks again first is told to close."""
        until = time.monotonic() + self.config.timeout_keep_alive
        while self.server_state.connections and time.monotonic() < until:  # noqa: ASYNC110  the set is uvicorn's
            await asyncio.sleep(IDLE_LOOK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _say_when_ready(
    run: ServingRun, serving: _Serving, started: Callable[[_Serving], None], ready: Callable[[], None]
) -> None:
    """Not before the first question can be answered. The server listens meanwhile: /readyz tells the state."""
    await serving.server.has_started.wait()
    if missing := serving.house.missing_index():
        say(f"Not ready yet: {missing}.")
    await serving.house.watched_index.wait_until_searchable()
    if run.port is Port.REUSED and not serving.server.should_exit:
        started(serving)
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
    count: int,
    run: ServingRun,
    say_ready: Callable[[], None],
) -> bool:
    """Serves by workers. False if one of the first workers did not start: another try would fail in the same way."""
    with tempfile.TemporaryDirectory(prefix="affidavit-figures-") as folder:
        supervisor, stop = _Supervisor(count, run, Path(folder)), run.stop
        run.reloads(supervisor.take_over, supervisor.count_reload)
        keeping = [asyncio.create_task(supervisor.keep()) for _ in range(count)]
        await _first_of(supervisor.is_complete, supervisor.has_lost, stop)
        has_started = supervisor.is_complete.is_set()
        if has_started:
            await _first_of(supervisor.is_searchable, stop)
            if supervisor.is_searchable.is_set():
                say_ready()
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

    def __init__(self, count: int, run: ServingRun, folder: Path) -> None:
        self._count, self._run, self._folder = count, run, folder
        self._settings, self._figures = run.settings, Figures()
        self._workers: dict[Process, Settings] = {}  # with those that it was started with
        self._spare: list[Process] = []
        self._serving: dict[Process, int] = {}  # with the number of turned away that it has not recorded yet
        self.is_complete, self.has_lost = asyncio.Event(), asyncio.Event()
        self.is_searchable = asyncio.Event()
        in_all = min(TURNED_AWAY_MAX, descriptors.connections_max(0))
        self._occupancy = Occupancy(in_all, TrustedProxies.named(run.settings.server.trusted_proxies))
        self._stopgap = Stopgap(run.listening, self._occupancy)
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
        descriptor, level = self._run.listening.fileno(), logging.getLogger("engine").level
        settings = self._settings
        process = await asyncio.create_subprocess_exec(
            *worker.command(__name__),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=[descriptor],
            env=worker.environment(*FROM_ENVIRONMENT),
        )
        _tell(process, b"", pickle.dumps((settings, descriptor, self._run.port, self._folder, level)))
        self._workers[process] = settings
        return process

    def hear(self, process: Process, header: bytes) -> None:
        if header == READY:
            if self._workers[process] is not self._settings:  # they have changed while it started
                _tell(process, RELOAD, pickle.dumps(self._settings))
            self._spare.append(process)
            self._assign()
            log.info("A worker is ready")
        elif header == SEARCHABLE:
            self.is_searchable.set()
        elif header == RECORDED:
            self._serving[process] = 0

    def take_over(self, settings: Settings) -> None:
        """For the workers too, of which those that are still starting hear of it when they are ready."""
        self._settings = settings
        self._occupancy.proxies = TrustedProxies.named(settings.server.trusted_proxies)
        logs.set_level(settings.server.log_level)
        for process in (*self._serving, *self._spare):
            _tell(process, RELOAD, pickle.dumps(settings))

    def count_reload(self, outcome: str) -> None:
        """Beside the workers' figures, which add it to their own."""
        self._figures.count_reload(outcome)
        self._figures.write(self._folder / "supervisor.json")

    async def stop(self) -> None:
        """Graceful shutdown of all workers at once. They send no more heartbeats, so a late one is killed."""
        self._stopgap.set_open(is_needed=False)
        self._run.listening.close()  # whoever waits is left to the workers; when they close it too, nobody waits in vain
        for process in self._workers:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(worker.wait_for_end(process, SHUTDOWN_S) for process in self._workers))

    def _forget(self, process: Process) -> None:
        self.has_lost.set()
        self._workers.pop(process, None)
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
        is_left_to_others = self._run.port is Port.REUSED and not self.is_complete.is_set()
        self._stopgap.set_open(is_needed=not self._serving and not is_left_to_others)


def _tell(process: Process, header: bytes, body: bytes) -> None:
    assert process.stdin
    process.stdin.writelines(worker.frame(header, body))


# In the worker's process


def _run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the supervisor decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # so does the end of a terminal
    try:
        with asyncio.Runner(loop_factory=event_loop.of_server) as runner:
            has_started = runner.run(_serve_as_worker())
    except (AffidavitError, AuditError, OSError, EOFError) as failure:
        sys.exit(f"affidavit: {failure}")
    sys.exit(0 if has_started else FOUND_SOMETHING)


async def _serve_as_worker() -> bool:
    stop = _event_on(signal.SIGTERM)
    loop = asyncio.get_running_loop()
    source, sink = worker.channel(when_parent_ends=lambda: loop.call_soon_threadsafe(stop.set))
    _, message = worker.receive(source, worker.MESSAGE_BYTES_MAX)
    settings, descriptor, port, folder, level = pickle.loads(message)  # noqa: S301  from the supervisor
    logs.configure(level)
    heartbeats = asyncio.create_task(worker.send_heartbeats(sink, HEARTBEAT_S, stop))
    try:
        with socket.socket(fileno=descriptor) as listening:
            async with wiring.open_database(settings) as database:
                run = ServingRun(settings, listening, port, stop, stop)
                started = partial(_open_when_told, source, sink)
                ready = partial(worker.notify, sink, SEARCHABLE)
                return await _serve_here(run, database, started, ready, folder)
    finally:
        heartbeats.cancel()


def _open_when_told(source: IO[bytes], sink: IO[bytes], serving: _Serving) -> None:
    serving.server.obeying = asyncio.create_task(_obey(source, sink, serving))
    worker.notify(sink, READY)


async def _obey(source: IO[bytes], sink: IO[bytes], serving: _Serving) -> None:
    """What the supervisor says after the start. Nothing of it has been read ahead: it says nothing until it hears READY."""
    loop, stream = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), source)
    with contextlib.suppress(EOFError):  # the supervisor has ended, which `channel` notices
        while True:
            header, body = await worker.read(stream, worker.MESSAGE_BYTES_MAX)
            if header == RELOAD:
                serving.take_over(pickle.loads(body))  # noqa: S301  from the supervisor
            elif header == SERVE:
                serving.server.door.open()
                recording = _record_turned_away(int(body), serving.house.engine, sink)
                serving.server.recording = asyncio.create_task(recording)


async def _record_turned_away(count: int, engine: Engine, sink: IO[bytes]) -> None:
    """Until it succeeds. If this process dies before, the supervisor still has them, and tells the worker that follows."""
    pause_s = RECORD_PAUSE_S
    while count:
        try:
            await engine.record_turned_away(count)
        except AuditUnavailableError as failure:
            if failure.query_id:  # its record is open, and becomes the row
                break
            log.warning(
                "The row of %s requests that were turned away could not be written; it is tried again", count
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RECORD_PAUSE_MAX_S)
        else:
            break
    if count:
        worker.notify(sink, RECORDED)


if __name__ == "__main__":
    _run()
