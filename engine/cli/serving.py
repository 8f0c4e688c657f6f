"""The server, in one process or under a supervisor whose workers share the port and are restarted when they die or hang.

Workers share what is outside of them: the database, the index's worker, the limits if they are in Redis. Each shuts down
gracefully on SIGTERM, and when the supervisor has died. The last process that uses the embedded database stops it.
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
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from audit import worker
from audit.errors import AuditError
from engine import logs, wiring
from engine.cli.output import FOUND_SOMETHING, say
from engine.errors import AffidavitError
from engine.house import House
from engine.http.app import create_app
from engine.http.middleware import MALFORMED_BODY, MALFORMED_HEAD
from engine.settings import Settings
from engine.storage.database import Database

STOP_S = 6  # a question takes five seconds at most; a client that has not read its answer by then is cut off
LAST_ROWS_S = 1.0  # for the requests that are cut off then: their rows take half a second
UNREAD_S = 30  # as long as engine/http/stream.py waits for a reader
ARRIVE_S = 10.0  # the timeout for a request to arrive completely; the engine itself gives up earlier
CODING = b"transfer-encoding"
FRAMING = frozenset({b"content-length", CODING})  # the headers that tell where a request ends
HEAD_BYTES_MAX = 16 * 1024  # a key, a request id and the headers that proxies add take less than 2 KiB
RESTART_S = 1.0  # the backoff before a worker is restarted: the cause of its death may last
HEARTBEAT_S = 1.0
HUNG_S = 30.0  # a worker without a heartbeat for so long missed every deadline: it is killed and restarted
SHUTDOWN_S = 20.0  # for a graceful shutdown: requests, their rows, a last seal

READY = b"ready"

log = logging.getLogger(__name__)


async def serve(
    settings: Settings, database: Database, listening: socket.socket, ready: str, workers: int = 1
) -> int:
    """Runs until SIGINT or SIGTERM, then shuts down gracefully: requests in flight finish or are recorded as cut off."""
    async with wiring.open_registry(database) as registry:
        for book in await registry.books():
            for warning in book.warnings:
                say(f"WARNING: {book.book_id}: {warning}")
    stop = _event_on(signal.SIGINT, signal.SIGTERM)
    if workers == 1:
        has_started = await _serve_here(settings, database, listening, lambda: print(ready, flush=True), stop)
    else:
        has_started = await _serve_by_workers(workers, settings, listening, ready, stop)
    say("Stopped.")
    return 0 if has_started else FOUND_SOMETHING


def listen(host: str, port: int) -> socket.socket:
    """Binds the port before anything else starts, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as failure:
        reason = os.strerror(failure.errno or 0)
        raise OSError(f"Port {port} cannot be used ({reason}). Use another one: --port {port + 1}") from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait 40 ms for an ACK
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else a client that stops reading keeps its connection for ever
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
    return listening


async def _serve_here(
    settings: Settings, database: Database, listening: socket.socket, ready: Callable[[], None], stop: asyncio.Event,
    metrics_folder: Path | None = None,
) -> bool:  # fmt: skip
    """Serves in this process. False if the server did not start."""
    async with wiring.open_house(settings, database) as house:
        app = create_app(lambda: contextlib.nullcontext(house), metrics_folder)
        server = _Server(
            uvicorn.Config(
                app, http=ReadTimeoutProtocol, ws="none", lifespan="on", log_config=None, access_log=False,
                server_header=False, timeout_graceful_shutdown=STOP_S,
                proxy_headers=False,  # they would be believed from this machine: see admission/proxies.py
            )
        )  # fmt: skip
        stopping = asyncio.create_task(_exit_when(stop, server))
        saying_ready = asyncio.create_task(_say_when_ready(server, house, ready))
        await server.serve(sockets=[listening])
        stopping.cancel()
        saying_ready.cancel()
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=LAST_ROWS_S)
    return server.started


class UnambiguousConnection(h11.Connection):
    """Refuses a request whose end two readers could see in two places (RFC 9112, 6.1): the rest would be a second request.

    And another major version of HTTP, which h11 reads as 1.1.
    """

    is_head = False

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            framing = {name for name, _ in event.headers} & FRAMING
            is_misread = event.http_version < b"1.1" and CODING in framing  # such a version knows no coding
            if framing == FRAMING or is_misread or event.http_version >= b"2":
                self.is_head = event.method == b"HEAD"
                raise h11.RemoteProtocolError("ambiguous framing, or another version of HTTP")
        return event


class ReadTimeoutProtocol(H11Protocol):
    """HTTP/1.1 with a read timeout: a request sent byte by byte holds its connection for ten seconds, not for ever.

    A malformed request passes through the application, because every response has a row. Nothing is read after it.
    """

    _deadline: asyncio.TimerHandle | None = None
    _is_malformed = False
    conn: UnambiguousConnection

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = UnambiguousConnection(h11.SERVER, HEAD_BYTES_MAX)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if not self._is_malformed:
            super().data_received(data)
            self._set_timer()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  uvicorn calls it for each malformed request
        self._is_malformed = True
        is_running = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # as in uvicorn
        if is_running:
            self.cycle.scope["state"][MALFORMED_BODY] = True
            self.headers.append(CLOSE_HEADER)  # then the response has it too
            self.cycle.keep_alive = False
            self.cycle.message_event.set()
        elif self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._run_malformed()
        else:  # its response is sent already
            self.transport.close()

    def _run_malformed(self) -> None:
        self.scope = {
            "type": "http", "asgi": {"version": self.asgi_version, "spec_version": "2.3"}, "http_version": "1.1",
            "server": self.server, "client": self.client, "scheme": self.scheme or "http",
            "method": "HEAD" if self.conn.is_head else "GET", "root_path": "", "path": "", "raw_path": b"",
            "query_string": b"", "headers": [CLOSE_HEADER], "state": self.app_state | {MALFORMED_HEAD: True},
        }  # fmt: skip
        self.cycle = RequestResponseCycle(
            scope=self.scope, conn=self.conn, transport=self.transport, flow=self.flow, logger=self.logger,
            access_logger=self.access_logger, access_log=self.access_log,
            default_headers=self.server_state.default_headers, message_event=asyncio.Event(),
            on_response=self.on_response_complete,
        )  # fmt: skip
        self.cycle.keep_alive = False
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _set_timer(self) -> None:
        """Limits only a request that is arriving: between two requests uvicorn's own timeout for idle connections applies."""
        is_begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        if not is_begun:
            self._stop_timer()
        elif self._deadline is None:
            self._start_timer()

    def _start_timer(self) -> None:
        self._deadline = self.loop.call_later(ARRIVE_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals to `serve`, which stops the database after the last request."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # objects that live as long as the process: a full collection of them would block the loop for 30 ms
        if self.started:
            self.is_listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _say_when_ready(server: _Server, house: House, ready: Callable[[], None]) -> None:
    """Not before the first question can be answered. The server listens meanwhile: /readyz tells the state."""
    await server.is_listening.wait()
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
        supervisor = _Supervisor(settings, listening, Path(folder))
        workers = [await supervisor.start() for _ in range(count)]
        starting = asyncio.gather(*map(_wait_until_ready, workers))
        stopping = asyncio.create_task(stop.wait())
        tasks: list[asyncio.Future[Any]] = [starting, stopping]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        has_started = starting.done() and all(starting.result())
        if has_started:
            print(ready, flush=True)
            tasks += [asyncio.create_task(supervisor.restart(process)) for process in workers]
            await stopping
        for task in tasks:
            task.cancel()
        await supervisor.stop()
    return has_started


class _Supervisor:
    """Starts workers, restarts them when they end, and stops them together."""

    def __init__(self, settings: Settings, listening: socket.socket, folder: Path) -> None:
        self._settings, self._listening, self._folder = settings, listening, folder
        self._workers: set[Process] = set()

    async def start(self) -> Process:
        level = logging.getLogger("engine").level
        process = await asyncio.create_subprocess_exec(
            *worker.command(__name__), stdin=PIPE, stdout=PIPE, pass_fds=[self._listening.fileno()]
        )
        assert process.stdin
        message = pickle.dumps((self._settings, self._listening.fileno(), self._folder, level))
        process.stdin.writelines(worker.frame(b"", message))
        self._workers.add(process)
        return process

    async def restart(self, process: Process) -> None:
        """Restarts a worker after a backoff. Each has its own, so one crash loop does not delay the other workers."""
        while True:
            code = await worker.wait_for_end(process, HUNG_S)
            self._workers.discard(process)
            log.error("A worker ended (exit code %s) and is restarted", code)
            await asyncio.sleep(RESTART_S)
            process = await self.start()

    async def stop(self) -> None:
        """Graceful shutdown of all workers at once. They send no more heartbeats, so a late one is killed."""
        for process in self._workers:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(worker.wait_for_end(process, SHUTDOWN_S) for process in self._workers))


async def _wait_until_ready(process: Process) -> bool:
    """Waits until the worker reports that it is ready; false if it ends before, or misses its heartbeats."""
    assert process.stdout
    with contextlib.suppress(EOFError, TimeoutError):
        while True:
            async with asyncio.timeout(HUNG_S):
                header, _ = await worker.read(process.stdout, worker.NOTICE_BYTES_MAX)
            if header == READY:
                return True
    return False


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
                ready = partial(worker.notify, sink, READY)
                return await _serve_here(settings, database, listening, ready, stop, folder)
    finally:
        heartbeats.cancel()


if __name__ == "__main__":
    _run()
