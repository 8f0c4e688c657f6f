"""Accepts connections: a few at a time, and only while there is room, so that no descriptor is taken from the audit.

Whoever finds no room waits in the system's queue, or is taken in by another process that listens there too.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from engine.connections.occupancy import Occupancy

AT_ONCE = (
    4  # in each turn of the event loop, and one more for so many connections: the evicted ones close after it
)
PER_TURN = 256
AGAIN_S = 0.05  # if all are busy, or the system has no descriptor left
QUEUE = 2048  # connections that wait in the system

log = logging.getLogger(__name__)


class Visitor(asyncio.Protocol):
    """A protocol whose connection is counted."""

    def cut_off(self) -> None:
        raise NotImplementedError


class Door:
    """The door of one listening socket."""

    def __init__(
        self, listening: socket.socket, occupancy: Occupancy, visitor: Callable[[], Visitor]
    ) -> None:
        self._listening, self._occupancy, self._visitor = listening, occupancy, visitor
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._listening.setblocking(False)  # noqa: FBT003  its only form
        self._listening.listen(
            QUEUE
        )  # not before, where other servers take the connections: see listening.py
        self._loop.add_reader(self._listening, self._accept, AT_ONCE + self._occupancy.in_all // PER_TURN)

    def shut(self) -> None:
        """Nobody is taken in until it is opened again."""
        self._loop.remove_reader(self._listening)
        if self._again:
            self._again.cancel()

    def close(self) -> None:
        """For ever. Those who wait already are taken in: they have connected, so they expect an answer."""
        self.shut()
        self._accept(QUEUE)
        self.shut()
        self._listening.close()

    def _accept(self, at_once: int) -> None:
        for _ in range(at_once):
            if self._occupancy.is_full:
                self._wait()
                return
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as failure:  # no descriptor or no memory
                if failure.errno == errno.EINVAL:  # it was never opened
                    return
                log.warning("No connection can be accepted (%s)", failure.strerror)
                self._wait()
                return
            self._take_in(connection, str(address[0]))

    def _take_in(self, connection: socket.socket, peer: str) -> None:
        connection.setblocking(False)  # noqa: FBT003  its only form
        visitor = self._visitor()
        if not self._occupancy.enter(visitor, peer):
            connection.close()
            return
        if _has_spoken(connection):
            self._occupancy.occupy(
                visitor
            )  # until it is read: those who come after it may not push it out before
        task = self._loop.create_task(self._connect(visitor, connection))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _connect(self, visitor: Visitor, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: visitor, connection)
        except OSError:  # it has gone already
            self._occupancy.leave(visitor)
            connection.close()

    def _wait(self) -> None:
        self.shut()
        self._again = self._loop.call_later(AGAIN_S, self.open)


def _has_spoken(connection: socket.socket) -> bool:
    """Whoever has waited for its turn has sent its request already."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False
