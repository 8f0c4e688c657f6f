"""A load generator over plain sockets, for bench/engine.py: it uses hardly any CPU itself.

Run as `python -m bench.client`: a `Job` as JSON on stdin, the results (`Seen`) as JSON on stdout.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

FIRST_EVENT = b"event: sentence"


@dataclass(frozen=True, slots=True)
class Job:
    """The requests in order, as bytes on the wire, and the number of concurrent ones."""

    port: int
    requests: list[str]
    at_once: int
    seconds: float


@dataclass(slots=True)
class Seen:
    """The results of all requests."""

    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    first_sentences: list[float] = field(default_factory=list)  # on the clock that all processes share
    failed: int = 0
    cpu_s: float = 0.0  # CPU time of the client


async def main() -> None:
    print(json.dumps(asdict(await run(Job(**json.load(sys.stdin))))))


async def run(job: Job) -> Seen:
    """Closed loop: each connection sends its next request when it has its response."""
    seen = Seen()
    turns = itertools.cycle([request.encode() for request in job.requests])
    started, cpu_s = time.monotonic(), time.process_time()
    await asyncio.gather(*(_ask(job.port, turns, started + job.seconds, seen) for _ in range(job.at_once)))
    seen.seconds, seen.cpu_s = time.monotonic() - started, time.process_time() - cpu_s
    return seen


async def _ask(port: int, turns: Iterator[bytes], until: float, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (sent := time.monotonic()) < until:
        writer.write(next(turns))
        is_answered = await _reply(reader, seen)
        seen.latencies_ms.append((time.monotonic() - sent) * 1000)
        seen.failed += not is_answered
    writer.close()


async def _reply(reader: asyncio.StreamReader, seen: Seen) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, length = head.partition(b"content-length:")
    if length:
        await reader.readexactly(int(length.split(b"\r\n")[0]))
    else:
        await _events(reader, seen)
    return head.startswith(b"http/1.1 200")


async def _events(reader: asyncio.StreamReader, seen: Seen) -> None:
    """Reads a chunked body to its end, and notes when the first sentence arrives."""
    is_first = True
    while size := int(await reader.readline(), 16):
        chunk = await reader.readexactly(size + 2)
        if is_first and chunk.startswith(FIRST_EVENT):
            seen.first_sentences.append(time.monotonic())
            is_first = False
    await reader.readline()


if __name__ == "__main__":
    asyncio.run(main())
