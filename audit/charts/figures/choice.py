"""What a chart is to show: a period of whole days in UTC, and a filter. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from types import MappingProxyType
from urllib.parse import urlencode

DAYS_BY_DAY = 92  # longer periods are drawn by week …
DAYS_BY_WEEK = 750  # … and still longer ones by month


@dataclass(frozen=True, slots=True)
class ChartChoice:
    """`until` is exclusive."""

    since: date
    until: date
    book_id: str | None = None
    client_id: str | None = None
    outcome: str | None = None

    @property
    def days(self) -> int:
        return (self.until - self.since).days

    @property
    def step(self) -> str:
        if self.days <= DAYS_BY_DAY:
            return "day"
        return "week" if self.days <= DAYS_BY_WEEK else "month"

    def step_of(self, day: date) -> date:
        """The day on which the step begins: a week on Monday, a month on the first."""
        if self.step == "day":
            return day
        return day - timedelta(days=day.weekday()) if self.step == "week" else day.replace(day=1)

    def steps(self) -> list[date]:
        """All of the period, also those without a record."""
        return list(dict.fromkeys(self.step_of(day) for day in self._days()))

    def words(self) -> str:
        last = self.until - timedelta(days=1)
        filters = {"book": self.book_id, "client": self.client_id, "outcome": self.outcome}
        named = [f"{name} {value}" for name, value in filters.items() if value is not None]
        return ", ".join(
            [f"{self.since} to {last} (UTC)" if self.days > 1 else f"{self.since} (UTC)", *named]
        )

    def query(self, changes: Mapping[str, str] = MappingProxyType({})) -> str:
        """As the query of an address, which is a link to share."""
        given: dict[str, str | None] = {
            "from": str(self.since), "to": str(self.until), "book": self.book_id, "client": self.client_id, "outcome": self.outcome,
        }  # fmt: skip
        return urlencode({name: value for name, value in (given | dict(changes)).items() if value})

    def _days(self) -> Iterator[date]:
        return (self.since + timedelta(days=number) for number in range(self.days))
