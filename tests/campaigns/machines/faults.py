"""What readers were told while a part failed, fault by fault."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from tests.campaigns.machines.house import Machines
from tests.campaigns.machines.readers import Crowd, Told, crowd, wrong_in

FAULT_S = 3.0
LONG_S = 60.0  # what a dead engine left open is closed by then; younger ones are under way
PROMISE_S = 5.0 + 0.1
HEAD = f"{'fault':<36}{'requests':>9}{'refused':>9}{'unheard':>9}{'share':>8}{'worst':>8}"

AnyMachines = TypeVar("AnyMachines", bound=Machines)
Strike = Callable[[AnyMachines], AbstractContextManager[None]]


async def suffered(house: AnyMachines, faults: Mapping[str, Strike[AnyMachines]], rounds: int) -> "Report":
    """Each fault so many times, under load. At the end nothing may be lost: that is asserted here."""
    report = Report()
    async with _loaded(house) as readers:
        for _ in range(rounds):
            for name, strike in faults.items():
                began = time.monotonic()
                await asyncio.to_thread(_suffer, house, strike)
                report.told[name] += readers.since(began)
                print(report.line(name), flush=True)
    print(f"\n{report}\nthe readers themselves were late by at most {readers.late_s:.2f} s")
    await asyncio.to_thread(house.settle)
    assert list(wrong_in(house, readers.told)) == []
    assert (await asyncio.to_thread(house.verify))["verdict"] == "VALID"
    assert worst_s(readers.told) <= PROMISE_S + readers.late_s
    return report


@dataclass(slots=True)
class Report:
    """What readers were told, by fault."""

    told: dict[str, list[Told]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        return "\n".join([HEAD, *map(self.line, self.told)])

    def line(self, name: str) -> str:
        told = self.told[name]
        refused, unheard = (
            sum(one.status not in {0, 200} for one in told),
            sum(not one.status for one in told),
        )
        share = (refused + unheard) / max(1, len(told))
        return f"{name:<36}{len(told):>9}{refused:>9}{unheard:>9}{share:>8.1%}{worst_s(told):>7.2f}s"


def worst_s(told: list[Told]) -> float:
    return max((one.told_at - one.asked_at for one in told if one.status), default=0.0)


def _suffer(house: AnyMachines, strike: Strike[AnyMachines]) -> None:
    with strike(house):
        time.sleep(FAULT_S)  # so long it lasts
    house.settle(open_s=LONG_S)


@contextlib.asynccontextmanager
async def _loaded(house: Machines) -> AsyncIterator[Crowd]:
    async with crowd(house) as readers:
        while len({told.engine for told in readers.told if told.is_answered}) < len(house.engines):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.05)
        yield readers
