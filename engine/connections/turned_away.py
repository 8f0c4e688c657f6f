"""Answers 503 while no worker is ready: a client learns in time that it should try again.

No record can be written here, so the response names none. The requests are counted, and the next worker writes one row
with their number.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from engine.connections.door import Door, Visitor
from engine.connections.occupancy import Occupancy
from engine.connections.protocol import HEAD_BYTES_MAX
from engine.errors import NotReadyError
from engine.http import problems
from engine.http.middleware import PROBES

ARRIVE_S = 2.0  # for the head of a request
READ_S = (
    1.0  # for the client to read the response and to close: what it still sends would reset the connection
)


class Stopgap:
    """Takes the place of the workers, and counts whom it turned away."""

    def __init__(self, listening: socket.socket, occupancy: Occupancy) -> None:
        self.turned_away = 0
        self._door = Door(listening, occupancy, lambda: TurnedAway(occupancy, self._count))
        self._is_open = False

    def set_open(self, *, is_needed: bool) -> None:
        if is_needed and not self._is_open:
            self._door.open()
        elif self._is_open and not is_needed:
            self._door.shut()
        self._is_open = is_needed

    def _count(self) -> None:
        self.turned_away += 1


class TurnedAway(Visitor):
    """One connection: reads a head, answers, and closes."""

    def __init__(self, occupancy: Occupancy, count: Callable[[], None]) -> None:
        self._occupancy, self._count = occupancy, count
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._ending = asyncio.get_running_loop().call_later(ARRIVE_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            return
        self._head += data
        if b"\r\n\r\n" in self._head or len(self._head) > HEAD_BYTES_MAX:
            self._answer()

    def _answer(self) -> None:
        assert self._transport
        self._is_answered = True
        method, _, rest = self._head.partition(b" ")
        if rest.partition(b" ")[0].decode(errors="replace") not in PROBES:
            self._count()
        self._transport.write(_response(has_body=method != b"HEAD"))
        self._transport.write_eof()
        self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(READ_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the protocol's signature
        self._ending.cancel()
        self._occupancy.leave(self)

    def cut_off(self) -> None:
        if self._transport:
            self._transport.abort()


def _response(*, has_body: bool) -> bytes:
    failure = NotReadyError()
    body = problems.problem(failure, request_id="").model_dump_json().encode()
    head = (
        f"HTTP/1.1 {failure.status} Service Unavailable\r\nContent-Type: {problems.MEDIA_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {failure.retry_after_s}\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body * has_body
