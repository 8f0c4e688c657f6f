"""Counts of shared rows: with a beat, all that have news are counted in one batch; whoever leaves takes nobody's count along."""

import asyncio
import time
from typing import Any

from audit.proof.record import Trail
from engine.admission.shared_rows import SharedRow, SharedRows
from engine.wiring import now
from tests.pure.overload.test_shedding import trail_of

ROWS = 4
LONG_S = 60.0


class Batches:
    """A ledger that writes one batch after the other, as the lane of notes does: of those that came before it began."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._is_writing = False

    async def open(self, _: Trail) -> None: ...

    async def close(self, _: Trail, __: Any) -> None: ...

    async def note(self, _: Trail) -> None:
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        if not self._is_writing:
            self._is_writing = True
            asyncio.get_running_loop().call_soon(self._write)
        await written

    def _write(self) -> None:
        batch, self._waiting = self._waiting, []
        self.sizes.append(len(batch))
        asyncio.get_running_loop().call_later(0.001, self._end, batch)

    def _end(self, batch: list[asyncio.Future[None]]) -> None:
        for written in batch:
            written.set_result(None)
        self._is_writing = bool(self._waiting)
        if self._waiting:
            self._write()


# Seen red without the wait for the beat: batches of one row and of three took turns for ever.
async def test_rows_with_news_are_counted_together() -> None:
    batches: Any = Batches()
    rows = SharedRows(batches, now, time.monotonic, within_s=LONG_S, beat_s=0.001)
    shared = [rows.begin(trail_of(None), time.monotonic() + LONG_S) for _ in range(ROWS)]
    asking = [asyncio.create_task(_ask(shared[0], 6))]
    while not batches.sizes:  # noqa: ASYNC110  it has begun
        await asyncio.sleep(0)
    asking += [asyncio.create_task(_ask(row, 5)) for row in shared[1:]]
    await asyncio.gather(*asking)
    assert batches.sizes == [1, *([ROWS] * 5)]
    await rows.close()


async def _ask(row: SharedRow, times: int) -> None:
    for _ in range(times):
        await asyncio.shield(row.counted())


async def test_all_who_wait_share_a_count_and_a_failure_that_nobody_waits_for_is_no_unhandled_one() -> None:
    batches: Any = Batches()
    rows = SharedRows(batches, now, time.monotonic, within_s=LONG_S, beat_s=0.001)
    row = rows.begin(trail_of(None), time.monotonic() + LONG_S)
    leaving = asyncio.ensure_future(asyncio.shield(row.counted()))
    staying = row.counted()
    leaving.cancel()
    await asyncio.wait_for(asyncio.shield(staying), LONG_S)
    assert row.trail.repeat_count == 2
    await rows.close()
