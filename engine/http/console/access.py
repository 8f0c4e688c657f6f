"""Who read what, and the requests to see what is masked: asking, and a lead's approval."""

from collections.abc import Sequence
from typing import Any

from audit.access.approvals import UnmaskRequest
from audit.erasure.target import ErasureTarget, check_basis
from audit.markup import Markup, joined, table, tag
from engine.errors import InvalidFieldError
from engine.http.console import layout
from engine.http.console.visit import Role, SeeOther, Sheet, Visit
from engine.storage.database import borrowed

PATH = "/console/access"
REQUESTS = "/console/access/requests"
DAYS = 7
DAYS_MAX = 366
SHOWN_MAX = 200

_READS = """
SELECT read_at, who, role, through, asked_for, personal_columns, records, basis, second_person, outcome FROM audit_access
WHERE recorded_at > %s::timestamptz - %s * interval '1 day' ORDER BY recorded_at DESC LIMIT %s
"""
_HEADINGS = ("Read at (UTC)", "Who", "Through", "Asked for", "Columns", "Records", "Basis", "Second person")


async def show(visit: Visit) -> Sheet:
    days = _days(visit.query.get("days", str(DAYS)))
    visit.note_access(filter=f"reads of the last {days} days", columns=["details"], records=None)
    async with borrowed(visit.house.console_pool) as connection:
        cursor = await connection.execute(_READS, (visit.house.engine.clock(), days, SHOWN_MAX))
        reads = await cursor.fetchall()
    visit.note_access(filter=f"reads of the last {days} days", columns=["details"], records=len(reads))
    return Sheet("Who read what", joined(_period(days), _reads(reads, days), _link(visit)))


async def show_requests(visit: Visit) -> Sheet:
    """A page of its own: the reads may be masked for whoever asks."""
    return Sheet("Requests to see what is masked", _requests(visit, await visit.house.unmask_requests()))


async def act(visit: Visit) -> SeeOther:
    """Ask, or approve what another person asked. The request's own row is all that there is of either."""
    if "request" in visit.form:
        visit.require(Role.LEAD)
        await _approve(visit, visit.form["request"])
    else:
        basis = visit.form.get("basis", "").strip()
        try:
            check_basis(basis, ErasureTarget())
        except ValueError as wrong:
            raise InvalidFieldError(str(wrong)) from None
        visit.note(asks={"who": visit.who, "role": visit.role.word, "basis": basis})
    return SeeOther(REQUESTS)


async def _approve(visit: Visit, named: str) -> None:
    found = [each for each in await visit.house.unmask_requests() if str(each.request_id) == named]
    if not found:
        raise InvalidFieldError("There is no such request, or it is too old.")
    if refusal := found[0].refusal_of(visit.who):
        raise InvalidFieldError(refusal)
    visit.note(approves={"request": named, "who": visit.who})


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= DAYS_MAX):
        raise InvalidFieldError(f"days is a whole number from 1 to {DAYS_MAX}.")
    return int(text)


def _period(days: int) -> Markup:
    field = tag("label", "Days ", tag("input", type="number", name="days", value=days, min=1, max=DAYS_MAX))
    button = tag("button", "Show", type="submit")
    return tag("form", tag("div", field, button, class_="actions"), method="get", action=PATH)


def _reads(reads: Sequence[tuple[Any, ...]], days: int) -> Markup:
    if not reads:
        return tag("p", f"Nobody read personal columns in the last {days} days.", class_="calm")
    rows = [
        (
            f"{at:%Y-%m-%d %H:%M:%S}", joined(who, " ", tag("span", role, class_="role")), through, tag("code", asked_for),
            (columns or "").strip("[]").replace('"', ""), joined(records, _ended(outcome)), basis, second,
        )
        for at, who, role, through, asked_for, columns, records, basis, second, outcome in reads
    ]  # fmt: skip
    return table(_HEADINGS, rows, f"Reads of personal columns, the newest first, at most {SHOWN_MAX}")


def _ended(outcome: str) -> str:
    return "" if outcome in {"recorded", "served"} else f" ({outcome})"


def _link(visit: Visit) -> Markup | None:
    if not visit.house.access_policy.second_person:
        return None
    return tag("p", tag("a", "Requests to see what is masked", href=REQUESTS))


def _requests(visit: Visit, requests: Sequence[UnmaskRequest]) -> Markup:
    basis = tag("label", "Reason ", tag("input", name="basis", required=True, maxlength=200))
    asking = layout.form(
        visit, REQUESTS, tag("div", basis, tag("button", "Ask", type="submit"), class_="actions")
    )
    rows = [
        (
            tag("code", each.request_id), f"{each.asked_at:%Y-%m-%d %H:%M}", each.who, each.basis,
            each.approved_by or _approval(visit, each),
        )
        for each in requests
    ]  # fmt: skip
    headings = ("Request", "Asked at (UTC)", "Who", "Reason", "Approved by")
    listed = table(headings, rows, "Requests that still count") if rows else tag("p", "Nobody asks.")
    return joined(asking, listed)


def _approval(visit: Visit, request: UnmaskRequest) -> Markup | str:
    if visit.role < Role.LEAD or request.refusal_of(visit.who):
        return "nobody yet"
    hidden = tag("input", type="hidden", name="request", value=str(request.request_id))
    return layout.form(visit, REQUESTS, hidden, tag("button", "Approve", type="submit"))
