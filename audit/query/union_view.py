"""SQL of the one view `audit_logs` that DuckDB reads: a UNION of the months in PostgreSQL and the archived months.

Every row comes from exactly one place: PostgreSQL's part excludes the archived months by time.
"""

# ruff: noqa: S608  only names and times of our own, quoted

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from audit.checking.evidence import Period, month_start, next_month
from audit.proof.record import PERSONAL
from audit.query.archived_rows import ArchivedMonth

ARCHIVED_ROWS = "archived_rows"
_TYPES = {
    "uuid": "UUID", "text": "VARCHAR", "varchar": "VARCHAR", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT",
    "float4": "FLOAT", "float8": "DOUBLE", "bool": "BOOLEAN", "jsonb": "JSON", "json": "JSON", "bytea": "BLOB",
    "timestamptz": "TIMESTAMPTZ", "date": "DATE",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnionView:
    """Builds the SELECT of the view."""

    columns: Mapping[str, str]
    archived: Sequence[ArchivedMonth]
    period: Period
    is_open: bool  # personal columns are decrypted
    has_erased: bool  # records of these months were erased after they were archived

    def sql(self) -> str:
        names = ", ".join(typed(name, kind) for name, kind in self.columns.items())
        hot = [
            f"SELECT {names} FROM log.public.audit_logs WHERE {time_range(period)}"
            for period in self._periods_in_database()
        ]
        return " UNION ALL ".join([*hot, self._select_archived()])

    def _periods_in_database(self) -> Iterator[Period]:
        """The gaps between the archived months."""
        begin = self.period.since
        for item in self.archived:
            if begin < (month := month_start(item.month)):
                yield Period(begin, month)
            begin = month_start(next_month(item.month))
        if begin < self.period.until:
            yield Period(begin, self.period.until)

    def _select_archived(self) -> str:
        columns = ", ".join(
            f"{self._expression(name, kind)} AS {quoted(name)}" for name, kind in self.columns.items()
        )
        boxes = ", open_box(log_id, personal) AS opened" if self.is_open else ""
        months = ", ".join(f"DATE '{item.month}'" for item in self.archived)
        source = f"(SELECT *{boxes} FROM {ARCHIVED_ROWS}) r"
        if self.has_erased:
            source += (
                " LEFT JOIN (SELECT log_id, min(erased_at) AS erased_at FROM log.public.audit_erasures"
                f" WHERE month IN ({months}) GROUP BY log_id) e ON e.log_id = r.log_id::uuid"
            )
        return f"SELECT {columns} FROM {source} WHERE {time_range(self.period, 'r.')}"

    def _expression(self, name: str, kind: str) -> str:
        """The SQL expression for a column of an archived row."""
        path = literal(f'$."{name}"')
        if name == "erased_at" and self.has_erased:
            return "coalesce(r.erased_at, e.erased_at)"
        if name == "salt" and self.is_open:
            return f"unhex(substr(r.opened ->> {path}, 3))"
        if name in PERSONAL and self.is_open:
            return f"spell_jsonb(r.opened -> {path})::JSON" if kind == "jsonb" else f"(r.opened ->> {path})"
        if name in PERSONAL | {"salt"}:
            return f"NULL::{_TYPES[kind]}"
        return f"r.{quoted(name)}::{_TYPES[kind]}"


def typed(name: str, kind: str) -> str:
    return f"{quoted(name)}::JSON AS {quoted(name)}" if kind in {"json", "jsonb"} else quoted(name)


def time_range(period: Period, table: str = "") -> str:
    since, until = period.since.isoformat(), period.until.isoformat()
    return f"{table}timestamp >= TIMESTAMPTZ '{since}' AND {table}timestamp < TIMESTAMPTZ '{until}'"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
