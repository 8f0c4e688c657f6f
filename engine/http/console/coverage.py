"""Coverage: which months the log has, in which tier, and what is wrong with it."""

from audit.checking.status import Status, gaps
from audit.markup import Markup, joined, tag
from engine.http.console import layout
from engine.http.console.visit import Sheet, Visit


async def show(visit: Visit) -> Sheet:
    status = await visit.house.read_status()
    return Sheet("Coverage", joined(_alarms(gaps(status, visit.house.engine.clock())), _months(status)))


def _alarms(found: list[str]) -> Markup:
    if not found:
        return tag("p", "No alarm: nothing is missing, overdue or forged.", class_="well")
    return tag("ul", [tag("li", each, class_="alarm") for each in found], class_="alarms")


def _months(status: Status) -> Markup:
    rows = [
        (f"{stored.month:%Y-%m}", stored.rows, stored.leaves, stored.tree_size, stored.state or "", stored.erased)
        for stored in reversed(status.months)
    ]  # fmt: skip
    headings = ("Month", "Rows", "Sealed", "Signed", "Archive", "Erased")
    return layout.table(headings, rows, "Months of the log, the newest first")
