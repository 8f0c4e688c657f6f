"""Which records a package is to hold, as SQL, in words, and as a test of a record. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from audit.erasure.target import spellings
from audit.package.manifest import time_text

NAME_CHARACTERS_MAX = 200
_WITHHELD = "(withheld)"


@dataclass(frozen=True, slots=True)
class Choice:
    """The period, and as far as they are given a client, a user and a query. A case is a name, and chooses nothing."""

    since: datetime
    until: datetime
    client: str | None = None
    user: str | None = None
    query: UUID | None = None
    case: str | None = None
    is_redacted: bool = False

    def __post_init__(self) -> None:
        """`ValueError` with words for whoever typed it."""
        if self.since >= self.until:
            raise ValueError("The period is empty: --to must be later than --from.")
        for name in filter(None, (self.case, self.client, self.user)):
            if len(name) > NAME_CHARACTERS_MAX or not name.isprintable() or name != name.strip():
                raise ValueError(
                    f"{name[:20]!a}… is no name: give one printable line of at most {NAME_CHARACTERS_MAX} characters."
                )
        if self.user is not None:
            spellings(self.user)

    @property
    def users(self) -> list[str]:
        """Every spelling in which the user may be recorded."""
        return list(spellings(self.user)) if self.user else []

    @property
    def needs_names(self) -> bool:
        """Whether a personal column decides."""
        return self.user is not None

    @property
    def chosen(self) -> dict[str, Any]:
        """As the manifest has it. A redacted package does not name the user."""
        user = True if self.is_redacted and self.user else self.user
        given = {
            "case": self.case,
            "client": self.client,
            "user": user,
            "query": str(self.query or "") or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def words(self) -> str:
        parts = [f"from {time_text(self.since)} to before {time_text(self.until)}"]
        parts += [f"of the client {self.client}"] if self.client else []
        parts += [f"of the user {_WITHHELD if self.is_redacted else self.user}"] if self.user else []
        parts += [f"of the query {self.query}"] if self.query else []
        return "all records " + ", ".join(parts)

    def condition(self) -> tuple[str, dict[str, Any]]:
        """For the rows `r` of the log in the database."""
        texts = ["r.timestamp >= %(since)s", "r.timestamp < %(until)s"]
        texts += ["r.client_id = %(client)s"] if self.client else []
        texts += ["r.end_user = ANY(%(users)s)"] if self.user else []
        texts += ["r.query_id = %(query)s"] if self.query else []
        values = {
            "since": self.since,
            "until": self.until,
            "client": self.client,
            "users": self.users,
            "query": self.query,
        }
        return " AND ".join(texts), {name: value for name, value in values.items() if value}

    def matches(self, row: Mapping[str, Any]) -> bool:
        """The same for a row from the archive."""
        return (
            time_text(self.since) <= row["timestamp"] < time_text(self.until)
            and (self.client is None or row.get("client_id") == self.client)
            and (self.user is None or row.get("end_user") in self.users)
            and (self.query is None or row["query_id"] == str(self.query))
        )

    def queries(self, statement: str) -> dict[str, Any]:
        """The content of queries.json."""
        _, values = self.condition()
        shown = {name: _shown(value) for name, value in values.items()}
        if self.is_redacted and self.user:
            shown["users"] = _WITHHELD
        return {"words": self.words, "sql": [{"statement": statement, "parameters": shown}]}


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        return time_text(value)
    return str(value) if isinstance(value, UUID) else value
