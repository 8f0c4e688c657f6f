"""Load shedding: a bulkhead for questions with a bounded and fair queue before it.

A question enters, waits for its turn, is worked on and leaves. As many are worked on at once as `ConcurrencyLimit` says.
By Little's law the queue is as long as what can be answered in `QUEUE_S`: waiting longer would help nobody, because under
lasting overload everybody would wait that long. Whoever finds no room is refused at once.

It is fair by client, that is by the holder of a key. Turns go round. The queue's room is shared by a dynamic threshold:
a client may take `SHARE` times the room that is free. The room follows the load, so it can be used up for a moment; of a
reserve as large as itself each client then has a few places of its own: whoever asks little is not turned away.

Requests without a question never stand here.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from engine.admission.overload.concurrency_limit import ConcurrencyLimit
from engine.admission.overload.fair_queue import FairQueue
from engine.admission.overload.pace import Pace
from engine.errors import OverloadedError

QUEUE_S = 0.5  # the expected wait at the end of the queue: long enough for a burst
ROOM_MIN, ROOM_MAX = 32, 1024
SHARE = 2  # one client alone fills two thirds of the room, and of four greedy ones a ninth stays free
OWN = 8  # places of a client in the reserve: a burst of one that asks less than its share
SERVICE_S = 0.1  # assumed of a question until some are answered
WEIGHT = 0.05  # of the newest in the moving average
RETRY_MAX_S = 30
LOOK_S = 0.05  # between two looks at the waits for the event loop and for the threads, while anybody is here


@dataclass(eq=False, slots=True)
class Ticket:
    """A question's place in the queue and at work. Leaving is idempotent."""

    client_id: str
    turnstile: "Turnstile"
    state: Literal["entered", "waiting", "served", "left"] = "entered"
    served_at: float = 0.0
    turn: asyncio.Future[None] | None = field(default=None, repr=False)

    def leave(self) -> None:
        self.turnstile.leave(self)


class Turnstile:
    """The turnstile of one process."""

    def __init__(self, limit: ConcurrencyLimit, monotonic: Callable[[], float]) -> None:
        self.limit = limit
        self.pace = Pace()
        self.refused = 0
        self._monotonic = monotonic
        self._queue: FairQueue[Ticket] = FairQueue()
        self._ahead_of: Counter[str] = Counter()  # have entered, and are not served yet
        self._ahead = self._serving = 0
        self._service_s = SERVICE_S
        self._recent = _LastSecond()
        self._looking: asyncio.TimerHandle | None = None
        self._measuring: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return self._ahead

    @property
    def serving(self) -> int:
        return self._serving

    @property
    def is_crowded(self) -> bool:
        """Whether the next question will have to wait."""
        return self._ahead + self._serving >= self._at_once

    def enter(self, client_id: str) -> Ticket:
        """The ticket of a question of this client; `OverloadedError` if there is no room."""
        if not self._has_place(self._ahead_of[client_id]):
            raise self._refusal()
        return self._entered(Ticket(client_id, self))

    def enter_as_operator(self) -> Ticket:
        """Whoever sits at the terminal is not turned away by readers."""
        return self._entered(Ticket("", self))

    async def wait(self, ticket: Ticket, within_s: float) -> None:
        """Until its turn. `OverloadedError` if it does not come in time: the queue has become slower than expected."""
        if not self._queue and self._serving < self._at_once:
            self._serve(ticket)
            return
        ticket.turn, ticket.state = asyncio.get_running_loop().create_future(), "waiting"
        self._queue.put(ticket.client_id, ticket)
        try:
            async with asyncio.timeout(within_s):
                await ticket.turn
        except TimeoutError:
            self.leave(ticket)
            raise self._refusal() from None
        except asyncio.CancelledError:
            self.leave(ticket)
            raise

    def leave(self, ticket: Ticket) -> None:
        state, ticket.state = ticket.state, "left"
        if state == "served":
            self._serving -= 1
            self._service_s += WEIGHT * (self._monotonic() - ticket.served_at - self._service_s)
            self._hand_over()
        elif state != "left":
            self._forget(ticket)
            if state == "waiting":
                self._queue.remove(ticket.client_id, ticket)

    @property
    def _at_once(self) -> int:
        return int(self.limit.at_once)

    def _has_place(self, ahead: int) -> bool:
        """For a client that has so many questions ahead: in its share of the room, else in its part of the reserve."""
        free = self._free_room
        return ahead < SHARE * free or (ahead < OWN and free > -self._room)

    @property
    def _room(self) -> int:
        """In the queue, without its reserve."""
        return min(max(int(self._at_once * QUEUE_S / max(self._service_s, 0.001)), ROOM_MIN), ROOM_MAX)

    @property
    def _free_room(self) -> int:
        """In the queue, and where nobody has to wait. Less than none while the reserve is used."""
        return self._room + max(0, self._at_once - self._serving) - self._ahead

    def _entered(self, ticket: Ticket) -> Ticket:
        self._ahead_of[ticket.client_id] += 1
        self._ahead += 1
        if self._looking is None:
            self._look_later()
        return ticket

    def _forget(self, ticket: Ticket) -> None:
        self._ahead -= 1
        self._ahead_of[ticket.client_id] -= 1
        if not self._ahead_of[ticket.client_id]:
            del self._ahead_of[ticket.client_id]

    def _serve(self, ticket: Ticket) -> None:
        self._forget(ticket)
        self._serving += 1
        ticket.state, ticket.served_at = "served", self._monotonic()

    def _hand_over(self) -> None:
        while self._queue and self._serving < self._at_once:
            ticket = self._queue.take()
            self._serve(ticket)
            assert ticket.turn
            if not ticket.turn.done():  # else it is about to leave
                ticket.turn.set_result(None)

    def _refusal(self) -> OverloadedError:
        """`Retry-After` is when all are answered who wait, and who were refused in the last second: not all at once again."""
        self.refused += 1
        demand = self._ahead + self._recent.count(self._monotonic())
        drained_s = demand * self._service_s / self._at_once
        return OverloadedError(retry_after_s=min(max(1, math.ceil(drained_s)), RETRY_MAX_S))

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._measuring = asyncio.get_running_loop().create_task(self._measure_waits())

    async def _measure_waits(self) -> None:
        """How long a question waits for its next step, and for a thread."""
        began_at = self._monotonic()
        in_thread = asyncio.get_running_loop().run_in_executor(None, self._monotonic)
        await self.pace.step()
        step_s, thread_s = self._monotonic() - began_at, await in_thread - began_at
        self.limit.note_waits(step_s, thread_s, self._service_s, is_used_up=bool(self._queue))
        self._hand_over()
        self._looking = None
        if self._ahead or self._serving:
            self._look_later()


class _LastSecond:
    """Counts events of the current second and of the one before."""

    def __init__(self) -> None:
        self._second = self._now = self._before = 0

    def count(self, at: float) -> int:
        """One more; returns those of about a second."""
        if int(at) != self._second:
            self._before = self._now if int(at) == self._second + 1 else 0
            self._second, self._now = int(at), 0
        self._now += 1
        return max(self._now, self._before)
