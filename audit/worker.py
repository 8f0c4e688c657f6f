"""Worker processes: length-prefixed messages over pipes, a deadline, a heartbeat, and a lifetime tied to the parent's.

The server, the sandbox that reads files, the index and the archive use one protocol, so that a torn message, a dead peer or
a missed deadline is handled in one place. A message is a header and a body behind the lengths of both, in four bytes each.
A torn or oversized message raises `EOFError`, as the end of the stream does, because nothing after it can be read.
"""

import asyncio
import contextlib
import logging
import os
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from audit.errors import WorkerEndedError

LAST_S = 2.0  # from the end of a worker's output to the end of its process
MESSAGE_BYTES_MAX = 2**33  # from a peer that is trusted: all that the prefix can express
NOTICE_BYTES_MAX = 64  # of a message that is no reply: a heartbeat, or that the worker is ready
NOTICE = b"notice"

# What any process needs. No key and no address of a service: who needs one gets it in a message, or asks for it by name.
_ENVIRONMENT = (
    "PATH", "HOME", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH",
    "OMP_NUM_THREADS",
)  # fmt: skip

_LENGTHS = struct.Struct("!II")

Message = tuple[bytes, bytes]

log = logging.getLogger(__name__)


class Worker:
    """A child process that takes one request at a time."""

    def __init__(
        self, command: Sequence[str], *, reply_bytes_max: int = MESSAGE_BYTES_MAX, **options: Any
    ) -> None:
        self._reply_bytes_max = reply_bytes_max
        options.setdefault("env", environment())
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, **options
        )  # a session of its own: Ctrl-C is the parent's to handle

    def request(
        self,
        header: bytes,
        body: bytes = b"",
        *,
        deadline_s: float,
        hear: Callable[[bytes], object] | None = None,
    ) -> Message:
        """The reply, or `WorkerEndedError`; a worker that has not replied by the deadline is killed.

        With `hear`, a message whose header is `NOTICE` is no reply: `hear` gets its body.
        """
        assert self._process.stdin and self._process.stdout
        with self._deadline(deadline_s):
            send(self._process.stdin, header, body)
            while True:
                found, said = receive(self._process.stdout, self._reply_bytes_max)
                if hear is None or found != NOTICE:
                    return found, said
                hear(said)

    def end(self) -> int:
        """Kills the worker and gives its exit code. A request of another thread then fails."""
        self._process.kill()
        with contextlib.suppress(OSError), self._process:
            pass  # its block closes the pipes and waits for the end
        return self._process.wait()

    @contextlib.contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """A watchdog: kills the process at its deadline, which closes its pipes and so ends a blocked read or write."""
        is_late = threading.Event()

        def kill() -> None:
            is_late.set()
            self._process.kill()

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            yield
        except (OSError, EOFError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LAST_S)  # if it ended by itself, its exit code says why
            raise WorkerEndedError(self.end(), is_late=is_late.is_set()) from None
        except BaseException:
            self.end()  # interrupted: its reply would be taken for that of the next request
            raise
        finally:
            timer.cancel()
            timer.join()


def environment(*more: str) -> dict[str, str]:
    """The environment of a child: what any process needs, and the variables that begin so."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _ENVIRONMENT or (more and name.startswith(more))
    }


async def wait_for_end(
    process: asyncio.subprocess.Process, silence_s: float, hear: Callable[[bytes], object] = lambda _: None
) -> int:
    """The exit code of a worker that sends heartbeats; one that misses them for so long is killed. `hear` gets its notices."""
    assert process.stdout
    try:
        with contextlib.suppress(EOFError):  # it has ended, or is about to
            while True:
                async with asyncio.timeout(silence_s):
                    header, _ = await read(process.stdout, NOTICE_BYTES_MAX)
                hear(header)
        async with asyncio.timeout(silence_s):
            return await process.wait()
    except TimeoutError:
        log.error("A worker sent no heartbeat for %s s and is killed", silence_s)  # noqa: TRY400  not our fault
        process.kill()
        return await process.wait()


# In the worker's process


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours; -P keeps the current folder out of the import path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def channel(when_parent_ends: Callable[[], object] = lambda: os._exit(1)) -> tuple[IO[bytes], IO[bytes]]:
    """The pipes of requests and replies. All other output of the process goes to its standard error.

    The parent keeps the other end of the standard input for as long as it lives. A thread waits until that is closed, so
    that no worker outlives a parent that was killed, whatever the worker is doing.
    """
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    poll = select.poll()
    poll.register(source.fileno(), 0)  # not for data: only for the hang-up, which is always reported

    def wait() -> None:
        poll.poll()
        when_parent_ends()

    threading.Thread(target=wait, daemon=True).start()
    return source, sink


def serve(source: IO[bytes], sink: IO[bytes], answer: Callable[[bytes, bytes], Message]) -> None:
    """Answers one request after another until there are no more."""
    while True:
        try:
            header, body = receive(source, MESSAGE_BYTES_MAX)
        except EOFError:
            return
        send(sink, *answer(header, body))


async def send_heartbeats(sink: IO[bytes], every_s: float, stop: asyncio.Event) -> None:
    """Sends heartbeats from the event loop that works, so that they stop if it hangs. A shutdown has its own timeout."""
    while not stop.is_set():
        notify(sink, b"")
        await asyncio.sleep(every_s)


def notify(sink: IO[bytes], header: bytes) -> None:
    """A message that is no reply. Lost if the parent has ended, which `channel` notices."""
    with contextlib.suppress(BrokenPipeError):
        send(sink, header)


# Framing


def send(stream: IO[bytes], header: bytes, body: bytes = b"") -> None:
    stream.writelines(frame(header, body))
    stream.flush()


def frame(header: bytes, body: bytes = b"") -> tuple[bytes, bytes]:
    return _LENGTHS.pack(len(header), len(body)) + header, body


def receive(stream: IO[bytes], bytes_max: int) -> Message:
    header, body = _lengths(_exactly(stream, _LENGTHS.size), bytes_max)
    return _exactly(stream, header), _exactly(stream, body)


async def read(stream: asyncio.StreamReader, bytes_max: int) -> Message:
    """`receive` for an event loop."""
    header, body = _lengths(await stream.readexactly(_LENGTHS.size), bytes_max)
    return await stream.readexactly(header), await stream.readexactly(body)


def _lengths(prefix: bytes, bytes_max: int) -> tuple[int, int]:
    header, body = _LENGTHS.unpack(prefix)
    if header + body > bytes_max:
        raise EOFError(f"The message has {header + body} bytes, but only {bytes_max} are allowed")
    return header, body


def _exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError("The stream ended in the middle of a message")
    return data
