"""What an export has delivered so far: for each month the next leaf, and the hash of the last one.

A cursor for each month, and not one for all: a row whose request began last month may be sealed after the first one of this month.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from audit.errors import DeliveryError
from audit.export.formats import Form


@dataclass(frozen=True, slots=True)
class MonthPosition:
    next_leaf: int
    last_hash: str  # of the leaf before it, in hex


@dataclass(frozen=True, slots=True)
class Sending:
    """A batch on its way: after a kill it is sent again with the same leaves, so that a collector recognises it."""

    month: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Position:
    form: Form
    months: dict[str, MonthPosition] = field(default_factory=dict)
    bytes: int = 0  # of the file that are confirmed
    sending: Sending | None = None

    def next_leaf(self, month: date) -> int:
        known = self.months.get(name_of(month))
        return known.next_leaf if known else 0


def name_of(month: date) -> str:
    return f"{month:%Y-%m}"


@dataclass(frozen=True, slots=True)
class PositionFile:
    """On disk before anything counts as delivered."""

    path: Path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Two exports with one position would deliver rows twice."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DeliveryError(f"Another export is at work with {self.path}.") from None
            yield

    def load(self, form: Form) -> Position:
        """The position in the file, or the beginning. `DeliveryError` if it is of an export in another form."""
        try:
            known = _parsed(json.loads(self.path.read_text("utf-8")))
        except FileNotFoundError:
            return Position(form)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DeliveryError(
                f"{self.path} is not the position of an export. Give another file with --position."
            ) from None
        if known.form != form:
            raise DeliveryError(
                f"{self.path} is the position of an export in another form (--format {known.form.name}"
                f"{', --personal' if known.form.has_personal else ''}). Go on with the same options, or begin a new one."
            )
        return known

    def save(self, position: Position) -> None:
        """All of it or nothing, also in a power cut."""
        draft = self.path.with_name(f"{self.path.name}.new")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(asdict(position), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _parsed(body: dict[str, Any]) -> Position:
    months = {name: MonthPosition(**month) for name, month in body.pop("months").items()}
    sending, form = body.pop("sending"), Form(**body.pop("form"))
    return Position(form, months, sending=Sending(**sending) if sending else None, **body)
