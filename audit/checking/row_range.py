"""A range of leaves, and the rows that are stored of it. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from audit.checking.judgement import Judged, StoredRow

Span = tuple[datetime, datetime]


class RowRange(NamedTuple):
    """Leaves as they must be, each with its index and its record's id; and the part of their month that is read."""

    leaves: Sequence[tuple[int, str, bytes]]
    month: Span
    period: Span


class StoredRows(NamedTuple):
    """The rows, each with the index of its leaf, and the records of the month that are outside of the period."""

    rows: Sequence[tuple[int, StoredRow]] = ()
    outside_period: frozenset[str] = frozenset()


class JudgedRange(NamedTuple):
    """The rows of each leaf, by its index."""

    judged: Mapping[int, Sequence[Judged]]
    outside_period: frozenset[str]


NO_ROWS = StoredRows()
