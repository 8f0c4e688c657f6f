"""Finds records that were opened and are gone, by the numbers that each process gives to its records. Pure.

A heartbeat says up to which number each record must be in the log, and which numbers have none. What comes after a process's last
heartbeat is not judged: the process may have been killed before it could open that record.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from audit.proof.verdict import Finding, Report, Verdict

MARGIN = timedelta(
    minutes=1
)  # a record's time is that of its request, some seconds before it gets its number
SILENT = timedelta(minutes=10)  # a process that writes records writes heartbeats, once its spool is drained

Span = tuple[datetime, datetime]


@dataclass(slots=True)
class _WriterState:
    through: int | None = None  # as its newest heartbeat says
    beat_at: datetime | None = None
    last_at: datetime | None = None  # its newest record
    beyond: set[int] = field(default_factory=set)  # numbers that are there, beyond `through`


@dataclass(slots=True)
class Numbering:
    """Folds over records in the order of their leaves; what it holds does not grow with the log."""

    since: datetime  # earlier records were not read
    _writers: dict[str, _WriterState] = field(default_factory=dict)
    _missing: dict[tuple[str, int], Span] = field(default_factory=dict)
    _silent: dict[str, Span] = field(default_factory=dict)
    _losses: list[Span] = field(default_factory=list)

    def add(self, row: Mapping[str, Any], at: datetime) -> None:
        """A record that the engine signed; those of older versions have no number."""
        writer, number = row.get("writer"), row.get("sequence")
        if writer is None or number is None:
            return
        state = self._writers.setdefault(writer, _WriterState())
        state.last_at = max(state.last_at or at, at)
        self._found(writer, number, state)
        if row.get("heartbeat") is not None:
            self._beat(writer, state, row["heartbeat"], at)

    def cut(self, since: datetime) -> None:
        """The records before this moment were not all read, so the count begins anew."""
        self._silent |= dict(self._silent_ones())
        self._writers.clear()
        self.since = since

    def explain(self, since: datetime, until: datetime) -> None:
        """In this time a failover or a restore lost records, as an operator has stated with a break."""
        self._losses.append((since, until))

    def state(self) -> dict[str, Any]:
        """All that it holds, as JSON."""
        return {
            "since": self.since.isoformat(),
            "writers": {
                writer: [state.through, _iso(state.beat_at), _iso(state.last_at), sorted(state.beyond)]
                for writer, state in self._writers.items()
            },
            "missing": [
                [writer, number, *map(_iso, span)] for (writer, number), span in self._missing.items()
            ],
            "silent": [[writer, *map(_iso, span)] for writer, span in self._silent.items()],
            "losses": [list(map(_iso, span)) for span in self._losses],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.since = datetime.fromisoformat(state["since"])
        self._writers = {
            writer: _WriterState(through, _moment(beat_at), _moment(last_at), set(beyond))
            for writer, (through, beat_at, last_at, beyond) in state["writers"].items()
        }
        self._missing = {(writer, number): _span(span) for writer, number, *span in state["missing"]}
        self._silent = {writer: _span(span) for writer, *span in state["silent"]}
        self._losses = [_span(span) for span in state["losses"]]

    def finish(self, report: Report) -> None:
        for writer, (beat_at, last_at) in (self._silent | dict(self._silent_ones())).items():
            message = (
                f"The process {writer} wrote records until {_time(last_at)}, but no heartbeat since {_time(beat_at)}. If the"
                " spool of its machine is drained, somebody has removed them"
            )
            report.add(Finding(Verdict.UNSEALED, "row", message, _month(last_at)))
        for writer, first, last, (begin, end) in self._runs():
            numbers, are = (
                (f"record {first}", "is") if first == last else (f"records {first} to {last}", "are")
            )
            message = (
                f"Opened between {_time(begin)} and {_time(end)}, {numbers} of the process {writer} {are} neither in the log"
                " nor in progress: "
            )
            if any(begin <= until and end >= since for since, until in self._losses):
                verdict = Verdict.LOST_BY_FAILOVER
                message += (
                    "of this time a break of the history says that a failover or a restore lost records"
                )
            else:
                verdict = Verdict.MISSING
                message += "if set-aside.log beside its spool does not have them, somebody has removed them"
            report.add(Finding(verdict, "row", message, _month(end)))

    def _found(self, writer: str, number: int, state: _WriterState) -> None:
        self._missing.pop((writer, number), None)
        if state.through is None or number > state.through:
            state.beyond.add(number)

    def _beat(self, writer: str, state: _WriterState, heartbeat: Mapping[str, Any], at: datetime) -> None:
        through = heartbeat["through"]
        unrecorded = [range(first, last + 1) for first, last in heartbeat["unrecorded"]]
        for numbers in unrecorded:
            for number in numbers:
                self._missing.pop((writer, number), None)
        if state.through is None or state.beat_at is None:
            if at - self.since < MARGIN:
                return
            state.through = through
        for number in range(state.through + 1, through + 1):
            if number not in state.beyond and not any(number in numbers for numbers in unrecorded):
                self._missing[writer, number] = (state.beat_at or at, at)
        state.through = max(state.through, through)
        state.beat_at = max(state.beat_at or at, at)
        state.beyond = {number for number in state.beyond if number > state.through}

    def _silent_ones(self) -> Iterator[tuple[str, Span]]:
        for writer, state in self._writers.items():
            if state.beat_at and state.last_at and state.last_at - state.beat_at > SILENT:
                yield writer, (state.beat_at, state.last_at)

    def _runs(self) -> Iterator[tuple[str, int, int, Span]]:
        """Missing numbers that follow one another, with the heartbeats around them."""
        run: tuple[str, int, int, Span] | None = None
        for (writer, number), span in sorted(self._missing.items()):
            if run and run[0] == writer and run[2] + 1 == number and run[3] == span:
                run = (writer, run[1], number, span)
                continue
            if run:
                yield run
            run = (writer, number, number, span)
        if run:
            yield run


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _span(texts: Sequence[str]) -> Span:
    begin, end = map(datetime.fromisoformat, texts)
    return begin, end


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _month(moment: datetime) -> Any:
    return moment.date().replace(day=1)
