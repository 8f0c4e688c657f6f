"""The same question, the same rows, whatever has left the database: and nothing else can be reached by asking."""

import asyncio
import csv
import io
import json
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from audit.archive.month_table import read_row_keys
from audit.checking.evidence import EVER, Period
from audit.errors import LedgerUnavailableError, MisleadingSchemaError, QueryError, UnansweredError
from audit.ledger.partitions import months_from
from audit.proof.keys import SigningKey
from audit.proof.record import PERSONAL, Trail
from audit.query import duckdb_session
from audit.query.tiers import QueryLimits, QueryResult, TieredLog
from audit.vault import FolderVault
from engine import settings as settings_file
from engine import wiring
from engine.cli import main
from engine.cli.output import plain
from engine.errors import AuditUnavailableError
from engine.storage.database import ARCHIVER, AUDITOR, Database, as_role, reading
from engine.wiring import audit_log
from tests.databases import migrated_database
from tests.logs.archiving import archiver_of
from tests.logs.recorded import make_months, quotation, write
from tests.logs.sealed_log import SealedLog, whole_trail
from tests.manual.documented import SQL

TWELVE = months_from(date(2025, 1, 1), 12)
COPIED = date(2025, 8, 1)  # the months before have a typed copy, the others only the evidence
BEYOND = date(2026, 1, 1)  # stays in the database
ROWS = 3  # of each month
AMPLE = QueryLimits(seconds=300.0, bytes_max=2**30)
CANARY = "canary-in-a-connection-string"

# What PostgreSQL says in other words, or means otherwise, than DuckDB.
DIALECT = {
    "names of columns": "SELECT count(*), max(top_k), min(timestamp)::date, 1, 'x'::text, outcome::text, (SELECT max(top_k) FROM"
    " audit_logs), EXISTS (SELECT FROM audit_leaves), coalesce(reason, 'none'), CASE WHEN true THEN 1 END,"
    " extract(year FROM min(timestamp)) FROM audit_logs GROUP BY outcome, reason"
    " ORDER BY outcome",
    "nested names": "SELECT max(count) FROM (SELECT outcome, count(*) FROM audit_logs GROUP BY 1) AS counted",
    "whole numbers": "SELECT sum(tokens_input) / count(*), 7 / 2, sum(total_latency_ms), avg(total_latency_ms) FROM audit_logs",
    "numeric": "SELECT round(avg(confidence_score)::numeric, 5), 0.1 + 0.2, (2.0 / 3)::numeric = (2.0 / 3) FROM audit_logs",
    "nulls and a limit": "SELECT error_type FROM audit_logs ORDER BY error_type DESC LIMIT 37",
    "nulls first": "SELECT timestamp, error_type FROM audit_logs ORDER BY error_type DESC NULLS FIRST, timestamp LIMIT 20",
    "a part that matches": "SELECT count(*) FROM audit_logs WHERE user_query_text ~ 'eine' AND user_query_text !~ 'keine'",
    "a part over two lines": "SELECT count(*) FILTER (WHERE user_query_text || E'\nx' ~ '.x$'), count(*) FILTER (WHERE user_query_text"
    " || E'\nX' ~* '[.?].x$'), count(*) FILTER (WHERE user_query_text || E'\nX' !~* '(?:.)x'), count(*) FILTER (WHERE"
    " user_query_text || E'\nx' !~ '.x') FROM audit_logs",
    "not in small or large letters": "SELECT user_query_text !~* 'EINE', count(*) FROM audit_logs GROUP BY 1 ORDER BY 1",
    "in small or large letters": "SELECT count(*) FROM audit_logs WHERE user_query_text ~* 'EINE' AND endpoint ILIKE '/V1/%'",
    "an escaped sign": r"SELECT count(*) FROM audit_logs WHERE user_query_text LIKE '%100\% sure%'",
    "an escaped sign, computed": r"SELECT count(*) FROM audit_logs WHERE user_query_text LIKE '%100' || '\% sure%'",
    "arrows bind": "SELECT count(*) FROM audit_logs WHERE success AND filters ->> 'module' = '3' AND citations -> 0 ->> 'n' = '1'",
    "json": "SELECT filters, filters -> 'tags', citations -> 0, instruction_like, chunks_returned FROM audit_logs ORDER BY timestamp",
    "json as text": "SELECT filters::text, citations::text, instruction_like::text, chunks_returned::text, count(*) FROM audit_logs"
    " GROUP BY filters, 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
    "json as rows": "SELECT l.timestamp, c.* FROM audit_logs l CROSS JOIN LATERAL jsonb_to_recordset(l.citations) AS"
    ' c(n integer, excerpt text, "end" integer, nothing text) ORDER BY 1, 2',
    "lists": "SELECT jsonb_array_length(citations), jsonb_typeof(filters) FROM audit_logs ORDER BY timestamp",
    "times": "SELECT date_trunc('month', timestamp), (timestamp AT TIME ZONE 'UTC')::date, max(timestamp) - min(timestamp),"
    " to_char(min(timestamp), 'YYYY-MM-DD HH24:MI:SS') FROM audit_logs GROUP BY 1, 2 ORDER BY 1, 2",
    "a series of times": "SELECT day, count(log_id) FROM generate_series(timestamptz '2025-02-01', timestamptz '2025-02-28', interval '1 day') AS"
    " g(day) LEFT JOIN audit_logs ON timestamp >= day AND timestamp < day + interval '1 day' GROUP BY day ORDER BY day",
    "bytes": "SELECT log_id, leaf_hash, salt, octet_length(leaf_hash) FROM audit_logs ORDER BY timestamp",
    "percentiles": "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY total_latency_ms), percentile_cont(0.9) WITHIN GROUP"
    " (ORDER BY total_latency_ms), count(*) FILTER (WHERE success) FROM audit_logs",
    "windows": "SELECT timestamp, lag(outcome) OVER (ORDER BY timestamp), row_number() OVER (PARTITION BY outcome ORDER BY"
    " timestamp DESC) FROM audit_logs ORDER BY timestamp",
    "with and union": "WITH answered AS (SELECT * FROM public.audit_logs WHERE outcome = 'answered') SELECT count(*) FROM answered"
    " UNION ALL SELECT count(*) FROM audit_logs ORDER BY 1",
    "a word in a text": "SELECT 'SELECT FROM x -> y -- z', count(*) FROM audit_logs -- SELECT FROM\n",
    "everything": "SELECT * FROM audit_logs ORDER BY timestamp",
}  # fmt: skip
QUESTIONS = dict(SQL) | DIALECT


@dataclass(slots=True)
class CountedVault(FolderVault):
    """Says which months' rows were read."""

    folder: Path
    reads: list[str] = field(default_factory=list)
    on_read: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        FolderVault.__init__(self, self.folder)

    def get(self, key: str, version: str | None = None) -> bytes:
        self.reads.append(key)
        self.on_read()
        return FolderVault.get(self, key, version)

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        self.reads.append(key)
        self.on_read()
        return FolderVault.open(self, key, version)

    @property
    def months(self) -> set[str]:
        return {key.split("/")[1] for key in self.reads}


@dataclass(slots=True)
class Log:
    """Thirteen months, twelve of which are in the vault; and what was answered when none was."""

    sealed: SealedLog
    before: dict[str, QueryResult]

    def asking(
        self,
        *,
        is_open: bool = True,
        period: Period = EVER,
        vault: FolderVault | None = None,
        limits: QueryLimits = AMPLE,
    ) -> TieredLog:
        keys = self._keys if is_open else None
        return TieredLog(
            auditor(self.sealed.url),
            vault or self.sealed.vault,
            wiring.shipped_definitions(),
            limits,
            period,
            keys,
        )

    def _keys(self, log_ids: Any) -> dict[str, bytes]:
        with reading(self.sealed.url, ARCHIVER) as connection:
            return read_row_keys(connection, log_ids)


def auditor(url: str) -> str:
    return as_role(url, AUDITOR)


def moment(month: date, day: int = 1) -> datetime:
    return datetime(month.year, month.month, day, tzinfo=UTC)


def write_month(log: SealedLog, month: date, when: datetime) -> None:
    """An answer, a refusal, and somebody turned away: each different from those of other months."""
    number = month.month + 12 * (month.year - 2025)
    answered = whole_trail(
        month, 0, timestamp=when, client_id="docs-site", book_id=f"book-{number % 3}", total_latency_ms=2500 + number,
        citations=[quotation(1, f"c{number % 4}", "Ein „Sensor“\n\\ 100%"), quotation(2, "knee", "é🦿", score=1e-7)],
        confidence_score=number / 7, best_score=0.6 + number / 1000, model_used=f"model-{number // 5}",
    )  # fmt: skip
    refused = whole_trail(
        month, 1, timestamp=when + timedelta(minutes=1), outcome="refused", reason="not_covered", best_score=number / 40,
        user_query_text=f"Are you 100% sure, {number % 2}?", citations=None, filters=None, instruction_like=None,
        model_requested=None, total_latency_ms=number, confidence_level=None, error_type=None, success=False,
    )  # fmt: skip
    away = whole_trail(
        month, 2, timestamp=when + timedelta(minutes=2), outcome="failed", error_type="auth", source_mode=None, citations=[],
        total_latency_ms=None, repeat_count=number, filters={"module": number, "a": 1.5, "é": "ü\t"}, spooled=True,
    )  # fmt: skip
    with psycopg.connect(log.url) as connection:
        write(connection, answered, refused, away, key=log.key)


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Log]:
    folder = tmp_path_factory.mktemp("tiers")
    with migrated_database(database) as made:
        yield await filled(SealedLog(made, folder, SigningKey.create(folder / "signing.key")))


async def filled(sealed: SealedLog) -> Log:
    now = wiring.now()
    this_month = now.date().replace(day=1)
    with psycopg.connect(sealed.url) as connection:
        make_months(connection, [*TWELVE, BEYOND, this_month])
    for month in [*TWELVE, BEYOND]:
        write_month(sealed, month, moment(month, 10))
    write_month(sealed, this_month, max(now - timedelta(minutes=5), moment(this_month)))
    assert await sealed.seal() == {}
    log = Log(sealed, {})
    log.before = {title: log.asking().query(question) for title, question in QUESTIONS.items()}
    assert not any(found.archived for found in log.before.values())
    outcomes = await archiver_of(sealed, event=unrecorded, with_copy=True).archive(COPIED)
    outcomes += await archiver_of(sealed, event=unrecorded).archive(BEYOND)
    assert [outcome.month for outcome in outcomes if outcome.is_well] == [
        f"{month:%Y-%m}" for month in TWELVE
    ], outcomes
    return log


@asynccontextmanager
async def unrecorded(*_: Any, **about: Any) -> AsyncIterator[Trail]:
    """So that the log has after archiving the very rows that it had before."""
    yield whole_trail(BEYOND, 0, filters=about)


def written(found: QueryResult) -> str:
    """Every name and value, and the kind of each."""
    return json.dumps(
        [found.names, [[plain(value) for value in row] for row in found.rows]], sort_keys=True, indent=1
    )


# Seen red with DuckDB's optimizer for a limit (rows of PostgreSQL's were lost), and with its own arrows (they took
# the condition before them as well).
@pytest.mark.campaign
@pytest.mark.parametrize("title", QUESTIONS)
def test_the_same_question_has_the_same_rows_before_and_after_archiving(log: Log, title: str) -> None:
    found = log.asking().query(QUESTIONS[title])
    assert found.archived == TWELVE
    if "ORDER BY answers DESC LIMIT 20" in QUESTIONS[title]:  # many have as many
        found.rows.sort(key=str)
        log.before[title].rows.sort(key=str)
    assert written(found) == written(log.before[title])


def test_what_is_personal_in_an_archive_stays_closed_unless_it_is_asked_for(log: Log) -> None:
    closed = log.asking(is_open=False).query(DIALECT["everything"])
    whole = log.before["everything"]
    assert closed.names == whole.names
    hidden = PERSONAL | {"salt"}
    for row, known in zip(closed.rows, whole.rows, strict=True):
        is_archived = row[closed.names.index("timestamp")] < moment(BEYOND)
        for name, value, kept in zip(closed.names, row, known, strict=True):
            assert plain(value) == (None if is_archived and name in hidden else plain(kept)), name


def january_to(month: int) -> Period:
    return Period(moment(date(2025, 1, 1)), moment(date(2025, month, 1)))


# Seen red with every archived month read whose times `--from` and `--to` allow, whatever the question says.
@pytest.mark.parametrize(
    ("question", "period", "months"),
    [
        ("SELECT count(*) FROM audit_logs", EVER, 12),
        ("SELECT count(*) FROM audit_logs", january_to(4), 3),
        ("SELECT * FROM audit_questions", Period(datetime(2025, 3, 31, tzinfo=UTC), datetime(2025, 4, 2, tzinfo=UTC)), 2),
        ("SELECT count(*) FROM audit_logs WHERE timestamp >= '2025-03-01' AND timestamp < '2025-04-01'", EVER, 1),
        ("SELECT * FROM audit_questions WHERE timestamp > timestamptz '2025-12-01' - interval '1 second'", EVER, 2),
        ("SELECT * FROM audit_logs WHERE timestamp > now() - interval '1 day' ORDER BY timestamp DESC LIMIT 3", EVER, 0),
        ("SELECT count(*) FROM audit_logs WHERE timestamp BETWEEN '2025-05-01' AND '2025-05-02' AND outcome = 'x'", EVER, 1),
        ("SELECT max(tree_size) FROM audit_checkpoints", EVER, 0),
    ],
)  # fmt: skip
def test_only_the_months_that_are_needed_are_read(
    log: Log, question: str, period: Period, months: int
) -> None:
    vault = CountedVault(log.sealed.folder / "vault")
    found = log.asking(period=period, vault=vault).query(question)
    assert len(vault.months) == len(found.opened) == months
    reads = {key.partition("/")[2].partition("/")[0::2] for key in vault.reads}
    wanted = {
        month: "rows.parquet" if month < f"{COPIED:%Y-%m}" else "evidence.jsonl.zst" for month in vault.months
    }
    assert {name.split(".", 1)[1] for month, name in reads if month in wanted} <= {
        "manifest.json",
        *wanted.values(),
    }
    assert all(
        (month, name.split(".", 1)[1]) != (month, "evidence.jsonl.zst")
        or wanted[month] == "evidence.jsonl.zst"
        for month, name in reads
    )


def test_what_touches_no_archived_month_is_asked_of_postgresql_alone(log: Log) -> None:
    vault = CountedVault(log.sealed.folder / "vault")
    since = Period(moment(BEYOND), EVER.until)
    found = log.asking(period=since, vault=vault).query("SELECT version(), count(*) FROM audit_logs")
    assert found.rows[0][0].startswith("PostgreSQL")
    assert (found.rows[0][1], found.archived, vault.reads) == (6, [], [])


@pytest.mark.parametrize("view", ["audit_logs", "audit_questions", "public.audit_logs"])
@pytest.mark.parametrize("begin", [date(2025, 12, 1), BEYOND])
def test_the_times_hold_for_the_log_and_for_every_view_of_it(log: Log, view: str, begin: date) -> None:
    """In either database."""
    period = Period(moment(begin, 10), moment(BEYOND, 10) + timedelta(minutes=1))
    found = log.asking(period=period).query(f"SELECT timestamp FROM {view} ORDER BY timestamp")
    inside = [row[0] for row in found.rows]
    assert inside and min(inside) >= period.since and max(inside) < period.until
    assert bool(found.archived) == (begin < BEYOND)


# Seen red with a month read from its archive although it is attached again.
def test_a_month_that_is_verified_and_not_gone_yet_or_came_back_is_there_once(log: Log) -> None:
    count = "SELECT count(*), count(DISTINCT log_id) FROM audit_logs WHERE timestamp < '2025-02-01'"
    archiver = archiver_of(log.sealed, event=unrecorded)
    assert asyncio.run(archiver.restore(TWELVE[0])).is_well
    try:
        found = log.asking().query(count)
        assert (found.rows, found.archived, found.differences) == ([(ROWS, ROWS)], TWELVE[1:], [])
        assert written(log.asking().query(DIALECT["everything"])) == written(log.before["everything"])
    finally:
        assert asyncio.run(archiver.end_restore(TWELVE[0])).is_well
    assert log.asking().query(count).rows == [(ROWS, ROWS)]


OTHERWISE = {
    "JSON and a text": """SELECT count(*) FROM audit_logs WHERE filters = '{"a":1}'""",
    "JSON and another text": """SELECT count(*) FROM audit_logs WHERE '{"a":1}' <> filters""",
    "JSON among texts": """SELECT count(*) FROM audit_logs WHERE filters NOT IN ('{"a":1}', '{}')""",
    "JSON by another name": "SELECT count(*) FROM (SELECT filters AS f FROM audit_logs) x WHERE f = '{}'",
    "a part of JSON": "SELECT count(*) FROM audit_logs WHERE filters -> 'module' = '3'",
    "a text that becomes JSON": "SELECT '{}'::jsonb = '{ }'::jsonb FROM audit_logs",
    "JSON in a list of rows": "SELECT count(*) FROM audit_logs WHERE filters = ANY (SELECT filters FROM audit_logs)",
    "JSON and JSON": "SELECT filters || filters FROM audit_logs",
    "a month's name": "SELECT to_char(timestamp, 'Mon') FROM audit_logs",
    "a day of the year": "SELECT to_char(timestamp, 'DDD') FROM audit_logs",
    "a form that is computed": "SELECT to_char(timestamp, outcome) FROM audit_logs",
    "a form of strftime": "SELECT to_char(timestamp, '%j') FROM audit_logs",
    "letters": r"SELECT count(*) FROM audit_logs WHERE user_query_text ~ '^\w+$'",
    "letters by name": "SELECT count(*) FROM audit_logs WHERE user_query_text !~* '[[:alpha:]]'",
    "a pattern that is computed": "SELECT count(*) FROM audit_logs WHERE user_query_text ~ outcome",
    "matches": "SELECT regexp_matches(user_query_text, 'eine') FROM audit_logs",
    "before a text": "SELECT substr(outcome, -1, 3) FROM audit_logs",
    "before a text, in words": "SELECT substring(outcome FROM -1 FOR 3) FROM audit_logs",
    "a path": "SELECT filters ->> '$.module' FROM audit_logs",
}


# Each seen red: DuckDB answered, with something else than PostgreSQL.
@pytest.mark.parametrize("title", OTHERWISE)
def test_what_would_be_answered_otherwise_over_archived_months_is_refused(log: Log, title: str) -> None:
    with pytest.raises(QueryError, match="ver archived months"):
        log.asking().query(OTHERWISE[title])


@pytest.mark.parametrize("name", ['"public".audit_logs', 'public . "audit_logs"', "public/**/.audit_logs"])
def test_no_spelling_of_the_log_goes_past_the_times(log: Log, name: str) -> None:
    period = Period(moment(BEYOND, 10), moment(BEYOND, 10) + timedelta(minutes=1))
    assert log.asking(period=period).query(f"SELECT count(*) FROM {name}").rows == [(1,)]


@pytest.mark.parametrize(
    "name", ["audit_logs_2026_01", 'public."audit_logs_2026_01"', r'U&"p\0075blic".audit_logs']
)
def test_with_times_no_table_of_one_month_can_be_asked(log: Log, name: str) -> None:
    period = Period(moment(BEYOND, 10), moment(BEYOND, 10) + timedelta(minutes=1))
    with pytest.raises(QueryError, match="With --from or --to"):
        log.asking(period=period).query(f"SELECT count(*) FROM {name}")


ATTACKS = {
    "a file": "SELECT * FROM '/etc/passwd'",
    "a file as text": "SELECT * FROM read_text('/etc/passwd')",
    "a file in an expression": "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "files": "SELECT * FROM glob('/*')",
    "a file in a subquery": "SELECT 1 WHERE EXISTS (WITH x AS (SELECT * FROM read_csv('/etc/passwd')) SELECT * FROM x)",
    "copy": "COPY (SELECT 1) TO '/tmp/out'",
    "attach": "ATTACH '/tmp/other' AS other",
    "install": "INSTALL httpfs",
    "load": "LOAD '/tmp/evil.duckdb_extension'",
    "setting": "SET enable_external_access = true",
    "pragma": "PRAGMA database_list",
    "call": "CALL postgres_execute('log', 'SELECT 1')",
    "export": "EXPORT DATABASE '/tmp/out'",
    "insert": "INSERT INTO audit_logs SELECT * FROM audit_logs",
    "delete": "DELETE FROM audit_logs",
    "create": "CREATE TABLE mine AS SELECT 1",
    "describe": "DESCRIBE audit_logs",
    "show": "SELECT * FROM (SHOW ALL TABLES)",
    "explain": "EXPLAIN ANALYZE SELECT 1",
    "two": "SELECT 1; SELECT 2",
    "another login": "SELECT * FROM postgres_scan('host=/ user=postgres', 'public', 'api_keys')",
    "another role": "SELECT * FROM postgres_query('log', 'SELECT set_config(''role'', ''none'', false)')",
    "connection strings": "SELECT * FROM duckdb_databases()",
    "connection strings in a view": "SELECT * FROM duckdb_databases",
    "a name that hides one": "SELECT * FROM (WITH duckdb_databases AS (SELECT 1) SELECT 1), duckdb_databases",
    "a recursive name that hides one": "SELECT * FROM (WITH RECURSIVE duckdb_views AS (SELECT 1 UNION SELECT 1) SELECT 1), duckdb_views",
    "a name that hides a table of ours": "SELECT * FROM (WITH archived_rows AS (SELECT 1) SELECT 1), archived_rows",
    "secrets": "SELECT * FROM duckdb_secrets()",
    "settings": "SELECT * FROM duckdb_settings()",
    "a setting's value": "SELECT current_setting('secret_directory')",
    "the catalog": "SELECT * FROM information_schema.tables",
    "PostgreSQL's catalog": "SELECT * FROM pg_catalog.pg_database",
    "past the views": "SELECT * FROM log.public.audit_logs",
    "a table of ours": "SELECT * FROM main.archived_rows",
    "a table of ours, short": "SELECT * FROM archived_rows",
    "keys of rows": "SELECT key FROM audit_row_keys",
    "keys of clients": "SELECT digest FROM api_keys",
    "memory": "SELECT * FROM arrow_scan(1::pointer, 2::pointer, 3::pointer)",
    "a variable": "SELECT * FROM sys",
    "a statement in a text": "SELECT * FROM query('SELECT * FROM duckdb_databases()')",
    "a statement in JSON": "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM duckdb_databases()'))",
    "a pivot": "SELECT * FROM audit_logs PIVOT (count(*) FOR outcome IN ('answered'))",
    "nothing": "",
    "no SQL": "WHO WAS IT",
}  # fmt: skip


# Seen red without the check of tables and functions: connection strings, settings and tables of our own were read; and
# postgres_scan logs in as whom it likes.
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_question_reaches_the_log_and_nothing_else(log: Log, attack: str, tmp_path: Path) -> None:
    tiers = log.asking(is_open=False)
    tiers.url += f" application_name='{CANARY}'"
    with pytest.raises(QueryError) as refused:
        tiers.query(ATTACKS[attack].replace("/tmp/out", str(tmp_path / "out")))
    assert CANARY not in str(refused.value)
    assert "root:" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.campaign
def test_no_function_of_duckdb_that_gives_a_table_can_be_asked_but_three(log: Log) -> None:
    """Whatever a later version adds."""
    with duckdb.connect() as session:
        known = session.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type LIKE 'table%'"
        ).fetchall()
    names = {name for (name,) in known} - {"unnest", "generate_series", "json_each"}
    assert len(names) > 50
    for name in names:
        with pytest.raises(QueryError, match="cannot be used as a table"):
            log.asking().query(f"SELECT * FROM {name}('x')")


def test_the_database_is_asked_for_one_thing_that_changes_nothing(log: Log) -> None:
    tiers = log.asking(period=Period(moment(BEYOND), EVER.until))
    for statement in (
        "SELECT 1; SELECT 2",
        "CREATE TABLE mine()",
        "SELECT nonsense",
        "COMMIT; DROP TABLE audit_logs",
    ):
        with pytest.raises(QueryError):
            tiers.query(statement)
    with pytest.raises(QueryError, match="permission denied"):
        tiers.query("SELECT * FROM api_keys")


def test_an_archived_row_that_was_erased_says_so_and_shows_nothing(log: Log) -> None:
    row = "SELECT log_id, erased_at, user_query_text, outcome FROM audit_logs WHERE timestamp < '2025-02-01' ORDER BY timestamp"
    before = log.asking().query(row).rows
    erased_at = datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
    with psycopg.connect(log.sealed.url) as connection:
        connection.execute("SET session_replication_role = replica")
        kept = connection.execute(
            "DELETE FROM audit_row_keys WHERE log_id = %s RETURNING *", (before[0][0],)
        ).fetchone()
        connection.execute(
            "INSERT INTO audit_erasures (erasure_id, log_id, month, erased_at, basis, event, key_id, signature)"
            " VALUES (gen_random_uuid(), %s, '2025-01-01', %s, 'a test', gen_random_uuid(), 'k', 's')",
            (before[0][0], erased_at),
        )
    try:
        after = log.asking().query(row).rows
        assert after == [(before[0][0], erased_at, None, before[0][3]), *before[1:]]
    finally:
        with psycopg.connect(log.sealed.url) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute("DELETE FROM audit_erasures")
            assert kept
            places = ", ".join(["%s"] * len(kept))
            connection.execute(f"INSERT INTO audit_row_keys VALUES ({places})".encode(), kept)


class DamagedVault(FolderVault):
    def open(self, key: str, version: str | None = None) -> BinaryIO:
        raise FileNotFoundError(key)


def test_an_archive_that_cannot_be_read_is_no_answer(log: Log) -> None:
    with pytest.raises(UnansweredError, match="The archive of 2025-01 cannot be read"):
        log.asking(vault=DamagedVault(log.sealed.folder / "vault")).query("SELECT count(*) FROM audit_logs")


# Seen red: DuckDB's own words have all that it connects with.
@pytest.mark.parametrize("is_url", [True, False])
def test_a_database_that_cannot_be_reached_does_not_tell_the_password(
    log: Log, is_url: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = (
        f"postgresql://aud:{CANARY}@127.0.0.1:1/x" if is_url else f"host=127.0.0.1 port=1 password={CANARY}"
    )
    attach = duckdb_session.attach_log
    monkeypatch.setattr(duckdb_session, "attach_log", lambda session, _: attach(session, wrong))
    with pytest.raises(UnansweredError, match="cannot be read now") as failed:
        log.asking().query("SELECT count(*) FROM audit_logs")
    assert CANARY not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize("kind", [duckdb.CatalogException, duckdb.BinderException, psycopg.OperationalError])
def test_no_failure_tells_the_password(
    log: Log, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise kind(f"at {CANARY}")

    monkeypatch.setattr(duckdb_session, "attach_log", fail)
    tiers = log.asking()
    tiers.url = make_conninfo(tiers.url, password=CANARY)
    with pytest.raises(UnansweredError, match="cannot be read now") as failed:
        tiers.query("SELECT count(*) FROM audit_logs")
    assert CANARY not in "".join(traceback.format_exception(failed.value))


async def test_a_question_that_takes_too_long_can_be_ended(log: Log) -> None:
    reading = threading.Event()
    tiers = log.asking(vault=CountedVault(log.sealed.folder / "vault", on_read=reading.set))
    series = "SELECT count(*) FROM generate_series(1, 400000000000) AS g(n), audit_logs WHERE n % 7 = 5"
    asking = asyncio.create_task(asyncio.to_thread(tiers.query, series))
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(reading.wait, 30)
        tiers.interrupt()
        with pytest.raises(UnansweredError, match=r"(?i)interrupted"):
            await asking


def test_on_the_embedded_database_the_auditor_logs_in_as_nobody_else(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a question could become the owner again, and read what it likes through a function that runs SQL."""
    again = "SELECT set_config('role', 'none', true), query_to_xml('SELECT * FROM api_keys', true, true, '')"
    given = main.parser().parse_args(["audit", "query", again])
    assert asyncio.run(given.run(database.settings, given)) == 2
    assert "permission denied" in capsys.readouterr().err


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(log: Log, capsys: pytest.CaptureFixture[str]) -> Command:
    settings = settings_file.load({"DATABASE_URL": log.sealed.url}, data_dir=log.sealed.folder)

    def run(*words: object) -> tuple[int, str, str]:
        given = main.parser().parse_args(["audit", *map(str, words)])
        code = asyncio.run(given.run(settings, given))
        return code, *capsys.readouterr()

    return run


SHOWN = (
    "SELECT timestamp, confidence_score, reason, success, filters, count(*) AS n FROM audit_logs WHERE timestamp < '2026-01-01'"
    " GROUP BY 1, 2, 3, 4, 5 ORDER BY timestamp LIMIT 3"
)


def test_the_command_writes_json_csv_and_a_table(command: Command) -> None:
    code, out, err = command("query", SHOWN, "--json", "--personal", "--basis", "a test")
    rows = json.loads(out)
    assert (code, len(rows)) == (0, 3)
    assert rows[2] == {
        "timestamp": "2025-01-10 00:02:00+00:00", "confidence_score": 1 / 3, "reason": "r", "success": True,
        "filters": {"a": 1.5, "é": "ü\t", "module": 1}, "n": 1,
    }  # fmt: skip
    assert "read: 12" in err
    code, out, err = command("query", SHOWN, "--csv", "--from", "2025-01-10", "--to", "2025-01-11")
    assert list(csv.reader(io.StringIO(out)))[:2] == [
        ["timestamp", "confidence_score", "reason", "success", "filters", "n"],
        ["2025-01-10 00:00:00+00:00", str(1 / 7), "r", "true", "", "1"],
    ]
    assert "read: 1." in err and "--personal" in err
    code, out, _ = command("query", SHOWN)
    assert out.splitlines()[1].split()[-2:] == ["NULL", "1"]


def test_two_columns_of_one_name_are_both_shown(command: Command) -> None:
    """Seen red with one of them."""
    question = "SELECT count(*), max(total_latency_ms) AS count, 1 AS count_2, 2 AS count FROM audit_logs"
    (row,) = json.loads(command("query", question, "--json", "--to", "2025-02-01")[1])
    assert row == {"count": 3, "count_3": 2501, "count_2": 1, "count_4": 2}
    assert len(command("query", question, "--to", "2025-02-01")[1].splitlines()) == 4


@pytest.mark.parametrize(
    "question", ["SELEC 1", "SELECT nonsense FROM audit_logs", "SELECT * FROM read_text('/etc/passwd')"]
)
@pytest.mark.parametrize("times", [(), ("--from", "2026-01-01")])
def test_wrong_sql_is_wrong_usage_and_said_plainly(
    command: Command, question: str, times: tuple[str, ...]
) -> None:
    code, out, err = command("query", question, *times)
    assert (code, out) == (2, "")
    assert err and "Traceback" not in err


def test_whoever_opens_what_is_personal_says_why_and_that_is_recorded_first(
    log: Log, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("query", "SELECT 1", "--personal")[0] == 2
    recorded = (
        "SELECT outcome, details FROM audit_logs WHERE endpoint = 'affidavit audit query' ORDER BY timestamp"
    )

    def rows() -> list[tuple[Any, ...]]:
        with psycopg.connect(log.sealed.url) as connection:
            return connection.execute(recorded.encode()).fetchall()

    def begun() -> int:
        """Their records, from the moment on at which they are durable."""
        with psycopg.connect(log.sealed.url) as connection:
            opened = "SELECT count(*) FROM audit_open WHERE trail ->> 'endpoint' = 'affidavit audit query'"
            ((count,),) = connection.execute(opened).fetchall()
        return len(rows()) + int(count)

    before, seen = begun(), list[int]()
    vault = CountedVault(log.sealed.folder / "vault", on_read=lambda: seen.append(begun()))
    monkeypatch.setattr(audit_log, "vault_of", lambda _: vault)
    question = (
        "SELECT user_query_text FROM audit_logs WHERE timestamp < '2025-01-11' ORDER BY timestamp LIMIT 1"
    )
    code, out, _ = command("query", question, "--personal", "--basis", "case 12", "--to", "2025-02-01")
    assert (code, "Was misst" in out) == (0, True)
    assert seen and set(seen) == {before + 1}, "nothing was read before it was recorded"
    outcome, details = rows()[-1]
    access = details.pop("access")
    assert (outcome, details) == ("recorded", {"until": "2025-02-01 00:00:00+00:00"})
    assert access | {"who": ""} == {
        "who": "", "role": "operator", "filter": question, "columns": ["user_query_text"], "records": 1, "basis": "case 12",
        "second": None,
    }  # fmt: skip


def test_a_reading_that_cannot_be_recorded_does_not_happen(
    log: Log, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = CountedVault(log.sealed.folder / "vault")
    monkeypatch.setattr(audit_log, "vault_of", lambda _: vault)

    @asynccontextmanager
    async def down(_: object) -> AsyncIterator[Any]:
        raise LedgerUnavailableError
        yield

    monkeypatch.setattr(audit_log, "open_ledger", down)
    with pytest.raises(AuditUnavailableError):
        command("query", "SELECT * FROM audit_logs", "--personal", "--basis", "case 12")
    assert vault.reads == []


def tiers_of(command: Command, *words: str) -> tuple[int, dict[str, str], list[str]]:
    code, out, _ = command("status", "--json", *words)
    found = json.loads(out)
    return code, {month["month"]: month["tier"] for month in found["months"]}, found["gaps"]


def test_status_says_where_each_month_is_and_that_nothing_is_missing(log: Log, command: Command) -> None:
    _, tiers, gaps = tiers_of(command)
    assert {name: tier for name, tier in tiers.items() if name < "2026"} == {
        f"{month:%Y-%m}": "archived" for month in TWELVE
    }
    assert tiers[f"{wiring.now():%Y-%m}"] == "hot"
    assert [gap for gap in gaps if "2025" in gap] == []
    _, tiers, _ = tiers_of(command, "--from", "2025-03-05", "--to", "2025-05-01")
    assert list(tiers) == ["2025-03", "2025-04"]
    with_counts = json.loads(command("status", "--json", "--to", "2025-02-01")[1])["months"]
    assert with_counts == [
        {
            "month": "2025-01",
            "tier": "archived",
            "archive": "dropped",
            "rows": 3,
            "leaves": 3,
            "signed": 3,
            "erased": 0,
        }
    ]


def test_status_finds_what_an_archive_lacks(log: Log, command: Command) -> None:
    folder = log.sealed.folder / "vault" / "archive" / "2025-04"
    (rows,), (manifest,) = folder.glob("*.rows.parquet"), folder.glob("*.manifest.json")
    for file, words in ((rows, "rows.parquet cannot be read"), (manifest, "its manifest cannot be read")):
        aside = file.rename(log.sealed.folder / file.name)
        try:
            code, _, gaps = tiers_of(command, "--from", "2025-04-01", "--to", "2025-05-01")
            (gap,) = (gap for gap in gaps if "2025-04" in gap)
            assert (code, words in gap) == (1, True), gap
        finally:
            aside.rename(file)
    with psycopg.connect(log.sealed.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE audit_archives SET rows = 2 WHERE month = '2025-04-01'")
        assert any("2025-04 has 3 leaves" in gap for gap in tiers_of(command)[2])
        connection.execute("UPDATE audit_archives SET rows = 3 WHERE month = '2025-04-01'")
        connection.execute(
            "CREATE TEMP TABLE kept AS SELECT * FROM audit_archives WHERE month = '2025-04-01'"
        )
        connection.execute("DELETE FROM audit_archives WHERE month = '2025-04-01'")
        _, tiers, gaps = tiers_of(command)
        assert tiers["2025-04"] == "missing"
        assert any(gap.startswith("The 3 records of 2025-04 are in no table") for gap in gaps)
        connection.execute("INSERT INTO audit_archives OVERRIDING SYSTEM VALUE SELECT * FROM kept")


# Seen red on the code before: nothing ended them but their own memory, or a person.
@pytest.mark.parametrize("is_hot", [True, False], ids=["in the database", "over archives"])
@pytest.mark.parametrize(
    ("question", "limits", "words"),
    [
        (
            "SELECT count(*) FROM generate_series(1, 40000000000) AS g(n), audit_logs WHERE n % 7 = 5",
            QueryLimits(seconds=1, bytes_max=2**30),
            r"stopped after 1 s, the limit that audit\.query_s sets\. Ask for less",
        ),
        (
            "SELECT n, repeat('x', 1000) AS filler FROM generate_series(1, 200000) AS g(n)",
            QueryLimits(seconds=300, bytes_max=2**26),
            r"needs more than 64 MiB of memory, the limit that audit\.query_bytes_max sets\. Ask for less",
        ),
    ],
    ids=["time", "the answer's memory"],
)
def test_a_heavy_question_ends_at_its_limit(
    log: Log, is_hot: bool, question: str, limits: QueryLimits, words: str
) -> None:
    period = Period(moment(BEYOND), EVER.until) if is_hot else EVER
    with pytest.raises(UnansweredError, match=words):
        log.asking(period=period, limits=limits).query(question)


# Seen red without `memory_limit`: DuckDB took what the machine has.
def test_a_question_over_archives_keeps_to_its_memory(log: Log) -> None:
    question = "SELECT count(*) FROM (SELECT n, count(*) FROM generate_series(1, 5000000) AS g(n) GROUP BY n) AS s, audit_logs"
    with pytest.raises(UnansweredError, match="needs more than 64 MiB of memory"):
        log.asking(limits=QueryLimits(seconds=300, bytes_max=2**26)).query(question)


# Seen red with the comparison left out of `_query_all_tiers`.
def test_a_question_over_archives_is_not_answered_by_something_else(log: Log) -> None:
    with psycopg.connect(log.sealed.url) as superuser:
        superuser.execute("CREATE TABLE more () INHERITS (audit_erasures)")
    try:
        with pytest.raises(MisleadingSchemaError, match=r"public\.more inherits from public\.audit_erasures"):
            log.asking().query("SELECT count(*) FROM audit_logs")
    finally:
        with psycopg.connect(log.sealed.url) as superuser:
            superuser.execute("DROP TABLE more")


# Seen red with the months of an archive among what must be in the log.
def test_months_that_left_and_months_ahead_are_no_difference(log: Log) -> None:
    """Twelve of them were detached and dropped."""
    assert log.asking().query("SELECT count(*) FROM audit_logs").differences == []
