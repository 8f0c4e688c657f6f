"""A period of the log as of stated heads, and the whole text of a query over it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from string import Template

from audit.ledger.partitions import month_start, next_month

# What is younger may still be written, sealed and anchored, so a report ends before it.
SETTLED = timedelta(minutes=1)
# A record's time is that of its request, which may begin this long before the heartbeat that counts it.
BEFORE = timedelta(minutes=10)
FIRST_YEAR = 1970

_NO_HEAD = "    SELECT NULL::date AS month, NULL::bigint AS tree_size WHERE false"


@dataclass(frozen=True, slots=True)
class SealedHead:
    """The newest head of a month when the report was made."""

    month: date
    tree_size: int
    root: str  # base64

    def as_json(self) -> dict[str, str | int]:
        return {"month": f"{self.month:%Y-%m}", "tree_size": self.tree_size, "root": self.root}


@dataclass(frozen=True, slots=True)
class AsOf:
    since: datetime
    until: datetime
    taken_at: datetime
    heads: tuple[SealedHead, ...] = ()

    @classmethod
    def settled(cls, since: datetime, until: datetime, taken_at: datetime) -> "AsOf":
        """`ValueError` with words for whoever typed it."""
        settled = min(until, taken_at - SETTLED)
        if since.year < FIRST_YEAR:
            raise ValueError(f"No log is that old: --from must not be before {FIRST_YEAR}.")
        if since >= until:
            raise ValueError("The period is empty: --to must be later than --from.")
        if since >= settled:
            raise ValueError(
                "The period has not begun: its records are not sealed yet. Try again in a minute."
            )
        return cls(since, settled, taken_at)

    @property
    def months(self) -> tuple[date, date]:
        """The first month that is read, and the one after the last."""
        first, last = (self.since - BEFORE).astimezone(UTC), self.until.astimezone(UTC)
        after = date(last.year, last.month, 1)
        return date(first.year, first.month, 1), after if month_start(after) == last else next_month(after)

    def query(self, words: str) -> str:
        """The whole statement, which anybody can give to `affidavit audit query`."""
        return self.fill(f"{_common()}{words.strip()}\n")

    def fill(self, words: str) -> str:
        since, until = self.months
        return Template(words).substitute(
            heads=_heads(self.heads), since=(self.since - BEFORE).isoformat(), period_since=self.since.isoformat(),
            until=self.until.isoformat(), taken_at=self.taken_at.isoformat(),
            months_since=month_start(since).isoformat(), months_until=month_start(until).isoformat(),
        )  # fmt: skip


def _heads(heads: Sequence[SealedHead]) -> str:
    rows = [
        f"    SELECT DATE '{head.month}' AS month, {head.tree_size}::bigint AS tree_size" for head in heads
    ]
    return "\n    UNION ALL\n".join(rows) or _NO_HEAD


@cache
def _common() -> str:
    return Path(__file__).with_name("as_of.sql").read_text("utf-8")
