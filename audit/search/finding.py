"""Finds records in the months that are in the database: by filter and words, newest first, or by what somebody pasted.

A month that is over has a search index. The one that is being written has none, because it would slow every insert: its newest
rows are scanned, in slices, until the page is full or the time is over. Then the page says how far it came, and where to go on.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import errors
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.errors import UnansweredError
from audit.ledger.partitions import month_start, next_month
from audit.search import words
from audit.search.criteria import Criteria
from audit.search.pasted import Pasted

PAGE_ROWS = 25
PAGE_ROWS_MAX = 200
NAMED_MAX = 100  # records of one id: a conversation has some, a process has thousands
BUDGET_S = 0.5  # of a second that an auditor waits
INDEX_S = 0.3  # a word that is in every record is found sooner by a scan
SLICE_ROWS = 2_000  # the first; a later one is larger
SLICE_ROWS_MIN, SLICE_ROWS_MAX = 500, 16_000
SLICE_S = 0.05  # after a slower one the next is smaller
SCANNED_FOR_ID = 100_000  # newest rows of a month without index, for an id that no index has

SHOWN = (
    "timestamp", "log_id", "query_id", "endpoint", "client_id", "book_id", "outcome", "reason", "confidence_level",
    "confidence_score", "total_latency_ms", "user_query_text", "answer_text", "erased_at",
)  # fmt: skip
_COLUMNS = ", ".join(SHOWN)
_WORDS = "audit_search_words(user_query_text, answer_text, citations, provider_request_id, writer)"
_MONTHS = """
SELECT m.month, EXISTS (
    SELECT FROM pg_index JOIN pg_class x ON x.oid = indexrelid
    WHERE indrelid = m.relation AND indisvalid AND relname = to_char(m.month, '"audit_search_"YYYY_MM'))
FROM audit_months m JOIN pg_inherits ON inhrelid = m.relation AND inhparent = 'audit_logs'::regclass AND NOT inhdetachpending
WHERE m.month IS NOT NULL ORDER BY m.month DESC
"""
_BEFORE = "timestamp >= %(begin)s AND timestamp <= %(at)s AND (timestamp, log_id) < (%(at)s, %(id)s)"
_NEWEST = "ORDER BY timestamp DESC, log_id DESC"
_LEAF = "SELECT log_id FROM audit_leaves WHERE leaf_hash = decode(%(value)s, 'hex')"
# As audit/query/tiers.py: in a verified archive, and not in the log.
_ARCHIVED = """
SELECT DISTINCT month FROM audit_archives a WHERE a.state = 'verified' AND NOT EXISTS (
    SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
    WHERE inhparent = 'audit_logs'::regclass AND NOT inhdetachpending AND relname = to_char(a.month, '"audit_logs_"YYYY_MM'))
"""
_LANGUAGES = """
SELECT DISTINCT g.language FROM books b JOIN generations g ON g.generation_id = b.live_generation
WHERE g.language IS NOT NULL AND b.book_id = coalesce(nullif(%(book)s, ''), b.book_id)
"""
_SLICE_END = f"SELECT timestamp, log_id FROM audit_logs WHERE {_BEFORE} {_NEWEST} OFFSET %(slice)s LIMIT 1"  # noqa: S608
RESOLUTION = timedelta(microseconds=1)  # of a time in PostgreSQL
_LAST_ID = UUID(int=2**128 - 1)
_TESTS = {
    "id": [f"{column} = %(value)s::uuid" for column in ("log_id", "query_id", "answer_id", "session_id")],
    "hash": ["log_id IN (SELECT log_id FROM audit_leaves WHERE leaf_hash = decode(%(value)s, 'hex'))"],
    "name": ["request_id = %(value)s"],
}
# What has no index of its own is in the search index, under its column's name.
_IN_SEARCH_INDEX = {"id": "writer", "hash": "chunk_id", "name": "provider_request_id"}
_SEARCH_INDEX_TESTS = {
    "writer": "writer = %(value)s::uuid",
    "provider_request_id": "provider_request_id = %(value)s",
    "chunk_id": """(leaf_hash = decode(%(value)s, 'hex')
        OR citations @> jsonb_build_array(jsonb_build_object('chunk_id', %(value)s::text)))""",
}


class LogPlace(NamedTuple):
    """Of a row in the order of the log: what comes after it on the pages is older."""

    at: datetime
    log_id: UUID

    def __str__(self) -> str:
        return f"{self.at.astimezone(UTC).isoformat()}_{self.log_id}"

    @classmethod
    def read(cls, text: str) -> "LogPlace":
        at, _, log_id = text.partition("_")
        moment = datetime.fromisoformat(at)
        return cls(moment if moment.tzinfo else moment.replace(tzinfo=UTC), UUID(log_id))


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """What a list shows of a record."""

    timestamp: datetime
    log_id: UUID
    query_id: UUID
    endpoint: str
    client_id: str | None
    book_id: str | None
    outcome: str
    reason: str | None
    confidence_level: str | None
    confidence_score: float | None
    total_latency_ms: int | None
    user_query_text: str | None
    answer_text: str | None
    erased_at: datetime | None

    @property
    def place(self) -> LogPlace:
        return LogPlace(self.timestamp, self.log_id)


@dataclass(frozen=True, slots=True)
class FoundPage:
    """`older`: where the next page begins, if there may be one. `is_cut`: the time was over before the page was full."""

    rows: list[FoundRecord]
    older: LogPlace | None = None
    is_cut: bool = False
    unindexed: tuple[date, ...] = ()  # months that are over, and have no index yet


class _SearchedMonth(NamedTuple):
    month: date
    is_indexed: bool


class _WantedRows(NamedTuple):
    condition: str
    words: str  # condition for the index, or empty
    values: dict[str, Any]


@dataclass(slots=True)
class Finder:
    """Reads in the auditor's role."""

    pool: AsyncConnectionPool
    today: date
    monotonic: Callable[[], float] = time.monotonic
    budget_s: float = BUDGET_S

    async def page(
        self, criteria: Criteria, after: LogPlace | None = None, size: int = PAGE_ROWS
    ) -> FoundPage:
        """The newest records that fit, or those older than a place."""
        size, ends_at = min(size, PAGE_ROWS_MAX), self.monotonic() + self.budget_s
        rows: list[FoundRecord] = []
        async with self._connected() as connection:
            months = await self._months(connection)
            search = await _search(connection, criteria)
            within = [each.month for each in months if _is_within(each.month, criteria, after)]
            unindexed = tuple(
                each.month for each in months
                if search.words and not each.is_indexed and each.month in within and each.month < self.today.replace(day=1)
            )  # fmt: skip
            for each in months:
                if each.month not in within:
                    continue
                begin, place = _bounds(each.month, criteria, after)
                async for found, reached in self._of_month(
                    connection, search, each, begin, place, size - len(rows) + 1
                ):
                    rows += found
                    if len(rows) > size:
                        return FoundPage(rows[:size], rows[size - 1].place, unindexed=unindexed)
                    is_over = reached is None and each.month == within[-1]
                    if self.monotonic() > ends_at and not is_over:
                        older = reached or LogPlace(begin - RESOLUTION, _LAST_ID)
                        return FoundPage(rows, older, is_cut=True, unindexed=unindexed)
        return FoundPage(rows, unindexed=unindexed)

    async def all_until(self, criteria: Criteria, most: int) -> list[FoundRecord]:
        """Every record that fits, however long it takes; one more than `most` if there are more."""
        patient, rows, after = replace(self, budget_s=float("inf")), list[FoundRecord](), None
        while len(rows) <= most:
            page = await patient.page(criteria, after, PAGE_ROWS_MAX)
            rows, after = [*rows, *page.rows], page.older
            if after is None:
                break
        return rows[: most + 1]

    async def named(
        self, given: Pasted, books: Sequence[str] | None = None, *, is_masked: bool = False
    ) -> list[FoundRecord]:
        """The records that an id, a hash, or a name of a request or of a reader belongs to, newest first.

        Who sees no personal column finds no reader by name either.
        """
        condition, values = Criteria(books=None if books is None else frozenset(books)).condition()
        values = values | {"value": given.value}
        async with self._connected() as connection:
            rows = [
                found for test in _TESTS.get(given.kind, [f"{given.kind} = %(value)s::uuid"])
                for found in await _fetch(connection, f"{test} AND {condition}", values)
            ]  # fmt: skip
            if given.kind == "name" and not is_masked:
                rows += await _fetch_chosen(
                    connection,
                    f"end_user = %(value)s AND {condition}",
                    values,
                    f"{_NEWEST} LIMIT {NAMED_MAX}",
                )
            column = _IN_SEARCH_INDEX.get(given.kind)
            if (
                column and not rows
            ):  # an id is of one thing, and this scans the newest rows of the month without an index
                test = f"{_SEARCH_INDEX_TESTS[column]} AND {condition}"
                for each in await self._months(connection):
                    rows += await _by_lexeme(connection, each, f"{column}:{given.value}", test, values)
        unique = {row.log_id: row for row in rows}
        return sorted(unique.values(), key=lambda row: row.place, reverse=True)[:NAMED_MAX]

    async def archived(
        self, criteria: Criteria, given: Pasted | None
    ) -> tuple[Pasted | None, datetime | None]:
        """For `archived.statement`: what was pasted, a leaf's hash as its record's id; and when the first month here begins.

        The time is None if no month of the period is archived.
        """
        async with self._connected() as connection:
            months = await (await connection.execute(_ARCHIVED)).fetchall()
            if given and given.kind == "hash":
                leaf = await (await connection.execute(_LEAF, {"value": given.value})).fetchone()
                given = Pasted("log_id", str(leaf[0])) if leaf else given
        ends = [month_start(next_month(month)) for (month,) in months]
        return given, max(
            (end for end in ends if criteria.since is None or end > criteria.since), default=None
        )

    async def _of_month(
        self,
        connection: psycopg.AsyncConnection,
        search: _WantedRows,
        month: _SearchedMonth,
        begin: datetime,
        after: LogPlace,
        wanted: int,
    ) -> AsyncIterator[tuple[list[FoundRecord], LogPlace | None]]:
        """Rows in their order, in pieces, each with the place that it came to; None at the end of the month."""
        reached: LogPlace | None = after
        slice_rows, by_index = SLICE_ROWS, month.is_indexed and bool(search.words)
        while reached is not None:
            values = search.values | {
                "begin": begin,
                "at": reached.at,
                "id": reached.log_id,
                "slice": slice_rows,
                "wanted": wanted,
            }
            if by_index and reached != after:  # the newest rows of a common word need no index
                by_index = False
                with suppress(errors.QueryCanceled):
                    yield await _indexed(connection, search, values), None
                    return
            began = self.monotonic()
            end = await _slice_end(connection, values)
            found = await _scanned(connection, search, values, end)
            is_quick = self.monotonic() - began < SLICE_S
            slice_rows = (
                min(4 * slice_rows, SLICE_ROWS_MAX) if is_quick else max(slice_rows // 4, SLICE_ROWS_MIN)
            )
            wanted, reached = wanted - len(found), end
            yield found, reached
            if wanted <= 0:
                return

    async def _months(self, connection: psycopg.AsyncConnection) -> list[_SearchedMonth]:
        return [_SearchedMonth(*row) for row in await (await connection.execute(_MONTHS)).fetchall()]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection. The driver's messages are not passed on: they may contain a row."""
        try:
            async with self.pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as failure:
            raise UnansweredError(
                f"The log could not be searched now: {type(failure).__name__}. Try again in a moment"
            ) from None


async def _search(connection: psycopg.AsyncConnection, criteria: Criteria) -> _WantedRows:
    condition, values = criteria.condition()
    terms = words.terms_of(criteria.text)
    if not terms:
        return _WantedRows("false" if criteria.text else condition, "", values)
    terms = [await _with_its_forms(connection, each, criteria.book) for each in terms]
    (query, queried), (likeness, liked) = words.condition(terms), words.likeness(terms)
    by_words = f"{_WORDS} @@ {query}"
    return _WantedRows(
        f"{condition} AND {likeness} AND {by_words}", f"{condition} AND {by_words}", values | queried | liked
    )


async def _with_its_forms(
    connection: psycopg.AsyncConnection, term: words.SearchTerm, book: str
) -> words.SearchTerm:
    """By the stemmers of the languages of the books that can be asked; of the one that is searched, if it is named."""
    if not term.may_be_inflected:
        return term
    asked = await connection.execute(_LANGUAGES, {"book": book})
    stemmers = [
        words.STEMMERS[language] for (language,) in await asked.fetchall() if language in words.STEMMERS
    ]
    stems: list[str] = []
    for stemmer in stemmers:
        found = await (
            await connection.execute("SELECT ts_lexize(%s::regdictionary, lower(%s))", (stemmer, term.text))
        ).fetchone()
        stems += found[0] or [] if found else []
    return term.begun_by(stems)


def _is_within(month: date, criteria: Criteria, after: LogPlace | None) -> bool:
    begin, place = _bounds(month, criteria, after)
    return begin <= place.at


def _bounds(month: date, criteria: Criteria, after: LogPlace | None) -> tuple[datetime, LogPlace]:
    """Of the month, within the period: its first moment, and a place that is newer than all that is wanted of it."""
    begin, end = month_start(month), month_start(next_month(month))
    newest = LogPlace(min(criteria.until or end, end) - RESOLUTION, _LAST_ID)
    return max(criteria.since or begin, begin), min(newest, after) if after else newest


async def _slice_end(connection: psycopg.AsyncConnection, values: dict[str, Any]) -> LogPlace | None:
    """The last place of the slice; None if the month ends in it."""
    found = await (await connection.execute(_SLICE_END.encode(), values)).fetchone()
    return LogPlace(*found) if found else None


async def _scanned(
    connection: psycopg.AsyncConnection, search: _WantedRows, values: dict[str, Any], end: LogPlace | None
) -> list[FoundRecord]:
    last = (
        "true"
        if end is None
        else "timestamp >= %(end_at)s AND (timestamp, log_id) >= (%(end_at)s, %(end_id)s)"
    )
    given = values | ({} if end is None else {"end_at": end.at, "end_id": end.log_id})
    return await _fetch(
        connection, f"{_BEFORE} AND {last} AND {search.condition} {_NEWEST} LIMIT %(wanted)s", given
    )


async def _indexed(
    connection: psycopg.AsyncConnection, search: _WantedRows, values: dict[str, Any]
) -> list[FoundRecord]:
    """Through the index of the month, whatever the planner thinks: it has no statistics of words, on purpose."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL statement_timeout = {INDEX_S * 1000:.0f}".encode())
        await connection.execute("SET LOCAL enable_seqscan = off")
        return await _fetch_chosen(
            connection, f"{_BEFORE} AND {search.words}", values, f"{_NEWEST} LIMIT %(wanted)s"
        )


async def _by_lexeme(
    connection: psycopg.AsyncConnection, month: _SearchedMonth, lexeme: str, test: str, values: dict[str, Any]
) -> list[FoundRecord]:
    """Through the index of the month, or among its newest rows."""
    begin, place = _bounds(month.month, Criteria(), None)
    given = values | {
        "begin": begin,
        "at": place.at,
        "id": place.log_id,
        "slice": SCANNED_FOR_ID,
        "most": NAMED_MAX,
    }
    if month.is_indexed:
        given["lexeme"] = "'{}'".format(lexeme.replace("\\", "\\\\").replace("'", "''"))
        found = f"{_BEFORE} AND {_WORDS} @@ %(lexeme)s::tsquery AND {test}"
        return await _fetch_chosen(connection, found, given, f"{_NEWEST} LIMIT %(most)s")
    end = await _slice_end(connection, given)
    given["begin"] = end.at if end else begin
    return await _fetch(connection, f"{_BEFORE} AND {test} {_NEWEST} LIMIT %(most)s", given)


async def _fetch_chosen(
    connection: psycopg.AsyncConnection, condition: str, values: dict[str, Any], order: str
) -> list[FoundRecord]:
    """First which rows, then the rows: so the order is not a reason to read the month along its times."""
    chosen = f"WITH chosen AS MATERIALIZED (SELECT timestamp, log_id FROM audit_logs WHERE {condition})"  # noqa: S608
    within = f"(timestamp, log_id) IN (SELECT timestamp, log_id FROM chosen {order})"  # noqa: S608
    return await _fetch(connection, f"{within} {_NEWEST}", values, chosen)


async def _fetch(
    connection: psycopg.AsyncConnection, condition: str, values: dict[str, Any], chosen: str = ""
) -> list[FoundRecord]:
    statement = f"{chosen} SELECT {_COLUMNS} FROM audit_logs WHERE {condition}"  # noqa: S608
    cursor = connection.cursor(row_factory=class_row(FoundRecord))
    return await (await cursor.execute(statement.encode(), values)).fetchall()
