"""Where the records of each month are, and whether any is missing: counts of rows, leaves, signed trees and archives."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from io import SEEK_END
from typing import Any

from audit.checking.evidence import Period, following
from audit.errors import ArchiveError, VaultError
from audit.proof.archive_format import Manifest, open_manifest
from audit.vault import Vault

_AUDITOR = "affidavit_auditor"

# Leaves are evidence and stay for ever: a month that has some has rows, in the log or in a verified archive.
_MONTHS = """
WITH kept AS (
    SELECT date_trunc('month', timestamp AT TIME ZONE 'UTC')::date AS month, count(*) AS rows, count(erased_at) AS erased
    FROM audit_logs GROUP BY 1
), sealed AS (
    SELECT month, count(*) AS leaves FROM audit_leaves GROUP BY 1
), signed AS (
    SELECT month, max(tree_size) AS size FROM audit_checkpoints GROUP BY 1
), steps AS (
    SELECT DISTINCT ON (month) month, state, rows, manifest_key, manifest_version, manifest_sha256
    FROM audit_archives ORDER BY month, step DESC
), forgotten AS (
    SELECT month, count(DISTINCT log_id) AS erased FROM audit_erasures GROUP BY 1
), keyless AS (
    SELECT month, count(*) AS keyless FROM audit_leaves l
    WHERE month IN (SELECT month FROM steps)
      AND NOT EXISTS (SELECT FROM audit_row_keys k WHERE k.log_id = l.log_id)
      AND NOT EXISTS (SELECT FROM audit_erasures e WHERE e.log_id = l.log_id)
    GROUP BY 1
)
SELECT month, c.relname IS NOT NULL,
       EXISTS (SELECT FROM audit_months t JOIN pg_class p ON p.oid = t.relation WHERE t.month = m.month), coalesce(kept.rows, 0), coalesce(leaves, 0), coalesce(size, 0),
       steps.state, EXISTS (SELECT FROM audit_archives v WHERE v.month = m.month AND v.state = 'verified'), steps.rows,
       greatest(kept.erased, forgotten.erased, 0), coalesce(keyless, 0), manifest_key, manifest_version, manifest_sha256
FROM (SELECT month FROM kept UNION SELECT month FROM sealed UNION SELECT month FROM steps) m
LEFT JOIN kept USING (month) LEFT JOIN sealed USING (month) LEFT JOIN signed USING (month) LEFT JOIN steps USING (month)
LEFT JOIN forgotten USING (month) LEFT JOIN keyless USING (month)
LEFT JOIN (pg_inherits JOIN pg_class c ON c.oid = inhrelid)
    ON inhparent = 'audit_logs'::regclass AND NOT inhdetachpending AND c.relname = to_char(month, '"audit_logs_"YYYY_MM')
ORDER BY month
"""

Read = Callable[[str, str], Awaitable[tuple[list[str], list[tuple[Any, ...]]]]]  # of a role, by a statement


@dataclass(frozen=True, slots=True)
class StoredMonth:
    """A month's records at one moment."""

    month: date
    is_attached: bool
    has_table: bool
    rows: int  # that the log shows
    leaves: int
    tree_size: int  # that was signed
    state: str | None  # of its archive
    is_verified: bool
    archived: int | None
    erased: int
    keyless: int  # of an archive: whose key is lost, and who were never erased
    manifest_key: str | None
    manifest_version: str | None
    manifest_sha256: str | None

    def tier(self, hot_from: datetime) -> str:
        if self.is_attached:
            age = "hot" if _moment(following(self.month)) > hot_from else "warm"
            return "restored" if self.state == "restored" else age
        if not self.is_verified:
            return "missing"
        return "detached" if self.has_table else "archived"

    def is_of(self, period: Period) -> bool:
        return not period.within(self.month).is_empty

    @property
    def counted(self) -> int:
        return self.rows if self.is_attached else self.archived or 0


async def read_months(read: Read) -> list[StoredMonth]:
    return [StoredMonth(*row) for row in (await read(_AUDITOR, _MONTHS))[1]]


def tier_rows(months: list[StoredMonth], period: Period, hot_from: datetime) -> list[dict[str, Any]]:
    """What people are shown: the months that the period touches, as a whole."""
    return [
        {
            "month": f"{kept.month:%Y-%m}", "tier": kept.tier(hot_from), "archive": kept.state, "rows": kept.counted,
            "leaves": kept.leaves, "signed": kept.tree_size, "erased": kept.erased,
        }
        for kept in months if kept.is_of(period)
    ]  # fmt: skip


def find_losses(months: list[StoredMonth], vault: Vault) -> list[str]:
    """What is missing, and what to do. A record of the log without a leaf, or the other way round, is told elsewhere."""
    return [words for kept in months for words in _losses_of(kept, vault)]


def _losses_of(kept: StoredMonth, vault: Vault) -> list[str]:
    name = f"{kept.month:%Y-%m}"
    if kept.is_attached:
        return []
    if not kept.is_verified:
        return [f"the {kept.leaves} records of {name} are in no table of the log and in no verified archive"]
    found = []
    if not kept.archived == kept.leaves == kept.tree_size:
        found.append(
            f"{name} has {kept.leaves} leaves, a signed tree of {kept.tree_size} and {kept.archived} archived records:"
            " run `affidavit audit verify`"
        )
    if kept.keyless:
        found.append(f"{kept.keyless} records of {name} have lost their key and were never erased")
    return [*found, *(f"the archive of {name}: {words}" for words in _lost_files(kept, vault))]


def _lost_files(kept: StoredMonth, vault: Vault) -> list[str]:
    place = (kept.manifest_key or "", kept.manifest_version or "", kept.manifest_sha256 or "")
    try:
        manifest = read_manifest(vault, *place)
    except (OSError, VaultError, ArchiveError, ValueError) as wrong:  # the last: it is no key of a vault
        return [f"its manifest cannot be read: {wrong}"]
    return [words for name in manifest.files if (words := _lost(manifest, name, vault))]


def read_manifest(vault: Vault, key: str, version: str, digest: str) -> Manifest:
    """The one that was verified."""
    content = vault.get(key, version)
    if sha256(content).hexdigest() != digest:
        raise ArchiveError("it is not the one that was verified")
    return open_manifest(content)


def _lost(manifest: Manifest, name: str, vault: Vault) -> str | None:
    """Whether the file is there in its whole length; what is in it, `affidavit audit verify --archive` says."""
    file = manifest.files[name]
    try:
        with vault.open(file.key, file.version) as source:
            size = source.seek(0, SEEK_END)
    except (OSError, VaultError) as wrong:
        return f"{name} cannot be read: {wrong}"
    return None if size == file.size else f"{name} has {size} bytes instead of {file.size}"


def _moment(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
