"""Storage tiers of the months: which tier holds each month, and whether records are missing.

Compares the counts of rows, leaves, signed trees and archived records.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date, datetime
from hashlib import sha256
from io import SEEK_END
from typing import Any

from audit.checking.evidence import Period
from audit.errors import ArchiveError, VaultError
from audit.ledger.partitions import month_start, next_month
from audit.proof.archive_format import Manifest, open_manifest
from audit.vault import Vault

AUDITOR = "affidavit_auditor"

# Leaves are evidence and are never removed, so a month with leaves must have rows, in the log or in a verified archive.
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

Read = Callable[[str, str], Awaitable[tuple[list[str], list[tuple[Any, ...]]]]]  # runs SQL in a role


@dataclass(frozen=True, slots=True)
class StoredMonth:
    month: date
    is_attached: bool
    has_table: bool
    rows: int  # in the log
    leaves: int
    tree_size: int  # signed
    state: str | None  # of its archive
    is_verified: bool
    archived: int | None
    erased: int
    keyless: int  # archived records that have lost their key and were never erased
    manifest_key: str | None
    manifest_version: str | None
    manifest_sha256: str | None

    def tier(self, hot_from: datetime) -> str:
        if self.is_attached:
            age = "hot" if month_start(next_month(self.month)) > hot_from else "warm"
            return "restored" if self.state == "restored" else age
        if not self.is_verified:
            return "missing"
        return "detached" if self.has_table else "archived"

    def overlaps(self, period: Period) -> bool:
        return not period.within(self.month).is_empty


async def read_months(read: Read) -> list[StoredMonth]:
    return [StoredMonth(*row) for row in (await read(AUDITOR, _MONTHS))[1]]


def tier_rows(months: list[StoredMonth], period: Period, hot_from: datetime) -> list[dict[str, Any]]:
    """The months that overlap the period, as rows of a table for people."""
    return [
        {
            "month": f"{stored.month:%Y-%m}", "tier": stored.tier(hot_from), "archive": stored.state,
            "rows": stored.rows if stored.is_attached else stored.archived or 0, "leaves": stored.leaves, "signed": stored.tree_size, "erased": stored.erased,
        }
        for stored in months if stored.overlaps(period)
    ]  # fmt: skip


def find_losses(months: list[StoredMonth], vault: Vault) -> list[str]:
    """What is missing from the archives, and what to do. `status.gaps` reports leaves without a row and rows without a leaf."""
    out_of_log = (stored for stored in months if not stored.is_attached)
    return [message for stored in out_of_log for message in _find_losses_of(stored, vault)]


def _find_losses_of(stored: StoredMonth, vault: Vault) -> list[str]:
    name = f"{stored.month:%Y-%m}"
    if not stored.is_verified:
        return [
            f"the {stored.leaves} records of {name} are in no table of the log and in no verified archive"
        ]
    found = []
    if not stored.archived == stored.leaves == stored.tree_size:
        found.append(
            f"{name} has {stored.leaves} leaves, a signed tree of {stored.tree_size} and {stored.archived} archived records:"
            " run `affidavit audit verify`"
        )
    if stored.keyless:
        found.append(f"{stored.keyless} records of {name} have lost their key and were never erased")
    return [*found, *(f"the archive of {name}: {message}" for message in _find_lost_files(stored, vault))]


def _find_lost_files(stored: StoredMonth, vault: Vault) -> list[str]:
    place = (stored.manifest_key or "", stored.manifest_version or "", stored.manifest_sha256 or "")
    try:
        manifest = read_manifest(vault, *place)
    except (OSError, VaultError, ArchiveError, ValueError) as wrong:  # ValueError: not a key of a vault
        return [f"its manifest cannot be read: {wrong}"]
    return [message for name in manifest.files if (message := _check_file(manifest, name, vault))]


def read_manifest(vault: Vault, key: str, version: str, digest: str) -> Manifest:
    """The manifest with the digest that was recorded when the archive was verified."""
    content = vault.get(key, version)
    if sha256(content).hexdigest() != digest:
        raise ArchiveError("it is not the manifest that was verified")
    return open_manifest(content)


def _check_file(manifest: Manifest, name: str, vault: Vault) -> str | None:
    """Check that the file exists in its full length. `affidavit audit verify --archive` checks its content."""
    file = manifest.files[name]
    try:
        with vault.open(file.key, file.version) as source:
            size = source.seek(0, SEEK_END)
    except (OSError, VaultError) as wrong:
        return f"{name} cannot be read: {wrong}"
    return None if size == file.size else f"{name} has {size} bytes instead of {file.size}"
