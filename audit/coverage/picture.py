"""Months and tiers as an SVG. Each cell says by its form what it says by its colour; the table behind it has the numbers (pure)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from audit.coverage.months import MonthCoverage
from audit.markup import Markup, joined, tag

CELL, GAP, LEFT, TOP = 34, 4, 92, 34
ALL, SOME, NONE, BAD, NOTE = "all", "some", "none", "bad", "note"


class Lane(NamedTuple):
    """A row of the picture: its name, what it means, and what a month's cell says."""

    name: str
    meaning: str
    state: Callable[[MonthCoverage], str]
    count: Callable[[MonthCoverage], int]


def _share(done: int, of: int) -> str:
    if not done:
        return NONE
    return ALL if done >= of else SOME


LANES = (
    Lane("Records", "in the database or in a verified archive", lambda one: ALL if one.records else NONE, lambda one: one.records),
    Lane("Sealed", "in the month's signed tree", lambda one: _share(one.sealed, one.records), lambda one: one.sealed),
    Lane("Anchored", "below a head that is in the vault", lambda one: _share(one.anchored, one.sealed), lambda one: one.anchored),
    Lane("Witnessed", "below a head that a quorum of witnesses has cosigned", lambda one: _share(one.witnessed, one.sealed), lambda one: one.witnessed),
    Lane("Archived", "in a verified archive", lambda one: _share(one.archived, one.sealed), lambda one: one.archived),
    Lane("Missing", "sealed, but in no table and in no archive", lambda one: BAD if one.missing else NONE, lambda one: one.missing),
    Lane("Erased", "emptied on request; their proofs stay valid", lambda one: NOTE if one.erased else NONE, lambda one: one.erased),
    Lane("Held", "holds in force that may cover records of the month", lambda one: NOTE if one.holds else NONE, lambda one: one.holds),
)  # fmt: skip


def picture(months: Sequence[MonthCoverage]) -> Markup:
    """As wide as it has months; its cells have titles for the pointer, and its table is for everybody."""
    width, height = LEFT + len(months) * (CELL + GAP), TOP + len(LANES) * (CELL + GAP)
    return tag(
        "svg", _defined(), _month_names(months), [_lane(number, lane, months) for number, lane in enumerate(LANES)],
        viewBox=f"0 0 {width} {height}", width=width, height=height, class_="coverage", role="img",
        aria_label="Months and what is known of them; the table below has the numbers",
    )  # fmt: skip


def _defined() -> Markup:
    """Hatching, so that a part is told from the whole without colour."""
    line = tag("path", d="M0 6L6 0", class_="hatch-line")
    return tag("defs", tag("pattern", line, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse"))


def _month_names(months: Sequence[MonthCoverage]) -> Markup:
    """The year where it begins, the month everywhere."""
    names = []
    for place, one in enumerate(months):
        x = LEFT + place * (CELL + GAP) + CELL / 2
        if place == 0 or one.month.month == 1:
            names.append(tag("text", one.month.year, x=x, y=12, class_="label year", text_anchor="middle"))
        names.append(tag("text", f"{one.month:%m}", x=x, y=27, class_="label", text_anchor="middle"))
    return joined(names)


def _lane(number: int, lane: Lane, months: Sequence[MonthCoverage]) -> Markup:
    y = TOP + number * (CELL + GAP)
    name = tag("text", lane.name, x=0, y=y + CELL / 2 + 4, class_="lane")
    return joined(
        name, [_cell(LEFT + place * (CELL + GAP), y, lane, one) for place, one in enumerate(months)]
    )


def _cell(x: float, y: float, lane: Lane, one: MonthCoverage) -> Markup:
    state, count = lane.state(one), lane.count(one)
    said = f"{one.month:%Y-%m}: {lane.name.lower()} {count:,} ({one.tier})"
    ground = tag("rect", x=x, y=y, width=CELL, height=CELL, rx=3, class_=f"cell {state}")
    return tag("g", tag("title", said), ground, _sign(x, y, state, count))


def _sign(x: float, y: float, state: str, count: int) -> Markup | None:
    middle, below = x + CELL / 2, y + CELL / 2 + 5
    if state == SOME:
        return tag("rect", x=x, y=y, width=CELL, height=CELL, rx=3, fill="url(#hatch)")
    if state == BAD:
        return tag("text", "!", x=middle, y=below, class_="sign", text_anchor="middle")
    if state == NOTE:
        return tag("text", _short(count), x=middle, y=below - 1, class_="count", text_anchor="middle")
    return None


def _short(count: int) -> str:
    """At most four characters."""
    for unit, one in (("M", 1_000_000), ("k", 1_000)):
        if count >= one:
            return f"{count / one:.0f}{unit}"
    return str(count)
