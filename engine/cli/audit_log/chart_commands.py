"""Handlers of `affidavit audit chart` and `affidavit audit rollup`; their registry is `CHART_COMMANDS`."""

import asyncio
import json
import threading
from datetime import datetime, time, timedelta
from pathlib import Path

from audit.charts.drawing.drawn import csv, svg
from audit.charts.figures.catalogue import NAMES, chart_of
from audit.charts.figures.chart import Chart
from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups.rollup import Rollup
from audit.progress import Progress
from engine import wiring
from engine.cli import output
from engine.cli.output import JSON, Arguments, Command, argument, say
from engine.settings import Settings
from engine.storage.database import Database

DAYS = 30  # of a chart, unless --from says otherwise


async def chart(settings: Settings, arguments: Arguments) -> int:
    """Draw a chart of sealed records as SVG, or print its numbers as CSV; by whole days in UTC, the last 30 by default."""
    try:
        choice = _choice(arguments)
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    async with wiring.open_existing_database(settings) as database:
        drawn = await asyncio.to_thread(_chart, settings, database, arguments.name, choice)
    if arguments.output is None:
        print(csv(drawn).removeprefix("\ufeff"), end="")
    elif arguments.output.suffix == ".svg":
        arguments.output.write_text(svg(drawn), "utf-8")
    else:
        arguments.output.write_text(csv(drawn), "utf-8", newline="")
    say(output.visible(f"{drawn.title}: {drawn.description} {drawn.note}".rstrip()))
    return 0


def _choice(arguments: Arguments) -> ChartChoice:
    """`ValueError` with words for whoever typed it."""
    if arguments.output and arguments.output.suffix not in {".svg", ".csv"}:
        raise ValueError("Name a file that ends with .svg or .csv: -o FILE.")
    given: list[datetime | None] = [arguments.since, arguments.until]
    if any(moment and moment.timetz() != time(tzinfo=moment.tzinfo) for moment in given):
        raise ValueError("Charts are by whole days: give dates, as --from 2026-11-01 --to 2026-12-01.")
    tomorrow = wiring.now().date() + timedelta(days=1)
    until = arguments.until.date() if arguments.until else tomorrow
    since = arguments.since.date() if arguments.since else until - timedelta(days=DAYS)
    if since >= until:
        raise ValueError("The period is empty: --to is the first day that is not drawn.")
    return ChartChoice(since, until, arguments.book, arguments.client, arguments.outcome)


def _chart(settings: Settings, database: Database, name: str, choice: ChartChoice) -> Chart:
    with wiring.open_chart_log(settings, database, choice) as log:
        return chart_of(name, log, settings.prices.by_model, settings.prices.currency)


async def rollup(settings: Settings, arguments: Arguments) -> int:
    """Count the sealed records that are in no rollup yet; with --check recompute all rollups and name each difference.

    Charts are drawn from rollups. `serve` makes them once a day is over; none is needed for a chart to be right.
    """
    is_over = threading.Event()
    show = output.progress()

    def show_or_stop(what: str, done: int, of: int) -> None:
        if is_over.is_set():
            raise InterruptedError
        show(what, done, of)

    async with wiring.open_existing_database(settings) as database:
        work = _check if arguments.check else _make
        try:
            found = await asyncio.to_thread(work, settings, database, show_or_stop)
        finally:
            is_over.set()
    if arguments.json:
        print(json.dumps(found))
    else:
        nothing = (
            "Every rollup is what the sealed rows give." if arguments.check else "No rollup was missing."
        )
        print("\n".join(map(output.visible, found)) or nothing)
    return output.FOUND_SOMETHING if arguments.check and found else 0


def _make(settings: Settings, database: Database, show: Progress) -> list[str]:
    with wiring.open_rollup_keeper(settings, database) as keeper:
        return [_named(made) for made in keeper.make(show)]


def _named(made: Rollup) -> str:
    return f"{made}, under the head of {made.tree_size} leaves with the root {made.root.hex()}"


def _check(settings: Settings, database: Database, show: Progress) -> list[str]:
    with wiring.open_rollup_check(settings, database) as check:
        return check.differences(show)


_DAY = "whole days in UTC; default: the last 30"
CHART_COMMANDS: dict[str, Command] = {
    "audit chart": Command(
        chart, "affidavit audit chart refusals --from 2026-11-01 --to 2026-12-01 --book physical-ai -o refusals.svg",
        (
            argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES)),
            argument("--from", dest="since", type=output.moment, metavar="DATE", help=f"the first day ({_DAY})"),
            argument("--to", dest="until", type=output.moment, metavar="DATE", help="the first day that is not drawn"),
            argument("--book", type=output.book_id, metavar="BOOK", help="only this book"),
            argument("--client", metavar="ID", help="only this client"),
            argument("--outcome", metavar="OUTCOME", help="only requests that ended so, as refused"),
            argument("-o", dest="output", type=Path, metavar="FILE", help="an SVG picture or a CSV table, by its ending (default: CSV on standard output)"),
        ),
    ),
    "audit rollup": Command(
        rollup, "affidavit audit rollup --check",
        (argument("--check", action="store_true", help="change nothing: recompute all rollups, and exit with 1 at a difference"), JSON),
    ),
}  # fmt: skip
