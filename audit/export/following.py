"""Delivers sealed rows, each once and in order: read what is new, deliver it durably, then move the position."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from audit.export.formats import SealedRow
from audit.export.position import MonthPosition, Position, name_of
from audit.export.sealed_rows import SealedRows

POLL_S = 2.0  # rows are sealed every ten seconds


class Sink(Protocol):
    """Where rows go. It owns the position, because both must become durable together."""

    def begin(self) -> None: ...

    def unfinished(self, rows: SealedRows, /) -> Position:
        """Deliver again what a kill interrupted, if the sink cannot tell whether it arrived."""

    def deliver(self, batch: Sequence[SealedRow]) -> Position: ...


Source = Callable[[], AbstractContextManager[SealedRows]]


def export(source: Source, sink: Sink, wait: Callable[[float], bool] | None = None) -> int:
    """The number of rows delivered. With `wait` it goes on for ever: each pause ends it if `wait` returns true."""
    count = 0
    sink.begin()
    with source() as rows:
        position = sink.unfinished(rows)
    while True:
        with source() as rows:
            for batch in rows.after(position):
                position = sink.deliver(batch)
                count += len(batch)
        if wait is None or wait(POLL_S):
            return count


def moved(position: Position, batch: Sequence[SealedRow]) -> Position:
    """The position after this batch."""
    last = batch[-1]
    after = MonthPosition(last.leaf_index + 1, last.leaf_hash.hex())
    return replace(position, months=position.months | {name_of(last.month): after}, sending=None)
