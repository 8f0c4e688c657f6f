"""Worker processes: whatever breaks on one side, the other side notices and ends."""

import asyncio
import io
import signal
import subprocess
import sys
import textwrap
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from audit.errors import WorkerEndedError
from audit.worker import MESSAGE_BYTES_MAX, Worker, frame, read, receive, send, wait_for_end

SOON_S = 30.0  # far more than anything here takes
TORN = [b"", b"\0\0", frame(b"head", b"body")[0], b"".join(frame(b"head", b"body"))[:-1]]


def program(answer: str) -> list[str]:
    """A worker whose answer to `header, body` is this code; `count` counts its requests."""
    return [
        sys.executable,
        "-c",
        textwrap.dedent("""
        import os, signal, sys, time
        from audit import worker
        count = 0
        def answer(header, body):
            global count
            count += 1
            return eval(sys.argv[1])
        worker.serve(*worker.channel(), answer)
        """),
        answer,
    ]


def is_alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- Framing


@pytest.mark.parametrize("body", [b"", b"\0", b"x" * 300_000])
async def test_a_message_is_read_as_it_was_sent(body: bytes) -> None:
    stream = io.BytesIO()
    send(stream, b"head", body)
    send(stream, b"")
    stream.seek(0)
    assert receive(stream, MESSAGE_BYTES_MAX) == (b"head", body)
    assert receive(stream, 0) == (b"", b"")
    assert await read(fed(stream.getvalue()), MESSAGE_BYTES_MAX) == (b"head", body)


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


# Seen red with `read` in place of `_exactly`.
@pytest.mark.parametrize("data", TORN, ids=["nothing", "half a prefix", "no body", "half a body"])
async def test_a_torn_message_ends_the_stream(data: bytes) -> None:
    with pytest.raises(EOFError):
        receive(io.BytesIO(data), MESSAGE_BYTES_MAX)
    with pytest.raises(EOFError):
        await read(fed(data), MESSAGE_BYTES_MAX)


# Seen red with the header left out of the sum.
async def test_an_oversized_message_is_not_read() -> None:
    data = b"".join(frame(b"x" * 6, b"y" * 5))
    assert receive(io.BytesIO(data), 11) == (b"x" * 6, b"y" * 5)
    with pytest.raises(EOFError, match="11 bytes, but only 10 are allowed"):
        receive(io.BytesIO(data), 10)
    with pytest.raises(EOFError):
        await read(fed(data), 10)


# --- Requests


def test_requests_are_answered_by_one_process_one_after_another() -> None:
    worker = Worker(program("b'%d' % count, header + body"))
    assert worker.request(b"a", b"b", deadline_s=SOON_S) == (b"1", b"ab")
    assert worker.request(b"c", deadline_s=SOON_S) == (b"2", b"c")
    assert worker.end() == -signal.SIGKILL
    assert worker.end() == -signal.SIGKILL


# Seen red with the standard output left as it is.
def test_what_a_worker_prints_is_no_reply() -> None:
    worker = Worker(program("(print('x' * 9999, flush=True) or b'', os.write(1, b'y') and b'')"))
    assert worker.request(b"", deadline_s=SOON_S) == (b"", b"")
    worker.end()


@pytest.mark.parametrize(
    ("answer", "exit_code"), [("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV)]
)
def test_a_worker_that_dies_is_reported_with_its_exit_code(answer: str, exit_code: int) -> None:
    with pytest.raises(WorkerEndedError) as ended:
        Worker(program(answer)).request(b"", deadline_s=SOON_S)
    assert (ended.value.exit_code, ended.value.is_late) == (exit_code, False)


def test_a_worker_that_died_between_two_requests_is_reported() -> None:
    worker = Worker(program("header, body"))
    worker.request(b"", deadline_s=SOON_S)
    worker._process.kill()
    with pytest.raises(WorkerEndedError):
        worker.request(b"", b"x" * 1_000_000, deadline_s=SOON_S)


def test_a_reply_beyond_the_limit_ends_the_worker() -> None:
    worker = Worker(program("header, b'x' * 100"), reply_bytes_max=99)
    with pytest.raises(WorkerEndedError) as ended:
        worker.request(b"", deadline_s=SOON_S)
    assert not ended.value.is_late
    assert not is_alive(worker._process.pid)


# Seen red without the timer: neither a reply nor the end of the request was ever read.
@pytest.mark.parametrize("body", [b"", b"x" * 1_000_000], ids=["computing", "not reading"])
def test_a_worker_that_misses_its_deadline_is_killed(body: bytes) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"] if body else program("time.sleep(600)")
    worker, started = Worker(command), time.monotonic()
    with pytest.raises(WorkerEndedError) as ended:
        worker.request(b"", body, deadline_s=0.5)
    assert ended.value.is_late
    assert time.monotonic() - started < SOON_S
    assert not is_alive(worker._process.pid)


def test_an_interrupted_request_ends_the_worker() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    worker = Worker(program("time.sleep(600)"))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            worker.request(b"", deadline_s=SOON_S)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not is_alive(worker._process.pid)


# --- Lifetime


# Seen red without the thread that waits for the hang-up: the busy worker went on.
@pytest.mark.parametrize("answer", ["(header, body)", "time.sleep(600)"], ids=["idle", "busy"])
def test_a_worker_ends_with_its_parent(answer: str) -> None:
    parent = textwrap.dedent(f"""
        import os, threading, time
        from audit.worker import Worker
        worker = Worker({program(answer)!r})
        threading.Thread(target=lambda: worker.request(b"", deadline_s=600), daemon=True).start()
        time.sleep(1)
        print(worker._process.pid, flush=True)
        os.kill(os.getpid(), 9)
    """)
    ended = subprocess.run([sys.executable, "-c", parent], stdout=PIPE, text=True, check=False)
    until = time.monotonic() + SOON_S
    while is_alive(int(ended.stdout)):
        assert time.monotonic() < until
        time.sleep(0.05)


# --- Heartbeat


async def beating(then: str) -> Process:
    """A worker that sends heartbeats while its event loop does `then`."""
    code = textwrap.dedent(f"""
        import asyncio, os, time
        from audit import worker
        async def main():
            _, sink = worker.channel()
            beating = asyncio.create_task(worker.send_heartbeats(sink, 0.1, asyncio.Event()))
            worker.notify(sink, b"ready")
            {then}
        asyncio.run(main())
    """)
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, stdout=PIPE)


async def test_a_worker_that_sends_heartbeats_is_waited_for() -> None:
    assert await wait_for_end(await beating("await asyncio.sleep(3)"), 2.5) == 0


# Seen red without the timeout.
async def test_a_worker_that_misses_its_heartbeats_is_killed() -> None:
    process = await beating("await asyncio.sleep(0.3); time.sleep(600)")
    async with asyncio.timeout(SOON_S):
        assert await wait_for_end(process, 2.5) == -signal.SIGKILL


# Seen red with `await process.wait()` alone after the end of the output.
async def test_a_worker_that_closes_its_output_and_does_not_end_is_killed() -> None:
    process = await beating("os.close(sink.fileno()); time.sleep(600)")
    async with asyncio.timeout(SOON_S):
        assert await wait_for_end(process, 2.5) == -signal.SIGKILL
