"""Console benchmark: the console over a year of records, with eight auditors at once, and readers beside them.

Run as `python -m bench.console [--rows 1000000] [--seconds 8] [--folder FOLDER]`. `bench.console_log` makes the log; with --folder it is
kept there, and measured again without being made again. Eight auditors at once ask for one kind of page without a pause, each for
another client, word or record, so that none is served with what another one has had drawn. Beside readers they are once people,
who look at a page for two to three seconds before they open the next one, and once eight programs without a pause. Readers ask either
without a pause over four connections, which takes all processors, or as a site of sixteen questions a second.
"""

import argparse
import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import httpx
import psycopg

from audit.charts.drawing.drawn import svg
from audit.charts.figures.catalogue import NAMES, chart_of
from audit.charts.figures.chart_log import LiveCounts
from audit.charts.figures.choice import ChartChoice
from bench.console_log import ARABIC, CHINESE, COMMON, PROVEN, RARE, UNCOMMON, MadeLog
from bench.load import QUESTIONS, _crowd, _prepare, _request, _serving, _status
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.http.console.charts import DRAWING, LATER, REFRESH_S
from engine.signing import signing_key_of
from engine.storage.database import Database
from engine.wiring import now

ROWS, SECONDS = 1_000_000, 8.0
AUDITORS, READERS, ROUNDS, RUNS = 8, 4, 3, 5
PAGES_MIN = 16  # of each kind, however long they take
THINK_S = (2.0, 3.0)  # a person looks at a page
SITE_READERS, SITE_PAUSE_S = 8, 0.5
CHART_S, SEARCH_S, RECORD_S, RATIO = 2.0, 1.0, 0.3, 1.10

# The same numbers without rollups, as an auditor would ask for them.
_DIRECT = (
    "SELECT timestamp::date, outcome, sum(repeat_count) FROM audit_logs WHERE timestamp >= %s GROUP BY 1, 2"
)
_RECORDS = """
SELECT query_id FROM audit_logs WHERE log_id IN (SELECT log_id FROM audit_leaves WHERE month = %s AND leaf_index = ANY(%s))
"""


@dataclass(slots=True)
class Pages:
    """Addresses that auditors open, by kind. Every one is taken once before one comes again."""

    by_kind: dict[str, Iterator[str]]
    took_s: dict[str, list[float]] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, kind: str, seconds: float) -> None:
        taken = self.took_s.setdefault(kind, [])
        taken.append(seconds)
        if len(taken) >= PAGES_MIN:
            self.came.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--folder", type=Path, help="where the log is kept, for another run")
    arguments = parser.parse_args()
    os.environ["AFFIDAVIT_AUDIT__SEAL_IN_SERVE"] = "false"  # what is made here was never sealed
    with tempfile.TemporaryDirectory(prefix="affidavit-console-", ignore_cleanup_errors=True) as scratch:
        folder = str(arguments.folder or scratch)
        figures = asyncio.run(_measured(folder, arguments.rows, arguments.seconds))
    record("console", [asdict(figure) for figure in figures])


async def _measured(folder: str, rows: int, seconds: float) -> list[Figure]:
    settings = settings_file.load(data_dir=Path(folder))
    figures: list[Figure] = []
    async with wiring.open_database(settings, lambda _: None) as database:
        reader_key = await _prepare(database)
        if not _is_made(database):
            await asyncio.to_thread(_make, database, rows)
        async with wiring.open_keys(database) as keys:
            audit_key = await keys.create("bench", ["audit"], "1000000/second")
        async with _serving(folder) as (pid, port):
            measured = [
                _sizes(database), _charts(database), _many_pages(database, port, audit_key, seconds),
                _beside(database, pid, port, (reader_key, audit_key), seconds),
            ]  # fmt: skip
            for part in measured:
                async for figure in part:
                    show(figure)
                    figures.append(figure)
    return figures


def _is_made(database: Database) -> bool:
    with psycopg.connect(database.url) as connection:
        return connection.execute("SELECT FROM audit_rollups LIMIT 1").fetchone() is not None


def _make(database: Database, rows: int) -> None:
    """With the search indexes and the rollups of the months, as a log has them after a year."""
    made = MadeLog.of(database.url, rows, signing_key_of(database.settings, list), now())
    made.make()
    asyncio.run(wiring.build_search_indexes(database, now().date()))
    with wiring.open_rollup_keeper(database.settings, database) as keeper:
        made_s = _timed(lambda: keeper.make(lambda *_: None))
    made.anchor_newest()
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("ANALYZE audit_rollup_counts, audit_rollup_sums")
    show(Figure("rollups: records counted per second", round(rows / made_s), ""))


async def _sizes(database: Database) -> AsyncIterator[Figure]:
    with psycopg.connect(database.url) as connection:
        for what, statement in (
            ("records", "SELECT count(*) FROM audit_leaves"),
            ("counts that their rollups have", "SELECT count(*) FROM audit_rollup_counts"),
            ("sums over all books and clients", "SELECT count(*) FROM audit_rollup_sums"),
            (
                "gigabytes of the database",
                "SELECT round(pg_database_size(current_database()) / 1e9, 1)::float",
            ),
        ):
            ((value,),) = connection.execute(statement.encode()).fetchall()
            yield Figure(what, value, "")


async def _charts(database: Database) -> AsyncIterator[Figure]:
    """As the process that draws: what is in no rollup is counted for the first chart alone."""
    year, live = _year(), LiveCounts()
    first_s = round(_timed(lambda: _draw(database, year, NAMES, live)), 3)
    yield Figure("all charts of a page, alone, for the first time, s", first_s, "")
    for name in NAMES:
        took_s = _median_s(partial(_draw, database, year, [name], live))
        yield Figure(f"chart {name}, of a year, alone, s", took_s, f"≤ {CHART_S:g}")
    yield Figure("all charts of a page, alone, s", _median_s(partial(_draw, database, year, NAMES, live)), "")
    with psycopg.connect(database.url, autocommit=True) as connection:
        direct_s = _timed(lambda: connection.execute(_DIRECT, (year.since,)).fetchall())
    yield Figure("the numbers of outcomes from the records themselves, s", round(direct_s, 3), "")


def _draw(database: Database, choice: ChartChoice, names: Sequence[str], live: LiveCounts) -> None:
    with wiring.open_chart_log(database.settings, database, choice, live=live) as log:
        for name in names:
            svg(chart_of(name, log, {}, "USD"))


def _year() -> ChartChoice:
    until = now().date() + timedelta(days=1)
    return ChartChoice(until - timedelta(days=365), until)


def _pages(database: Database) -> Pages:
    year = _year()
    months = [year.until.replace(day=1), (year.until.replace(day=1) - timedelta(days=70)).replace(day=1)]
    charts = {
        f"page of all charts, {words}, {how}": [
            ChartChoice(year.until - timedelta(days=days), year.until, None, client).query()
            for client in clients
        ]
        for words, days in (("30 days", 30), ("a year", 365))
        for how, clients in (
            ("the same for all", [None]),
            ("one client", [f"client-{number}" for number in range(12)]),
        )
    }
    searches = {
        "a rare word": [{"text": RARE}], "an uncommon word": [{"text": UNCOMMON}], "a word of all records": [{"text": COMMON}],
        "two words": [{"text": f"{word} {UNCOMMON}"} for word in ("what", "the", "and")],
        "an Arabic word": [{"text": ARABIC}], "a Chinese word": [{"text": CHINESE}],
        "filters": [{"client": f"client-{number}", "outcome": "refused", "reason": "not_covered"} for number in range(12)],
        "a filter and a word": [{"client": f"client-{number}", "text": UNCOMMON} for number in range(12)],
        "a word that nobody wrote": [{"text": "quetzalcoatlus"}],
    }  # fmt: skip
    found = {month: _some_records(database, month) for month in months}
    by_kind = {kind: [f"/console/charts?{query}" for query in queries] for kind, queries in charts.items()}
    by_kind |= {
        f"search for {kind}": [f"/console/search?{urlencode(each)}" for each in given]
        for kind, given in searches.items()
    }
    by_kind["search for an id"] = [f"/console/search?text={each}" for each in found[months[0]]]
    by_kind["record of the current month"] = [f"/console/records/{each}" for each in found[months[0]]]
    by_kind["record of an earlier month"] = [f"/console/records/{each}" for each in found[months[1]]]
    by_kind["coverage"] = ["/console"]
    return Pages({kind: itertools.cycle(addresses) for kind, addresses in by_kind.items()})


def _some_records(database: Database, month: object) -> list[object]:
    """Spread over the month, and the last ones, of which some can be proven."""
    with psycopg.connect(database.url) as connection:
        ((size,),) = connection.execute(
            "SELECT count(*) FROM audit_leaves WHERE month = %s", (month,)
        ).fetchall()
        chosen = [*range(0, size, max(1, size // 200)), *range(size - 100 - PROVEN, size - 100)]
        return [query_id for (query_id,) in connection.execute(_RECORDS, (month, chosen))]


async def _many_pages(database: Database, port: int, key: str, seconds: float) -> AsyncIterator[Figure]:
    """One kind after the other."""
    pages = _pages(database)
    goals = {"page": CHART_S, "search": SEARCH_S, "record": RECORD_S}
    for kind in pages.by_kind:
        goal = goals.get(kind.split()[0])
        pages.came.clear()
        async with _looking(port, key, pages, [kind], (0.0, 0.0)):
            await asyncio.sleep(seconds)
            await pages.came.wait()
        taken = pages.took_s[kind]
        first, p50, p99 = taken[0], statistics.median(taken), _p99(taken)
        yield Figure(f"{kind}: p50 of {len(taken)}, {AUDITORS} auditors at once, s", round(p50, 3), "")
        yield Figure(f"{kind}: p99, s", round(p99, 3), f"≤ {goal:g}" if goal else "")
        yield Figure(f"{kind}: the first one, s", round(first, 3), "")


async def _beside(
    database: Database, pid: int, port: int, keys: tuple[str, str], seconds: float
) -> AsyncIterator[Figure]:
    """Alternates, so that other load on this machine affects both alike."""
    reader_key, audit_key = keys
    pages = _pages(database)
    loads: dict[str, Callable[[], object]] = {
        "a site's readers": lambda: _site(port, reader_key, 2 * seconds),
        "readers without a pause": lambda: _without_pause(port, reader_key, seconds, pid),
    }
    for who, load in loads.items():
        for how, pause_s in (("people", THINK_S), ("programs", (0.0, 0.0))):
            alone, beside = list[float](), list[float]()
            for _ in range(ROUNDS):
                alone += await load()  # type: ignore[misc]
                async with _looking(port, audit_key, pages, list(pages.by_kind), pause_s):
                    beside += await load()  # type: ignore[misc]
            for share, name in ((50, "p50"), (99, "p99")):
                alone_ms, beside_ms = (
                    statistics.quantiles(times, n=100)[share - 1] for times in (alone, beside)
                )
                goal = f"≤ {RATIO}" if (share, how) == (99, "people") else ""
                words = f"{who} beside {AUDITORS} auditors, {how}: {name}"
                yield Figure(f"{words}, ms", round(beside_ms, 1), "")
                yield Figure(f"{words} / {alone_ms:.1f} ms alone", round(beside_ms / alone_ms, 2), goal)


async def _without_pause(port: int, key: str, seconds: float, pid: int) -> list[float]:
    return (await _crowd(port, key, {"valid": READERS}, seconds, pid)).latencies_ms


async def _site(port: int, key: str, seconds: float) -> list[float]:
    """Each reader asks, reads for about half a second, and asks again: sixteen questions a second in all."""
    until, times = time.monotonic() + seconds, list[float]()
    await asyncio.gather(*(_read_and_ask(port, key, until, times) for _ in range(SITE_READERS)))
    return times


async def _read_and_ask(port: int, key: str, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(0, 2 * SITE_PAUSE_S))
        began = time.perf_counter()
        writer.write(_request("valid", key, random.choice(QUESTIONS)))
        await _status(reader)
        times.append((time.perf_counter() - began) * 1000)
    writer.close()


@asynccontextmanager
async def _looking(
    port: int, key: str, pages: Pages, kinds: Sequence[str], pause_s: tuple[float, float]
) -> AsyncIterator[None]:
    looking = [asyncio.create_task(_look(port, key, pages, kinds, pause_s)) for _ in range(AUDITORS)]
    await asyncio.sleep(0.5)  # they sign in
    try:
        yield
    finally:
        for task in looking:
            task.cancel()
        for outcome in await asyncio.gather(*looking, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


async def _look(
    port: int, key: str, pages: Pages, kinds: Sequence[str], pause_s: tuple[float, float]
) -> None:
    """One auditor, who opens one page after another."""
    base = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(
        base_url=base, headers={"Origin": base}, timeout=60, follow_redirects=True
    ) as client:
        await client.post("/console/sign-in", data={"key": key})
        while True:
            await asyncio.sleep(random.uniform(*pause_s))
            kind = random.choice(kinds)
            began = time.perf_counter()
            page = await _opened(client, next(pages.by_kind[kind]))
            assert page.status_code == 200, page.text
            assert LATER not in page.text, kind
            pages.note(kind, time.perf_counter() - began)


async def _opened(client: httpx.AsyncClient, address: str) -> httpx.Response:
    """Loaded again, as a browser does, until its charts are drawn."""
    page = await client.get(address)
    if DRAWING not in page.text:
        return page
    await asyncio.sleep(REFRESH_S)
    return await _opened(client, address)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median_s(work: Callable[[], object]) -> float:
    return round(statistics.median(_timed(work) for _ in range(RUNS)), 3)


def _p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]


if __name__ == "__main__":
    main()
