"""Compares the vault's time stamps with the heads that they are of. Pure but for the port."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from audit.errors import TimeStampError
from audit.heads.vaulted import HeadSource, list_heads
from audit.proof.verdict import Finding, Report, Verdict
from audit.stamps.stored import StoredStamp, list_stamps, read_chains, read_stamp

LATE = timedelta(days=2)  # one is made each day


@dataclass(frozen=True, slots=True)
class StampRules:
    """The certificates of the authorities that are believed, and whether heads must be stamped."""

    pinned: Sequence[x509.Certificate]
    is_required: bool = False


def check_stamps(
    vault: HeadSource, rules: StampRules, newest: int | None, now: datetime, report: Report
) -> None:
    """`newest` is the size of the log of heads in the database; None if it has none of that kind."""
    stamps, times = list_stamps(vault), list[datetime]()
    if stamps and not rules.pinned:
        report.count("time stamps were not judged: set time_stamps.certificates", len(stamps))
        return
    others, damaged = read_chains(vault)
    for key in damaged:
        message = f"{key} in the vault is not what was stored: another chain, or none"
        report.add(Finding(Verdict.TAMPERED, "time stamp", message))
    for stored in stamps:
        finding, time = _judged(vault, stored, rules, others, newest)
        if finding:
            report.add(finding)
        elif time:
            times.append(time)
    if times:
        report.count(f"time stamps are of heads in the vault, the last of {_written(max(times))}", len(times))
    if message := _lateness(max(times, default=None), now) if list_heads(vault).sizes else "":
        if rules.is_required:
            report.add(Finding(Verdict.MISSING, "time stamp", message))
        elif times:
            report.count(f"days without a time stamp, since {_written(max(times))}", (now - max(times)).days)


def _judged(
    vault: HeadSource,
    stored: StoredStamp,
    rules: StampRules,
    others: Sequence[x509.Certificate],
    newest: int | None,
) -> tuple[Finding | None, datetime | None]:
    try:
        stamp = read_stamp(vault, stored, rules.pinned, others)
    except FileNotFoundError:
        message = (
            f"The head of {stored.size} entries was stamped ({stored.key}), and the vault no longer has it"
        )
        return Finding(Verdict.MISSING, "time stamp", message), None
    except TimeStampError as wrong:
        return Finding(Verdict.TAMPERED, "time stamp", f"{stored.key}: {wrong}"), None
    if newest is not None and newest < stored.size:
        message = (
            f"On {_written(stamp.time)} an authority stamped the head of {stored.size} entries, and the log of heads has"
            f" {newest}: it was set back to an older copy"
        )
        return Finding(Verdict.MISSING, "time stamp", message), None
    return None, stamp.time


def _lateness(last: datetime | None, now: datetime) -> str:
    if last is None:
        return "Time stamps are required, and no head of the log of heads has one"
    if now - last > LATE:
        return f"Time stamps are required, and nothing was stamped since {_written(last)}"
    return ""


def _written(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
