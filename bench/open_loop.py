"""An open-loop load generator over plain sockets: requests arrive at random moments, however long the answers take.

Run as `python -m bench.open_loop`: a `Job` as JSON on stdin, the results (`Seen`) as JSON on stdout. Latencies count from the
moment at which a request is due, so a generator that is late blames itself; `late_ms` says how late it was.
"""

import asyncio
import json
import random
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

SEED = 22
STEP_S = 0.002  # between two looks at what is due
WAIT_S = 8.0  # for the last responses


@dataclass(frozen=True, slots=True)
class Client:
    """One key, the address that it asks from, and how often it asks."""

    name: str
    address: str
    requests: list[str]
    a_second: float


@dataclass(frozen=True, slots=True)
class Job:
    port: int
    clients: list[Client]
    seconds: float


@dataclass
class Seen:
    """Latencies by client and status; status 0 is a connection that broke."""

    latencies_ms: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    retry_after_s: list[int] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    unanswered: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0


def main() -> None:
    asked = json.load(sys.stdin)
    job = Job(asked["port"], [Client(**client) for client in asked["clients"]], asked["seconds"])
    print(json.dumps(vars(asyncio.run(run(job)))))


async def run(job: Job) -> Seen:
    seen = Seen()
    started, cpu_s = time.monotonic(), time.process_time()
    callers = [_Caller(job.port, client, seen) for client in job.clients]
    due = deque(_arrivals(job))
    while due:
        now = time.monotonic() - started
        while due and due[0][0] <= now:
            at, number = due.popleft()
            seen.late_ms.append((now - at) * 1000)
            callers[number].ask(started + at)
        await asyncio.sleep(STEP_S)
    seen.seconds = time.monotonic() - started
    until = time.monotonic() + WAIT_S
    while any(caller.busy for caller in callers) and time.monotonic() < until:  # noqa: ASYNC110  a load generator
        await asyncio.sleep(STEP_S)
    seen.unanswered = sum(caller.busy for caller in callers)
    seen.cpu_s = time.process_time() - cpu_s
    return seen


def _arrivals(job: Job) -> list[tuple[float, int]]:
    """When which client asks: a Poisson process for each."""
    chance = random.Random(SEED)
    return sorted(
        (at, number)
        for number, client in enumerate(job.clients)
        for at in _moments(chance, client, job.seconds)
    )


def _moments(chance: random.Random, client: Client, seconds: float) -> Iterator[float]:
    at = chance.expovariate(client.a_second)
    while at < seconds:
        yield at
        at += chance.expovariate(client.a_second)


class _Caller:
    """The connections of one client. A request that finds none at rest opens another."""

    def __init__(self, port: int, client: Client, seen: Seen) -> None:
        self._port, self._client = port, client
        self._requests = [request.encode() for request in client.requests]
        self.latencies_ms, self.retry_after_s = seen.latencies_ms[client.name], seen.retry_after_s
        self.resting: list[_Connection] = []
        self.busy = self._asked = 0
        self._opening: set[asyncio.Task[None]] = set()

    def ask(self, due_at: float) -> None:
        self.busy += 1
        self._asked += 1
        request = self._requests[self._asked % len(self._requests)]
        if self.resting:
            self.resting.pop().ask(request, due_at)
            return
        task = asyncio.create_task(self._ask_on_a_new_one(request, due_at))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _ask_on_a_new_one(self, request: bytes, due_at: float) -> None:
        loop, local = asyncio.get_running_loop(), (self._client.address, 0)
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self), "127.0.0.1", self._port, local_addr=local
            )
        except OSError:
            self.note(0, due_at)
        else:
            connection.ask(request, due_at)

    def note(self, status: int, due_at: float) -> None:
        self.busy -= 1
        self.latencies_ms[str(status)].append((time.monotonic() - due_at) * 1000)


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, caller: _Caller) -> None:
        self._caller = caller
        self._held = b""
        self._due_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes, due_at: float) -> None:
        self._due_at = due_at
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        head = self._held[: max(end, 0)].lower()
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        if end < 0 or len(self._held) < end + 4 + int(length) or self._due_at is None:
            return
        self._held = b""
        if again := head.partition(b"retry-after:")[2].partition(b"\r\n")[0]:
            self._caller.retry_after_s.append(int(again))
        self._end(int(head[9:12]))
        if not self._transport.is_closing():
            self._caller.resting.append(self)

    def connection_lost(self, _: Exception | None) -> None:
        if self in self._caller.resting:
            self._caller.resting.remove(self)
        if self._due_at is not None:
            self._end(0)

    def _end(self, status: int) -> None:
        assert self._due_at is not None
        self._caller.note(status, self._due_at)
        self._due_at = None


if __name__ == "__main__":
    main()
