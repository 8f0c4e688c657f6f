"""Coverage: which months the log has and what is known of them, what is wrong, and what the last verification found."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from audit.checking.status import broken_histories, gaps, summary
from audit.coverage.months import MonthCoverage
from audit.coverage.picture import LANES, picture
from audit.coverage.recent import Coverage
from audit.coverage.verifications import VerificationRun
from audit.markup import Markup, joined, table, tag
from audit.proof.verdict import PROVEN, WHOLE, Verdict
from engine.http.console import layout
from engine.http.console.visit import SeeOther, Sheet, Visit

VERIFICATION = "/console/verification"
MONTHS_SHOWN = 24
REFRESH_S = 2

_MEANINGS = {
    Verdict.VALID: "Every record is what the engine wrote, none is missing, and the vault's anchors agree.",
    Verdict.ERASED: "All is as it was written; records that were erased on request are proven too.",
    Verdict.ARCHIVED: "The database is whole; the archived months are verified with affidavit audit verify --archive.",
    Verdict.UNSEALED: "Some records wait longer for their seal than they should. See the alarms.",
    Verdict.LOST_BY_FAILOVER: "What there is, is proven. An operator stated what a failover or a restore has lost.",
    Verdict.CANNOT_TELL: "Something that the verdict needs is not there or cannot be read. The findings say what.",
    Verdict.WRONG_VAULT: "This vault has no anchor of this log: it is another one, or it was emptied.",
    Verdict.MISSING: "Records or heads that were signed are gone. Keep the database and the vault as they are, and ask who had access.",
    Verdict.TAMPERED: "Something differs from what was signed. Keep the database and the vault as they are, and ask who had access.",
}  # fmt: skip


async def show(visit: Visit) -> Sheet:
    run, coverage = await visit.house.verifier.newest(), await visit.house.coverage.get()
    last = _last_verification(visit, run)
    if coverage is None:
        waiting = tag("p", "The log is being counted. This page loads again by itself.", class_="calm")
        return Sheet("Coverage", joined(last, waiting), refresh_s=REFRESH_S)
    body = joined(
        _alarms(coverage, visit.house.engine.clock()), last, _months(visit, coverage), _state(coverage)
    )
    return Sheet("Coverage", body)


async def show_verification(visit: Visit) -> Sheet:
    """The last run with its findings, or how far the one is that is under way."""
    run = await visit.house.verifier.newest()
    if run is None:
        return Sheet("Verification", _last_verification(visit, None))
    if run.is_running:
        return Sheet("Verification", _progress(run), refresh_s=REFRESH_S)
    return Sheet("Verification", joined(_last_verification(visit, run), _findings(run.details or {})))


async def verify(visit: Visit) -> SeeOther:
    """Starts a run, or shows the one that is under way."""
    is_started = await visit.house.verifier.start(visit.who, visit.client.key_id)
    visit.note(console="verification started" if is_started else "verification is running")
    return SeeOther(VERIFICATION)


def _alarms(coverage: Coverage, now: datetime) -> Markup:
    status = coverage.status
    alarms = [tag("li", layout.said_by_us(words), class_="alarm") for words in gaps(status, now)]
    notes = [tag("li", layout.said_by_us(words), class_="calm") for words in broken_histories(status)]
    if status.holds:
        waiting = (
            f" {status.erasures_waiting} erasures wait for their end." if status.erasures_waiting else ""
        )
        notes.append(
            tag(
                "li",
                f"Holds in force: {status.holds}. What they cover is not erased.{waiting}",
                class_="calm",
            )
        )
    well = None if alarms else tag("li", "No alarm: nothing is missing, overdue or forged.", class_="well")
    return tag(
        "section", tag("h2", "Alarms", class_="unseen"), tag("ul", well, alarms, notes, class_="alarms")
    )


def _last_verification(visit: Visit, run: VerificationRun | None) -> Markup:
    button = (
        layout.form(visit, VERIFICATION, tag("button", "Verify now", type="submit", class_="primary"))
        if visit.house.verifier.can_start
        else tag("p", "To verify it now, run ", tag("code", "affidavit audit verify"), ".")
    )
    if run is None:
        said = tag(
            "p",
            "Nothing on record: nobody has verified this log yet, or not as somebody who can write to it.",
        )
    elif run.is_running:
        return tag("section", tag("h2", "Verification"), _progress(run), class_="panel")
    else:
        said = _verdict(run)
    return tag("section", tag("h2", "Last verification"), said, button, class_="panel")


def _verdict(run: VerificationRun) -> Markup:
    details = run.details or {}
    verdict = run.verdict
    kind = "good" if verdict in WHOLE | PROVEN else "unsure" if verdict in _UNSURE else "bad"
    meaning = (
        _MEANINGS.get(Verdict(verdict), "")
        if verdict in _MEANINGS
        else details.get("failed", "It has no verdict on record.")
    )
    when = f"{run.ended_at:%Y-%m-%d %H:%M} UTC" if run.ended_at else ""
    parts = [f"{details.get('checked', 0):,} records", f"{details.get('seconds', 0)} s", when]
    if run.asked_by:
        parts.append(f"asked for by {run.asked_by}")
    if details.get("since") or details.get("until"):
        parts.append(
            f"only from {details.get('since') or 'the beginning'} to {details.get('until') or 'the end'}"
        )
    link = tag("a", "Findings and counts", href=VERIFICATION)
    return joined(
        tag("p", tag("span", verdict or "NO VERDICT", class_=f"verdict large {kind}")),
        tag("p", meaning),
        tag("p", " · ".join(parts), " · ", link, class_="small"),
    )


_UNSURE = frozenset({Verdict.CANNOT_TELL, Verdict.UNSEALED, Verdict.ARCHIVED})


def _findings(details: Mapping[str, Any]) -> Markup:
    found = [tag("li", layout.said_by_us(words), class_="alarm") for words in details.get("findings", ())]
    if left_off := details.get("findings_left_off"):
        found.append(tag("li", f"and {left_off:,} more: run affidavit audit verify", class_="calm"))
    listed = tag("ul", found, class_="alarms") if found else tag("p", "No findings.")
    counted = [tag("li", f"{number:,} {what}") for what, number in details.get("counted", {}).items()]
    return joined(
        tag("h2", "Findings"), listed, [tag("h2", "Counted"), tag("ul", counted)] if counted else None
    )


def _progress(run: VerificationRun) -> Markup:
    words = f"{run.done:,} of {run.total:,} {run.what}" if run.total else "It has begun."
    bar = tag("progress", words, value=run.done, max=run.total or 1, aria_label="Progress")
    began = f"Begun at {run.begun_at:%H:%M:%S} UTC, asked for by {run.asked_by}."
    return joined(
        tag("p", words, role="status"), bar,
        tag("p", began, " It goes on if you leave this page, and its verdict is put on record.", class_="small"),
        tag("p", tag("a", "Look again", href=VERIFICATION)),
    )  # fmt: skip


def _months(visit: Visit, coverage: Coverage) -> Markup:
    shows_all = visit.query.get("months") == "all"
    months = coverage.months if shows_all else coverage.months[-MONTHS_SHOWN:]
    if not months:
        return tag("p", "No month has a record yet.")
    left_off = len(coverage.months) - len(months)
    more = tag("p", tag("a", f"Show {left_off} earlier months", href="?months=all")) if left_off else None
    said = f"Each column is a month, each lane what is known of it. Counted at {coverage.at:%Y-%m-%d %H:%M:%S} UTC."
    return joined(
        tag("h2", "Months"),
        layout.figure("Months", said, picture(months)),
        _legend(), more,
        tag("details", tag("summary", "The numbers"), _table(months)),
    )  # fmt: skip


def _legend() -> Markup:
    meanings = [(lane.name, lane.meaning) for lane in LANES]
    cells = [
        ("all", "All of it"),
        ("some", "Not all of it yet"),
        ("none", "None"),
        ("bad", "Missing"),
        ("note", "Some, as a number"),
    ]
    shown = [tag("li", tag("span", class_=f"swatch {state}"), words) for state, words in cells]
    return tag(
        "details",
        tag("summary", "What the lanes and the cells mean"),
        tag("ul", shown, class_="swatches"),
        layout.facts(meanings),
    )


def _table(months: list[MonthCoverage]) -> Markup:
    rows = [
        (f"{one.month:%Y-%m}", one.tier, *(f"{lane.count(one):,}" for lane in LANES))
        for one in reversed(months)
    ]
    return table(
        ("Month", "Tier", *(lane.name for lane in LANES)), rows, "Records of each month, the newest first"
    )


def _state(coverage: Coverage) -> Markup:
    return joined(
        tag("h2", "State"),
        layout.facts([(name.capitalize(), value) for name, value in summary(coverage.status)]),
    )
