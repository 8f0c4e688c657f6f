"""Status report of the log: months, evidence, backlogs, spool files and gaps; and its gauges for metrics. Read-only.

One report for `affidavit audit status`, so that an auditor sees in one place whether something is missing.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

from psycopg_pool import AsyncConnectionPool

from audit.checking.evidence import EVER, Period
from audit.checking.month_tiers import AUDITOR, Read, StoredMonth, find_losses, read_months
from audit.ledger import partitions
from audit.ledger.delegated_keys import DELEGATIONS
from audit.ledger.orphans import UNSIGNED_VERSIONS
from audit.ledger.partitions import MONTHS_AHEAD, MONTHS_AHEAD_MIN, months_from, partition_name
from audit.ledger.spool import ASIDE_FILE
from audit.proof.keys import KeyRing, PublicKey
from audit.proof.row_signature import is_open_signed, is_row_signed
from audit.vault import Vault

NEAR_GATE = 0.02  # this close to the threshold, another calibration could have decided the other way
READ_OVERDUE = timedelta(minutes=17)  # an engine takes over what has not ended after 15
OVERDUE = timedelta(seconds=60)  # by then every request has ended, and its row is sealed and anchored

# Rounded, because .62 - .60 is more than .02 in binary.
_NEAR = f"(round(abs(best_score - threshold)::numeric, 6) <= {NEAR_GATE})"

# A growing share near the gate means that the questions drift away from those that it was calibrated for.
RECORDS = f"""
SELECT to_char(timestamp AT TIME ZONE 'UTC', 'YYYY-MM') AS month, count(*) AS records,
       sum(repeat_count) AS requests,
       count(*) FILTER (WHERE outcome = 'answered') AS answered,
       count(*) FILTER (WHERE outcome = 'refused') AS refused,
       count(*) FILTER (WHERE outcome = 'served') AS served,
       coalesce(sum(repeat_count) FILTER (WHERE outcome NOT IN ('answered', 'refused', 'served', 'recorded')), 0)
           AS failed,
       round(avg({_NEAR}::int) FILTER (WHERE outcome = 'answered'), 4)::float AS answers_near_gate,
       round(avg({_NEAR}::int) FILTER (WHERE outcome = 'refused'), 4)::float AS refusals_near_gate
FROM audit_logs WHERE endpoint <> 'heartbeat' GROUP BY month ORDER BY month
"""  # noqa: S608  the number is a constant

# A recursive loose index scan, month by month: there is a checkpoint for every few seconds.
_EVIDENCE = """
WITH RECURSIVE months AS (
    SELECT min(month) AS month FROM audit_checkpoints
    UNION ALL
    SELECT (SELECT min(c.month) FROM audit_checkpoints c WHERE c.month > m.month) FROM months m WHERE m.month IS NOT NULL
)
SELECT to_char(months.month, 'YYYY-MM') AS month, sealed.tree_size, sealed.created_at AS sealed_at,
       anchored.tree_size AS anchored_size, anchored.anchored_at, waiting.created_at AS waiting_since,
       sealed.note LIKE E'%\\nsigned %' AS rows_signed
FROM months
CROSS JOIN LATERAL (
    SELECT * FROM audit_checkpoints c WHERE c.month = months.month ORDER BY tree_size DESC LIMIT 1) sealed
LEFT JOIN LATERAL (
    SELECT * FROM audit_anchors a WHERE a.month = months.month ORDER BY tree_size DESC LIMIT 1) anchored ON true
LEFT JOIN LATERAL (
    SELECT created_at FROM audit_checkpoints c
    WHERE c.month = months.month AND c.tree_size > coalesce(anchored.tree_size, 0)
    ORDER BY tree_size LIMIT 1) waiting ON true
ORDER BY month
"""
# The log of heads: how many it has, the newest head in the vault, and since when a newer one waits.
_LOG_OF_HEADS = """
SELECT coalesce(newest.tree_size, 0) AS heads, coalesce(published.tree_size, 0) AS published, published.anchored_at AS published_at,
       coalesce(published.has_quorum, false) AS has_quorum, (
           SELECT min(created_at) FROM audit_heads w
           WHERE w.tree_size > coalesce(published.tree_size, 0)) AS waiting_since
FROM (SELECT) AS always
LEFT JOIN LATERAL (SELECT tree_size FROM audit_heads ORDER BY tree_size DESC LIMIT 1) newest ON true
LEFT JOIN LATERAL (SELECT * FROM audit_head_anchors ORDER BY tree_size DESC LIMIT 1) published ON true
"""
_MONTHS = """
SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid
WHERE inhparent = 'audit_logs'::regclass ORDER BY relname
"""
_UNSEALED = """
SELECT count(*), min(timestamp) FROM audit_logs l
WHERE NOT EXISTS (SELECT FROM audit_leaves WHERE log_id = l.log_id)
"""
READS_WAITING = "SELECT count(*), min(read_at) FROM audit_reads_waiting"
_ROWLESS = """
SELECT to_char(month, 'YYYY-MM'), count(*), min(leaf_index) FROM audit_leaves a
WHERE NOT EXISTS (SELECT FROM audit_logs WHERE log_id = a.log_id)
  AND to_char(month, '"audit_logs_"YYYY_MM') IN (
      SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid
      WHERE inhparent = 'audit_logs'::regclass AND NOT inhdetachpending)
GROUP BY month ORDER BY month
"""
_HISTORY = """
SELECT to_char(month, 'YYYY-MM') AS month, kept_size, lost_size, event, created_at FROM audit_breaks b ORDER BY b.month, number
"""
RECENT_ANCHORS = "SELECT vault_key FROM audit_anchors ORDER BY month DESC, tree_size DESC LIMIT 100"
_HOLDS = """
SELECT (SELECT count(*) FROM audit_holds h WHERE change = 'added' AND NOT EXISTS (
            SELECT FROM audit_holds r WHERE r.hold_id = h.hold_id AND r.change = 'released')),
       (SELECT count(*) FROM audit_erasure_requests a WHERE change = 'asked' AND NOT EXISTS (
            SELECT FROM audit_erasure_requests d WHERE d.request_id = a.request_id AND d.change = 'done'))
"""
_OPEN = "SELECT count(*), min(opened_at) FROM audit_open"
# Of a version that did not sign rows, an unsigned row is no alarm until a checkpoint of the log says that rows are signed.
_TO_CHECK = """
SELECT log_id::text, leaf_hash, timestamp, schema_version, signature FROM audit_logs l
WHERE NOT EXISTS (SELECT FROM audit_leaves WHERE log_id = l.log_id) LIMIT 10000
"""
_OPEN_TO_CHECK = (
    "SELECT log_id::text, trail, trail -> 'schema_version', signature FROM audit_open LIMIT 10000"
)
# Rows committed since the last checkpoint, with a margin for rows that arrived late, from a spool.
_RECENTLY_UNSEALED = """
SELECT count(*), coalesce(extract(epoch FROM now() - min(timestamp)), 0)::float FROM audit_logs l
WHERE timestamp >= coalesce(
        (SELECT created_at FROM audit_checkpoints ORDER BY month DESC, tree_size DESC LIMIT 1), '-infinity')
        - interval '10 minutes'
  AND NOT EXISTS (SELECT FROM audit_leaves WHERE log_id = l.log_id)
"""
_LATE = f"""
SELECT unsealed.count, unsealed.age_s, (
    SELECT coalesce(extract(epoch FROM now() - min(waiting_since)), 0)::float FROM ({_EVIDENCE}) months), (
    SELECT coalesce(extract(epoch FROM now() - waiting_since), 0)::float FROM ({_LOG_OF_HEADS}) heads)
FROM ({_RECENTLY_UNSEALED}) unsealed (count, age_s)
"""  # noqa: S608  our own statements


@dataclass(frozen=True, slots=True)
class Backlog:
    count: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file of records that wait for the database, or that the database refused."""

    name: str
    size_bytes: int
    entries: int
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class Status:
    records: list[dict[str, Any]]  # by month
    evidence: list[dict[str, Any]]  # by month
    partitions: list[str]
    months_ahead: int
    unsealed: Backlog
    open: Backlog
    rowless: list[tuple[str, int, int]]  # month of the log, leaves without a row, the first of them
    spool: list[SpoolFile]
    months: list[StoredMonth]  # of all tiers
    heads: dict[str, Any]  # the log of heads
    breaks: list[dict[str, Any]]  # what failovers and restores have lost, as operators stated it
    lost: list[str]  # messages about missing months and files
    not_ours: list[str] = field(
        default_factory=list
    )  # rows that nobody sealed and that the engine did not sign
    open_not_ours: list[str] = field(default_factory=list)  # open requests that it did not sign
    holds: int = 0  # in force
    erasures_waiting: int = 0  # for the end of a hold
    reads_waiting: Backlog = Backlog(0, None)


async def read_status(
    read: Read,
    vault: Vault,
    spool: Path | None,
    today: date,
    period: Period = EVER,
    public_keys: Sequence[PublicKey] | None = None,
) -> Status:
    """Without public keys it cannot tell which rows the engine signed."""
    names = [name for (name,) in (await read(AUDITOR, _MONTHS))[1]]
    months = await read_months(read)
    evidence = _named(*await read(AUDITOR, _EVIDENCE))
    not_ours, open_not_ours = list[str](), list[str]()
    ((holds, erasures_waiting),) = (await read(AUDITOR, _HOLDS))[1]
    if public_keys is not None:
        from_now_on = any(head["rows_signed"] for head in evidence)
        lines = [line for (line,) in (await read(AUDITOR, DELEGATIONS))[1]]
        public_keys = KeyRing.of(public_keys).with_delegations(lines)
        not_ours = _not_signed((await read(AUDITOR, _TO_CHECK))[1], public_keys, from_now_on=from_now_on)
        open_not_ours = _not_opened((await read(AUDITOR, _OPEN_TO_CHECK))[1], public_keys)
    return Status(
        records=_named(*await read(AUDITOR, RECORDS)),
        evidence=evidence,
        partitions=names,
        months_ahead=sum(name > partition_name(today) for name in names),
        unsealed=Backlog(*(await read(AUDITOR, _UNSEALED))[1][0]),
        open=Backlog(*(await read(AUDITOR, _OPEN))[1][0]),
        rowless=[(month, count, first) for month, count, first in (await read(AUDITOR, _ROWLESS))[1]],
        spool=spool_files(spool) if spool else [],
        months=months,
        heads=_named(*await read(AUDITOR, _LOG_OF_HEADS))[0],
        breaks=_named(*await read(AUDITOR, _HISTORY)),
        lost=await asyncio.to_thread(find_losses, [kept for kept in months if kept.overlaps(period)], vault),
        holds=holds,
        erasures_waiting=erasures_waiting,
        reads_waiting=Backlog(*(await read(AUDITOR, READS_WAITING))[1][0]),
        not_ours=not_ours,
        open_not_ours=open_not_ours,
    )


def _not_signed(
    rows: Sequence[tuple[Any, ...]], keys: Sequence[PublicKey], *, from_now_on: bool
) -> list[str]:
    """The ids of the rows that none of these keys signed; those of older versions too, if each is signed from now on."""
    return [
        log_id
        for log_id, leaf, timestamp, version, signature in rows
        if not is_row_signed(signature, log_id, leaf, timestamp, keys)
        and (from_now_on or signature is not None or version not in UNSIGNED_VERSIONS)
    ]


def _not_opened(rows: Sequence[tuple[Any, ...]], keys: Sequence[PublicKey]) -> list[str]:
    return [
        log_id
        for log_id, trail, version, signature in rows
        if not is_open_signed(signature, trail, keys)
        and (signature is not None or version not in UNSIGNED_VERSIONS)
    ]


def gaps(status: Status, now: datetime) -> list[str]:
    """Messages about missing or overdue records, each with what to do; empty when all is well."""
    found = _gaps_of_months(status, now.date())
    for month, count, first in status.rowless:
        found.append(
            f"{count} leaves of {month} have no row, the first is {first}: run `affidavit audit verify`"
        )
    found += [words[0].upper() + words[1:] for words in status.lost]
    found += forgeries(status)
    if status.unsealed.count > len(status.not_ours):
        found += _overdue(
            status.unsealed, "records are not sealed: check that `affidavit audit seal` is running", now
        )
    found += _overdue(
        status.open, "requests are still open: their process hangs or has died; restart the engine", now
    )
    found += _overdue(
        status.reads_waiting,
        "reads of auditors wait to be recorded: start an engine, which records them",
        now,
        READ_OVERDUE,
    )
    for head in status.evidence:
        if (since := head["waiting_since"]) and now - since > OVERDUE:
            found.append(
                f"{head['month']} has not been anchored since {_format_time(since)}: check that the vault can be written"
            )
    if (since := status.heads["waiting_since"]) and now - since > OVERDUE:
        found.append(
            f"The log of heads has not been published since {_format_time(since)}: a quorum of witnesses is required and does not"
            " answer, or the vault cannot be written; run `affidavit doctor`"
        )
    return found + _gaps_of_spool(status.spool, now)


def forgeries(status: Status) -> list[str]:
    """Messages about what the engine did not write."""
    return [
        f"{len(names)} {what}, the first is {min(names)}: somebody else can write to the database; run `affidavit audit verify`"
        for names, what in (
            (status.not_ours, "records were not signed by the engine and are not sealed"),
            (status.open_not_ours, "open requests were not opened by the engine and stay open"),
        )
        if names
    ]


def summary(status: Status) -> list[tuple[str, str]]:
    """Counts over all months, as lines for people."""
    waiting = [file for file in status.spool if file.entries]
    spooled = (
        f"{sum(file.entries for file in waiting)} entries in {len(waiting)} files" if waiting else "empty"
    )
    return [
        ("months ahead", str(status.months_ahead)),
        ("unsealed", _since(status.unsealed)),
        ("open", _since(status.open)),
        ("spool", spooled),
        ("log of heads", _published(status.heads)),
        ("reads", f"{_since(status.reads_waiting)} to be recorded"),
        ("holds", f"{status.holds} in force, {status.erasures_waiting} erasures wait"),
    ]


def _published(heads: dict[str, Any]) -> str:
    if not heads["heads"]:
        return "begins with the next anchor"
    witnessed = ", cosigned by a quorum of witnesses" if heads["has_quorum"] else ""
    return f"{heads['heads']} heads, {heads['published']} of them published{witnessed}"


def broken_histories(status: Status) -> list[str]:
    """Messages that every report repeats; nothing can be done about them any more."""
    return [
        f"{broken['month']}: a failover or a restore lost the leaves {broken['kept_size']} to {broken['lost_size'] - 1}; stated on"
        f" {_format_time(broken['created_at'])} by the record {broken['event']}"
        for broken in status.breaks
    ]  # fmt: skip


def _gaps_of_months(status: Status, today: date) -> list[str]:
    found = []
    if status.months_ahead < MONTHS_AHEAD_MIN:
        found.append(
            f"Only {status.months_ahead} of {MONTHS_AHEAD} future months have a partition: run `affidavit audit partitions`"
        )
    months = [date(int(name[-7:-3]), int(name[-2:]), 1) for name in status.partitions]
    # `find_losses` reports the lost months among these.
    months += [kept.month for kept in status.months if not kept.is_attached]
    first = min([*months, today])
    count = (today.year - first.year) * 12 + today.month - first.month + 1
    return found + [
        f"{month:%Y-%m} has no partition, so its records are missing: run `affidavit audit verify`. If it finds nothing"
        f" missing, a wrong clock left the gap: `affidavit audit partitions --from {month:%Y-%m-%d}` closes it"
        for month in months_from(first, count) if month not in months
    ]  # fmt: skip


def _gaps_of_spool(files: Sequence[SpoolFile], now: datetime) -> list[str]:
    return [
        f"{file.entries} entries in {file.name} are damaged, vanished or were refused by the database: inspect the file"
        if file.name == ASIDE_FILE
        else f"{file.entries} entries wait in {file.name} since {_format_time(file.changed_at)}: start the engine on that machine"
        for file in files
        if file.entries and (file.name == ASIDE_FILE or now - file.changed_at > OVERDUE)
    ]


def _overdue(waiting: Backlog, what: str, now: datetime, patience: timedelta = OVERDUE) -> list[str]:
    if waiting.oldest is None or now - waiting.oldest <= patience:
        return []
    return [f"{waiting.count} {what} (the oldest since {_format_time(waiting.oldest)})"]


def spool_files(folder: Path) -> list[SpoolFile]:
    found = []
    for path in sorted([*folder.glob("*.spool"), *folder.glob(ASIDE_FILE)]):
        with contextlib.suppress(FileNotFoundError):  # its process has just ended, with an empty spool
            stat = path.stat()
            changed_at = datetime.fromtimestamp(stat.st_mtime, UTC)
            with path.open("rb") as file:
                found.append(SpoolFile(path.name, stat.st_size, sum(1 for _ in file), changed_at))
    return found


def _named(names: list[str], rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]


def _since(waiting: Backlog) -> str:
    if waiting.oldest is None:
        return "none"
    return f"{waiting.count}, the oldest since {_format_time(waiting.oldest)}"


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def find_foreign_vault(vault: Vault, anchors: Sequence[str]) -> str:
    """Whether anchors that the log wrote are in another vault than this one, as happens if each replica has a folder of its own."""
    held = {key for folder in {key.rpartition("/")[0] for key in anchors} for key in vault.keys(f"{folder}/")}
    missing = [key for key in anchors if key not in held]
    if not missing:
        return ""
    return (
        f"{len(missing)} of the log's last {len(anchors)} anchors are not in this vault, the newest of them {missing[0]}: this is not"
        " the vault, or not the only one, that the log is anchored in, so `affidavit audit verify` reports MISSING, or"
        " WRONG_VAULT if it holds none. All processes of a log need the same vault: share the folder, or use a bucket (AFFIDAVIT_PROVIDERS__VAULT=s3). If it was moved,"
        " `affidavit vault copy` brings the anchors of the other one into this one; nothing is overwritten"
    )


@dataclass(frozen=True, slots=True)
class LogGauges:
    open_records: int
    unsealed_rows: int
    unsealed_age_s: float
    unanchored_age_s: float
    unpublished_age_s: float
    months_ahead: int
    spool_entries: int
    spool_bytes: int
    refused_rows: int | None  # None: another process seals
    time_stamp_age_s: float | None = None  # None: this process makes none
    signing_s: float = inf  # for which this process can sign if the key elsewhere is away


async def read_log_gauges(
    pool: AsyncConnectionPool,
    read: Read,
    spool: Path | None,
    today: date,
    refused_rows: int | None,
    signing_s: float = inf,
) -> LogGauges:
    """Cheap for a log of any length, because they are polled every few seconds. This process's sealer counts what it refuses."""
    files = await asyncio.to_thread(spool_files, spool) if spool else []
    async with pool.connection() as connection:
        (open_records, _) = await (await connection.execute(_OPEN)).fetchone() or (0, None)
    ((rows, age_s, unanchored_age_s, unpublished_age_s),) = (await read(AUDITOR, _LATE))[1]
    return LogGauges(
        open_records=open_records,
        unsealed_rows=rows,
        unsealed_age_s=age_s,
        unanchored_age_s=unanchored_age_s,
        unpublished_age_s=unpublished_age_s,
        months_ahead=await partitions.count_months_ahead(pool, today),
        spool_entries=sum(file.entries for file in files),
        spool_bytes=sum(file.size_bytes for file in files if file.entries),
        refused_rows=refused_rows,
        signing_s=signing_s,
    )
