"""Pacing: in each turn of the event loop one long step of a question, so that a turn is as long as one step.

Otherwise a turn has a step of each question that is ready, and everything short waits for all of them several times: a
refusal, the row that counts it, a database's reply. The steps take as long in all, in another order.
"""

import asyncio
from collections import deque


class Pace:
    """The pace of one event loop. Whoever comes while a turn has a step already waits for one of the next, in order."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False

    async def step(self) -> None:
        """A long step comes next. Whoever is alone does not wait."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._is_taken = True
            loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its question was cancelled
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._is_taken = False
