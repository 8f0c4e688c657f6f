"""Numbers the records of one process, so that one that is missing later leaves a gap, and says which numbers never became records. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

RANGES_MAX = 1_000  # in one heartbeat; the others are told by the next


@dataclass(slots=True)
class RecordNumbers:
    """`failed` has the numbers whose record could not be opened, as far as no heartbeat has told them."""

    writer: UUID
    last: int = 0
    opening: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def next(self) -> int:
        self.last += 1
        return self.last

    def heartbeat(self) -> dict[str, Any]:
        """Up to which number each record is durable, and which numbers have none."""
        through = min(self.opening, default=self.last + 1) - 1
        ranges = list(_ranges(number for number in self.failed if number <= through))
        if len(ranges) > RANGES_MAX:
            through, ranges = ranges[RANGES_MAX][0] - 1, ranges[:RANGES_MAX]
        return {"through": through, "unrecorded": ranges}

    def forget(self, told: dict[str, Any]) -> None:
        """A heartbeat has told these."""
        self.failed = {number for number in self.failed if number > told["through"]}


def _ranges(numbers: Iterator[int]) -> Iterator[list[int]]:
    """The first and the last of each run."""
    run: list[int] = []
    for number in sorted(numbers):
        if run and number == run[1] + 1:
            run[1] = number
        else:
            if run:
                yield run
            run = [number, number]
    if run:
        yield run
