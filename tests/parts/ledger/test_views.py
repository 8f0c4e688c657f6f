"""What auditors ask most: every figure of every view counted by hand, in UTC, and every column explained."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from audit.proof.record import Trail
from engine.storage.database import Database
from tests.conftest import ROOT
from tests.databases import migrated_database
from tests.logs.recorded import make_months, quotation, write

NOON = datetime(2031, 5, 10, 12, tzinfo=UTC)
LATE = datetime(2031, 5, 10, 23, 59, 59, 999999, tzinfo=UTC)
NEXT = datetime(2031, 5, 11, tzinfo=UTC)
GENERATION = UUID(int=7)

VIEWS = (
    "audit_requests_by_day", "audit_refusals", "audit_low_confidence", "audit_slow_requests", "audit_questions",
    "audit_citations", "audit_changes", "audit_feedback", "audit_access", "audit_reviews",
)  # fmt: skip


def asked(when: datetime = NOON, outcome: str = "answered", **fields: Any) -> Trail:
    return Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=when, endpoint="/v1/query", outcome=outcome, **fields
    )


@pytest.fixture(scope="module")
def url(database: Database) -> Iterator[str]:
    """An empty log of its own in the running server."""
    with migrated_database(database) as made:
        yield made.url


@pytest.fixture
def log(url: str) -> Iterator[psycopg.Connection]:
    """What is written here is taken back."""
    with psycopg.connect(url) as connection:
        make_months(connection, [date(2031, 5, 1), date(2031, 6, 1)])
        yield connection
        connection.rollback()


def seen(log: psycopg.Connection, query: str, *trails: Trail) -> list[tuple[Any, ...]]:
    """What the auditor sees once these are written."""
    if trails:
        write(log, *trails)
    log.execute("SET LOCAL ROLE affidavit_auditor")
    rows = log.execute(query.encode()).fetchall()
    log.execute("RESET ROLE")
    return rows


# Seen red with the day of the session's time zone, with records counted for requests, and with avg for the median.
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Los_Angeles"])
def test_requests_are_counted_by_utc_day_and_outcome(log: psycopg.Connection, zone: str) -> None:
    log.execute(sql.SQL("SET LOCAL timezone = {}").format(zone))
    rows = seen(
        log, "SELECT * FROM audit_requests_by_day ORDER BY day, outcome",
        asked(client_id="a", total_latency_ms=10), asked(LATE, client_id="a", total_latency_ms=1000),
        asked(client_id="b", total_latency_ms=20, spooled=True),
        asked(outcome="failed", repeat_count=40), asked(outcome="failed"),
        asked(NEXT, client_id="a", total_latency_ms=7),
    )  # fmt: skip
    day, next_month = date(2031, 5, 10), date(2031, 5, 11)
    assert rows == [
        (day, "answered", 3, 3, 2, 1, 20, 1000),
        (day, "failed", 41, 2, 0, 0, None, None),
        (next_month, "answered", 1, 1, 1, 0, 7, 7),
    ]


def test_refusals_are_counted_by_reason(log: psycopg.Connection) -> None:
    def refused(reason: str, score: float | None, when: datetime = NOON, book_id: str = "one") -> Trail:
        return asked(when, "refused", reason=reason, book_id=book_id, best_score=score, threshold=0.6)

    rows = seen(
        log, "SELECT * FROM audit_refusals ORDER BY day, book_id, reason",
        refused("not_covered", 0.2), refused("not_covered", 0.59), refused("citation_failed", 0.8),
        refused("not_covered", 0.1, book_id="two"), refused("not_covered", None, NEXT),
        asked(reason="not_covered", book_id="one"), asked(outcome="failed", book_id="one"),
    )  # fmt: skip
    assert rows == [
        (date(2031, 5, 10), "one", "citation_failed", 1, 0.8, 0.6),
        (date(2031, 5, 10), "one", "not_covered", 2, 0.59, 0.6),
        (date(2031, 5, 10), "two", "not_covered", 1, 0.1, 0.6),
        (date(2031, 5, 11), "one", "not_covered", 1, None, 0.6),
    ]


def test_answers_of_low_confidence(log: psycopg.Connection) -> None:
    low = asked(
        user_query_text="Why?", answer_text="So.", confidence_level="low", confidence_score=0.66, client_id="a",
        retrieval_confidence=0.6, generation_confidence=0.75, book_id="one", citations=[quotation(1, "c", "So.")],
    )  # fmt: skip
    others = [asked(confidence_level=level) for level in ("medium", "high", None)]
    unfinished = asked(outcome="client_gone", confidence_level="low")
    (row,) = seen(log, "SELECT * FROM audit_low_confidence", low, *others, unfinished)
    assert row == (NOON, low.query_id, "a", "one", "Why?", "So.", 0.66, 0.6, 0.75, 1)


def test_slow_requests_say_where_the_time_went(log: psycopg.Connection) -> None:
    slow = asked(total_latency_ms=2500, retrieval_latency_ms=400, generation_latency_ms=2000, client_id="a")
    stuck = asked(NEXT, "failed", total_latency_ms=4501, error_type="timeout")
    rows = seen(
        log, "SELECT * FROM audit_slow_requests ORDER BY timestamp",
        slow, stuck, asked(total_latency_ms=2499), asked(total_latency_ms=None),
    )  # fmt: skip
    assert rows == [
        (NOON, slow.query_id, "a", None, "/v1/query", "answered", None, 2500, 400, 2000, 100),
        (NEXT, stuck.query_id, None, None, "/v1/query", "failed", "timeout", 4501, None, None, 4501),
    ]


def test_what_a_client_asked(log: psycopg.Connection) -> None:
    def question(client_id: str, text: str, **fields: Any) -> Trail:
        return asked(source_mode="full-book", client_id=client_id, user_query_text=text, **fields)

    rows = seen(
        log,
        "SELECT user_query_text, end_user, outcome FROM audit_questions WHERE client_id = 'a' ORDER BY 1",
        question("a", "1", end_user="user:1"), question("b", "2"), question("a", "3", outcome="failed"),
        asked(client_id="a", outcome="failed"),  # it was refused by the limit: nothing was read
        asked(client_id="a", outcome="served"),  # it asked for a passage, not a question
    )  # fmt: skip
    assert rows == [("1", "user:1", "answered"), ("3", None, "failed")]


# Seen red with a join that gave an answer without citations a row.
def test_what_a_passage_was_cited_for(log: psycopg.Connection) -> None:
    both = asked(
        user_query_text="What bends?", client_id="a", book_id="one", index_generation=GENERATION,
        citations=[quotation(1, "knee", "A knee bends."), quotation(2, "hip", "é🦿", page="")],
    )  # fmt: skip
    again = asked(NEXT, user_query_text="And then?", citations=[quotation(1, "knee", "It bends.", score=0)])
    none = [asked(citations=[]), asked(citations=None)]
    rows = seen(log, "SELECT * FROM audit_citations ORDER BY chunk_id, timestamp", both, again, *none)
    place = ("Bodies", "Joints", "02-bodies.md")
    url = "/docs/bodies#joints"
    assert rows == [
        ("hip", NOON, both.query_id, "a", "one", "What bends?", 2, "é🦿", 5, 7, 0.83, *place, "", url, GENERATION),
        ("knee", NOON, both.query_id, "a", "one", "What bends?", 1, "A knee bends.", 5, 18, 0.83, *place, "12",
         url, GENERATION),
        ("knee", NEXT, again.query_id, None, None, "And then?", 1, "It bends.", 5, 14, 0.0, *place, "12", url, None),
    ]  # fmt: skip


# Seen red with all feedback shown, and with that of a failed request.
def test_the_last_feedback_on_each_question(log: psycopg.Connection) -> None:
    def feedback(on: Trail, when: datetime, outcome: str = "served", **said: Any) -> Trail:
        given = asked(when, outcome, client_id="a", details={"query_id": str(on.query_id)} | said)
        given.endpoint = "/v1/feedback"
        return given

    answered = asked(
        client_id="a", book_id="one", user_query_text="Why?", answer_text="So.", confidence_level="low",
        confidence_score=0.66,
    )  # fmt: skip
    refused = asked(outcome="refused", reason="not_covered", user_query_text="Who?", answer_text="No.")
    rows = seen(
        log, "SELECT * FROM audit_feedback ORDER BY given_at", answered, refused, asked(user_query_text="Unjudged?"),
        feedback(answered, minute(1), helpful=True, reason=None),
        feedback(answered, minute(3), helpful=False, reason="outdated"),
        feedback(answered, minute(4), "failed", helpful=True, reason=None),
        feedback(refused, minute(2), helpful=True, reason=None),
    )  # fmt: skip
    assert rows == [
        (minute(2), refused.query_id, True, None, NOON, None, None, "Who?", "refused", "not_covered", None, None, "No."),
        (minute(3), answered.query_id, False, "outdated", NOON, "a", "one", "Why?", "answered", None, "low", 0.66, "So."),
    ]  # fmt: skip


# Seen red with every record that has details, and with the time of a reported read's record.
def test_who_read_what(log: psycopg.Connection) -> None:
    access = {
        "who": "auditor_2026", "role": "auditor", "filter": "SELECT answer_text FROM audit_logs", "columns": ["answer_text"],
        "records": 12, "basis": "case 12", "second": None,
    }  # fmt: skip
    command = asked(outcome="recorded", details={"access": access, "read_at": minute(-60).isoformat()})
    command.endpoint = "affidavit audit query"
    page = asked(
        NEXT,
        "served",
        client_id="a",
        key_id="k",
        client_address="::1",
        details={"access": access | {"records": None}},
    )
    page.endpoint = "/console/records"
    others = [asked(details={"sql": "SELECT 1"}), asked(details=None), asked(details={"access": None})]
    rows = seen(log, "SELECT * FROM audit_access ORDER BY read_at", command, page, *others)
    who, what = ("auditor_2026", "auditor"), ("SELECT answer_text FROM audit_logs", '["answer_text"]')
    assert rows == [
        (minute(-60), NOON, command.query_id, *who, None, "affidavit audit query", None, *what, 12, "case 12", None, "recorded"),
        (NEXT, NEXT, page.query_id, *who, "k", "/console/records", "::1", *what, None, "case 12", None, "served"),
    ]  # fmt: skip


def minute(number: int) -> datetime:
    return NOON + timedelta(minutes=number)


# Seen red with one row for each value (back to the first model was no change), with nulls taken for a change, and with
# one span for the calibrations of two books, which then changed with every question.
def test_changes_are_spans_in_which_a_value_stayed(log: psycopg.Connection) -> None:
    models = ["old", "old", None, "old", "new", "new", "old"]
    rows = seen(
        log,
        "SELECT value, first_seen, last_seen, records FROM audit_changes WHERE what = 'model_used' ORDER BY first_seen",
        *(asked(minute(number), model_used=model) for number, model in enumerate(models)),
    )
    assert rows == [
        ("old", minute(0), minute(3), 3),
        ("new", minute(4), minute(5), 2),
        ("old", minute(6), minute(6), 1),
    ]


def test_what_belongs_to_a_book_changes_by_book(log: psycopg.Connection) -> None:
    books = ["one", "two"] * 3
    calibrations = ["a", "x", "a", "x", "b", "x"]
    rows = seen(
        log,
        "SELECT book_id, value, records FROM audit_changes WHERE what = 'calibration' ORDER BY book_id, first_seen",
        *(
            asked(minute(number), book_id=book, calibration_id=calibration)
            for number, (book, calibration) in enumerate(zip(books, calibrations, strict=True))
        ),
    )
    assert rows == [("one", "a", 2), ("one", "b", 1), ("two", "x", 3)]


def test_changes_tell_of_everything_that_answers_are_made_with(log: psycopg.Connection) -> None:
    whole = asked(
        model_requested="m", model_used="m-1", prompt_sha256="p", settings_sha256="s", code_version="1", book_id="one",
        calibration_id="c", embedder="e", index_generation=GENERATION,
    )  # fmt: skip
    rows = seen(log, "SELECT what, book_id, value FROM audit_changes ORDER BY what", whole)
    assert rows == [
        ("calibration", "one", "c"), ("code", None, "1"), ("embedder", "one", "e"),
        ("index_generation", "one", str(GENERATION)), ("model_requested", None, "m"), ("model_used", None, "m-1"),
        ("prompt", None, "p"), ("settings", None, "s"),
    ]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_log_is_an_empty_view(log: psycopg.Connection, view: str) -> None:
    assert seen(log, f"SELECT * FROM {view}") == []


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("role", ["affidavit_engine", "affidavit_sealer", "affidavit_archiver"])
def test_views_are_for_auditors_alone(url: str, view: str, role: str) -> None:
    with psycopg.connect(make_conninfo(url, user=role)) as connection:
        with pytest.raises(errors.InsufficientPrivilege, match=f"permission denied for view {view}"):
            connection.execute(f"SELECT * FROM {view}".encode())


# Seen red with a view of its owner's rights: whoever gets SELECT on the view alone would read the log.
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_nothing_that_its_reader_could_not_read_without_it(
    log: psycopg.Connection, view: str
) -> None:
    log.execute(f"GRANT SELECT ON {view} TO affidavit_engine".encode())
    log.execute("SET LOCAL ROLE affidavit_engine")
    with pytest.raises(errors.InsufficientPrivilege, match="permission denied for table audit_logs"):
        log.execute(f"SELECT * FROM {view}".encode())


def explained(url: str) -> dict[str, dict[str, str | None]]:
    """Each view of the schema with its columns and what is said about them; "" is the view itself."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows = connection.execute(
            "SELECT c.relname AS view, coalesce(a.attname, '') AS column, d.description AS words FROM pg_class c"
            " LEFT JOIN LATERAL (SELECT attname, attnum FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0"
            "  UNION ALL SELECT '', 0) a ON true"
            " LEFT JOIN pg_description d ON d.objoid = c.oid AND d.objsubid = a.attnum"
            " AND d.classoid = 'pg_class'::regclass"
            " WHERE c.relkind = 'v' AND c.relnamespace = 'public'::regnamespace ORDER BY c.relname, a.attnum"
        ).fetchall()
    found: dict[str, dict[str, str | None]] = {}
    for row in rows:
        found.setdefault(row["view"], {})[row["column"]] = row["words"]
    return found


def test_every_view_and_column_says_what_it_is(url: str) -> None:
    about = explained(url)
    assert set(about) == set(VIEWS)
    silent = [
        (view, column) for view, columns in about.items() for column, words in columns.items() if not words
    ]
    assert silent == []


def test_the_manual_shows_every_view_and_column(url: str) -> None:
    manual = (ROOT / "docs/how-to/ask-the-log.md").read_text()
    shown = {
        view: (words, re.findall(r"`(\w+)`", columns))
        for view, words, columns in re.findall(
            r"^\| `(audit_\w+)` \| (.+?) \| (.+?) \|$", manual, re.MULTILINE
        )
    }
    about = {view: (columns.pop(""), list(columns)) for view, columns in explained(url).items()}
    assert shown == about


def test_the_manual_has_a_dozen_questions_and_each_view_is_asked() -> None:
    """That each of them runs is held by tests/manual/test_readme.py."""
    queries = (ROOT / "docs/how-to/ask-the-log.md").read_text().split("```sql")[1].split("```")[0]
    assert queries.count("\n-- ") >= 12
    assert [view for view in VIEWS if f"FROM {view}" not in queries] == []
