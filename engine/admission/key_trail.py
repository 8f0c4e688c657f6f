"""Compares the API keys in the database with the log's records of how they were made, rotated and revoked (pure).

A superuser can change the table without a record. The log cannot be changed without `affidavit audit verify` naming it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

CLOCKS_DIFFER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A row of `api_keys`."""

    key_id: str
    client_id: str
    fingerprint: str
    scopes: list[str]
    books: list[str] | None
    rate_limit: str | None
    created_at: datetime
    revoked_at: datetime | None

    @property
    def rights(self) -> dict[str, Any]:
        return {"scopes": self.scopes, "rate_limit": self.rate_limit, "books": self.books}


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A record of the log: `affidavit keys create`, `rotate` or `revoke`. What it is about is gone if it was erased."""

    command: str
    key_id: str
    client_id: str
    at: datetime
    about: Mapping[str, Any] | None

    @property
    def made(self) -> str | None:
        """The key that it made."""
        if self.command == "create":
            return self.key_id
        return (self.about or {}).get("new_key_id") if self.command == "rotate" else None

    @property
    def is_erased_rotation(self) -> bool:
        """It made a key, and does not say which any more."""
        return self.command == "rotate" and self.about is None


def unexplained(
    keys: Sequence[StoredKey], records: Sequence[KeyRecord], archived: frozenset[date]
) -> list[str]:
    """What differs from the records, by key. A key of an archived month is believed: its record is not in the database."""
    by_id = {key.key_id: key for key in keys}
    found = [
        f"{key.key_id} of {key.client_id} {doubt}"
        for key in keys
        if key.created_at.date().replace(day=1) not in archived
        for doubt in [_doubt_of_making(key, records, by_id), _doubt_of_end(key, records)]
        if doubt
    ]
    gone = [record.made for record in records if record.made and record.about and record.made not in by_id]
    return found + [f"{key_id} is missing: it was deleted, or its command was interrupted" for key_id in gone]


def _doubt_of_making(key: StoredKey, records: Sequence[KeyRecord], by_id: Mapping[str, StoredKey]) -> str:
    record = next((record for record in records if record.made == key.key_id), None)
    if record is None:
        is_erased = any(one.is_erased_rotation and one.client_id == key.client_id for one in records)
        return "" if is_erased else "was not made by `affidavit keys`"
    if record.about is None:
        return ""
    model = by_id.get(record.key_id, key) if record.command == "rotate" else None
    granted = model.rights if model else record.about
    changed = [name for name, value in key.rights.items() if value != granted.get(name)]
    if key.client_id != record.client_id:
        changed.append("client")
    if record.about.get("fingerprint", key.fingerprint) != key.fingerprint:
        changed.append("secret")
    return f"has another {' and '.join(changed)} than it was given" if changed else ""


def _doubt_of_end(key: StoredKey, records: Sequence[KeyRecord]) -> str:
    """Whether it ends later than was recorded, or earlier."""
    ends = [_end(record) for record in records if record.key_id == key.key_id and record.command != "create"]
    if not ends:
        return "was not revoked by `affidavit keys`" if key.revoked_at else ""
    if key.revoked_at is None or key.revoked_at > min(ends) + CLOCKS_DIFFER:
        return "is valid for longer than was recorded"
    return ""


def _end(record: KeyRecord) -> datetime:
    return record.at + timedelta(seconds=(record.about or {}).get("overlap_s", 0))
