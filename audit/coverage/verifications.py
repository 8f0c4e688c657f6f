"""Runs of `audit verify`: the one that is under way, the last verdict, and what a run's record says.

The verdict is a record of the log, sealed like any other. The table `verification_runs` only finds it, and shows how far a run is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from audit.proof.verdict import Report

COMMAND = "audit verify"
FINDINGS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class VerificationRun:
    """A verification. While it is under way it has no verdict."""

    begun_at: datetime
    asked_by: str | None
    is_running: bool
    what: str | None = None  # that is being counted
    done: int = 0
    total: int = 0
    ended_at: datetime | None = None
    log_id: str | None = None
    details: Mapping[str, Any] | None = (
        None  # of its record; none if that was erased, archived or never written
    )

    @property
    def verdict(self) -> str | None:
        return (self.details or {}).get("verdict")


class LogVerifier(Protocol):
    """Starts verifications in the background, and knows the last one."""

    @property
    def can_start(self) -> bool: ...

    async def start(self, client_id: str, key_id: str | None) -> bool:
        """False if one is running: two would only slow each other down."""

    async def newest(self) -> VerificationRun | None: ...


def reason_of(said: Mapping[str, Any]) -> str:
    """It stays when the details are erased or archived, so it says whether the whole log was verified."""
    part = " of a part" if said.get("since") or said.get("until") else ""
    return f"verdict {said['verdict']}{part}"


def about(report: Report, since: datetime | None, until: datetime | None, seconds: float) -> dict[str, Any]:
    """What the record of a run says. Findings have no word of a reader."""
    return {
        "verdict": str(report.verdict), "checked": report.checked, "counted": report.counted, "seconds": round(seconds, 1),
        "since": since and since.isoformat(), "until": until and until.isoformat(),
        "findings": [str(finding) for finding in report.findings[:FINDINGS_SHOWN]],
        "findings_left_off": report.findings_left_off + len(report.findings[FINDINGS_SHOWN:]),
    }  # fmt: skip
