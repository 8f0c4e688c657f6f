"""The filter of a search: as an address that can be shared, and as SQL (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from audit.errors import AuditError

VALUE_CHARACTERS_MAX = 500

# The name in an address, and the column that must have exactly this value.
COLUMNS = {
    "book": "book_id", "client": "client_id", "outcome": "outcome", "reason": "reason", "level": "confidence_level",
    "endpoint": "endpoint",
}  # fmt: skip


class CriteriaError(AuditError, ValueError):
    """The filter is not one; the message says why."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """What is searched for. `books` is what the reader's key allows, and is never part of an address."""

    text: str = ""
    since: datetime | None = None
    until: datetime | None = None
    book: str = ""
    client: str = ""
    outcome: str = ""
    reason: str = ""
    level: str = ""
    endpoint: str = ""
    books: frozenset[str] | None = None

    @classmethod
    def read(cls, given: Mapping[str, str], books: Sequence[str] | None = None) -> "Criteria":
        """Of an address. What it does not know is ignored: others may add to it."""
        values = {name: given.get(name, "").strip() for name in ("text", *COLUMNS)}
        if long := next((name for name, value in values.items() if len(value) > VALUE_CHARACTERS_MAX), None):
            raise CriteriaError(f"{long} is longer than {VALUE_CHARACTERS_MAX} characters. Shorten it.")
        if any("\x00" in value for value in values.values()):
            raise CriteriaError("A text with U+0000 is in no record.")
        since, until = _moment(given.get("from", "")), _moment(given.get("to", ""))
        return cls(since=since, until=until, books=None if books is None else frozenset(books), **values)

    @property
    def address(self) -> str:
        """As the query of an address; `read` gives the same criteria."""
        times = {"from": self.since, "to": self.until}
        given = {"text": self.text} | {name: text_of(at) for name, at in times.items() if at}
        return urlencode(
            {
                name: value
                for name, value in (given | {name: getattr(self, name) for name in COLUMNS}).items()
                if value
            }
        )

    @property
    def words(self) -> str:
        """For a person, and for the record of who searched what."""
        said = [f"text “{self.text}”"] if self.text else []
        said += [f"{name} {value}" for name in COLUMNS if (value := getattr(self, name))]
        said += [f"from {text_of(self.since)}"] if self.since else []
        said += [f"to {text_of(self.until)}"] if self.until else []
        return ", ".join(said) or "everything"

    @property
    def is_empty(self) -> bool:
        return all(not getattr(self, field.name) for field in fields(self) if field.name != "books")

    def condition(self) -> tuple[str, dict[str, Any]]:
        """SQL for all but the text and the period, and its values."""
        given = {column: getattr(self, name) for name, column in COLUMNS.items() if getattr(self, name)}
        parts = [f"{column} = %({column})s" for column in given]
        if self.books is not None:
            parts.append("book_id = ANY(%(books)s)")
            given["books"] = sorted(self.books)
        return " AND ".join(parts) or "true", given


def text_of(at: datetime) -> str:
    """A day if it is the begin of one, else a time; in UTC."""
    moment = at.astimezone(UTC).replace(tzinfo=None)
    return (
        moment.date().isoformat()
        if moment == moment.replace(hour=0, minute=0, second=0, microsecond=0)
        else moment.isoformat()
    )


def _moment(text: str) -> datetime | None:
    if not text.strip():
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise CriteriaError(
            f"“{text[:40]}” is no date or time. Write 2026-11-19 or 2026-11-19T14:30."
        ) from None
