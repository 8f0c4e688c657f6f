"""The shape of an access: who read which personal columns, for what. Pure, so that commands and pages write the same."""

import json
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from audit.proof.record import PERSONAL

FILTER_BYTES_MAX = 20_000  # of a statement, as JSON; the rest is cut off, and the cut is said


@dataclass(slots=True)
class Access:
    """One read of personal columns. `records` is known only afterwards."""

    who: str
    filter: str
    columns: Collection[str] = field(default_factory=lambda: PERSONAL)
    role: str | None = None
    basis: str | None = None
    second: str | None = None
    records: int | None = None

    def as_details(self) -> dict[str, Any]:
        """The member `access` of a record's details, as the view `audit_access` reads it."""
        return {
            "who": self.who, "role": self.role, "filter": _cut(self.filter), "columns": sorted(self.columns),
            "records": self.records, "basis": self.basis, "second": self.second,
        }  # fmt: skip


def role_of(scopes: Collection[str]) -> str:
    """Of a key that may read the log."""
    return next(
        (role for scope, role in (("lead", "lead"), ("review", "reviewer")) if scope in scopes), "auditor"
    )


def _cut(text: str) -> str:
    if _bytes_of(text) <= FILTER_BYTES_MAX:
        return text
    kept = bisect_right(range(len(text)), FILTER_BYTES_MAX, key=lambda end: _bytes_of(text[:end])) - 1
    return f"{text[:kept]} … and {len(text) - kept} characters more"


def _bytes_of(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode(errors="replace"))
