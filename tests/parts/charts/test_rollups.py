"""Rollups are what the sealed rows give: counted once, provable, without a personal column, and kept when months are archived."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.archive.archiver import Archiver
from audit.charts.figures.chart_log import ChartLog, LiveCounts
from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups import stored
from audit.charts.rollups.checking import RollupCheck
from audit.charts.rollups.keeping import RollupKeeper
from audit.charts.rollups.rollup import Rollup, digest_of
from audit.erasure.target import ErasureTarget, spellings
from audit.errors import RollupError, RollupsBusyError
from audit.proof.record import PERSONAL
from audit.session import Session
from engine.storage.database import AUDITOR, Database, as_role
from engine.wiring import charts, now
from engine.wiring.audit_log import sealed_rows_of
from tests.logs.archiving import archiver_of
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, quiet, sealed_log

SEALER = "affidavit_sealer"
TENTH = date(2025, 2, 10)
LEAP = datetime(2024, 2, 29, tzinfo=UTC)
YEAR = ChartChoice(date(2025, 1, 1), date(2026, 1, 1))


@pytest.fixture
async def log(anyio_backend: str, database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


@contextmanager
def connected(log: SealedLog, role: str) -> Iterator[psycopg.Connection]:
    with Session.connect(as_role(log.url, role), autocommit=True) as connection:
        yield connection


def make(log: SealedLog, at: datetime | None = None) -> list[Rollup]:
    with connected(log, SEALER) as connection:
        archived = sealed_rows_of(connection, log.vault)
        return RollupKeeper(connection, archived, lambda: at or now()).make(quiet)


def check(log: SealedLog) -> list[str]:
    with connected(log, AUDITOR) as connection:
        archived = sealed_rows_of(connection, log.vault)
        return RollupCheck(connection, archived, log.keys).differences(quiet)


def sums(log: SealedLog, measure: str, *by: str, choice: ChartChoice = YEAR) -> dict[Any, int]:
    with connected(log, AUDITOR) as connection:
        charts = ChartLog(connection, sealed_rows_of(connection, log.vault), choice)
        found = charts.sums(measure, *by)
    return {tuple(getattr(key, name) for name in by): count.count for key, count in found.items()}


async def test_a_rollup_names_the_leaves_and_the_head_that_it_was_made_from(log: SealedLog) -> None:
    made = make(log)
    assert [(one.month, one.first_leaf, one.tree_size) for one in made] == [
        (JANUARY, 0, 5),
        (FEBRUARY, 0, 12),
    ]
    with connected(log, AUDITOR) as connection:
        notes = [
            note for (note,) in connection.execute("SELECT note FROM audit_checkpoints WHERE tree_size = 12")
        ]
        (root,) = connection.execute(
            "SELECT encode(root, 'base64') FROM audit_rollups WHERE tree_size = 12"
        ).fetchone() or ("",)
    assert root in notes[0]
    assert check(log) == []
    assert make(log) == []


async def test_what_comes_later_is_in_the_next_rollup_under_its_own_day(log: SealedLog) -> None:
    make(log)
    log.write(FEBRUARY, 3, timestamp=datetime(2025, 2, 1, tzinfo=UTC))
    assert await log.seal() == {}
    assert sums(log, "requests", "day")[date(2025, 2, 1),] == 1  # live
    (one,) = make(log)
    assert (one.first_leaf, one.tree_size) == (12, 13)
    assert sums(log, "requests", "day") == {(date(2025, 1, 10),): 5, (TENTH,): 12, (date(2025, 2, 1),): 1}
    assert check(log) == []


async def test_only_sealed_rows_are_counted(log: SealedLog) -> None:
    log.write(FEBRUARY, 90)
    assert sums(log, "requests", "day")[TENTH,] == 12
    make(log)
    assert sums(log, "requests", "day")[TENTH,] == 12


# Seen red with the client in the key of chapters.
async def test_no_personal_column_and_no_text_of_a_reader_is_in_a_rollup(log: SealedLog) -> None:
    log.write(
        FEBRUARY, 50, user_query_text="secret question", end_user="secret reader", answer_text="secret answer",
        citations=[{"n": 1, "excerpt": "secret quote", "chapter": "Joints", "score": 0.9}], details={"who": "secret"},
    )  # fmt: skip
    assert await log.seal() == {}
    make(log)
    with connected(log, AUDITOR) as connection:
        counts = connection.execute("SELECT c::text FROM audit_rollup_counts c").fetchall()
        columns = {
            name for (name,) in connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name LIKE 'audit_rollup%'"
            )
        }  # fmt: skip
        assert any("Joints" in text for (text,) in counts)
        assert not any("secret" in text for (text,) in counts)
        assert columns.isdisjoint(PERSONAL)
        named = connection.execute(
            "SELECT FROM audit_rollup_counts WHERE measure = 'chapters' AND client_id IS NOT NULL"
        )
        assert named.fetchall() == []


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (
            "UPDATE audit_rollup_counts SET count = count + 1 WHERE measure = 'requests'",
            "requests, book b, client c",
        ),
        ("DELETE FROM audit_rollup_counts WHERE measure = 'gate'", "gate, book b"),
        ("UPDATE audit_rollup_counts SET day = day + 1", "the rows give"),
        (
            "UPDATE audit_rollups SET digest = root WHERE tree_size = 12",
            "its digest is not that of its counts",
        ),
        ("UPDATE audit_rollups SET root = digest WHERE tree_size = 12", "the leaves have another root"),
        (
            "UPDATE audit_rollups SET tree_size = 11 WHERE tree_size = 12",
            "no head of this size and root was signed",
        ),
        ("DELETE FROM audit_rollups WHERE tree_size = 12", "counts belong to no rollup"),
        (
            "UPDATE audit_rollup_sums SET count = count + 1 WHERE measure = 'latency'",
            "sums over all books and clients are not those",
        ),
        (
            "DELETE FROM audit_rollup_sums WHERE measure = 'requests'",
            "2 sums over all books and clients are not those",
        ),
        ("UPDATE audit_rollups SET first_leaf = 1 WHERE tree_size = 12", "it should begin at leaf 0"),
        ("UPDATE audit_rollups SET version = 0", "it was made by other rules"),
        ("UPDATE audit_logs SET outcome = 'refused', leaf_hash = sha256('x')", "or another one"),
        ("DELETE FROM audit_logs WHERE timestamp > '2025-02-01'", "has no row"),
    ],
)
async def test_an_altered_rollup_is_found_and_named(log: SealedLog, attack: str, words: str) -> None:
    make(log)
    log.attack(attack)
    assert any(words in line for line in check(log))


# Seen red without the comparison of the counts, by digests alone.
async def test_a_digest_made_to_fit_hides_nothing(log: SealedLog) -> None:
    """A superuser alters a count and writes the digest of what is then there."""
    make(log)
    log.attack(
        "UPDATE audit_rollup_counts SET count = 77 WHERE measure = 'requests' AND month = '2025-02-01'"
    )
    with psycopg.connect(log.url) as connection:
        kept = stored.rollups(connection)[1]
        digest = digest_of(kept, stored.counts_in(connection, kept))
    log.attack("UPDATE audit_rollups SET digest = %(digest)s WHERE tree_size = 12", digest=digest)
    sums, line = check(log)
    assert sums == "1 sums over all books and clients are not those of the counts"
    assert line == (
        "2025-02, leaves 0 to 11: 2025-02-10 requests, book b, client c, outcome answered, value r:"
        " 77 (sum 12), the rows give 12 (sum 12)"
    )


async def test_an_archived_month_keeps_its_rollup_and_it_is_still_provable(log: SealedLog) -> None:
    log.write(JANUARY, 20, citations=[{"n": 1, "excerpt": "e", "chapter": "Joints", "score": 0.9}])
    assert await log.seal() == {}
    make(log)
    before = sums(log, "chapters", "value")
    archiver: Archiver = archiver_of(log)
    for _ in range(3):
        await archiver.archive(FEBRUARY)
    with connected(log, AUDITOR) as connection:
        assert connection.execute("SELECT FROM audit_logs WHERE timestamp < '2025-02-01'").fetchall() == []
    assert sums(log, "chapters", "value") == before
    assert check(log) == []
    log.attack("UPDATE audit_rollup_counts SET count = 9 WHERE measure = 'requests' AND month = '2025-01-01'")
    assert check(log)


async def test_the_chapter_of_an_erased_record_is_not_counted_any_more(log: SealedLog) -> None:
    log.write(
        FEBRUARY, 50, end_user="user:9", citations=[{"n": 1, "excerpt": "e", "chapter": "Joints", "score": 0.9}]
    )  # fmt: skip
    assert await log.seal() == {}
    make(log)
    assert sums(log, "chapters", "value")["Joints",] == 1
    await log.erase(ErasureTarget(spellings("user:9")))
    assert any("records are erased" in line for line in check(log))
    make(log)
    assert ("Joints",) not in sums(log, "chapters", "value")
    assert check(log) == []


async def test_too_many_rows_without_a_rollup_are_said_and_not_waited_for(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.charts.figures.chart_log.LIVE_LEAVES_MAX", 16)
    with pytest.raises(RollupError, match="17 sealed records of these months are in no rollup yet"):
        sums(log, "requests")
    make(log)
    assert sums(log, "requests") == {(): 17}


async def test_filters_leave_out_the_others(log: SealedLog) -> None:
    log.write(FEBRUARY, 60, 61, book_id="other", client_id="x", outcome="refused")
    assert await log.seal() == {}
    for _ in range(2):  # live, then from the rollup
        assert sums(log, "requests", "book_id") == {("b",): 17, ("other",): 2}
        chosen = ChartChoice(YEAR.since, YEAR.until, "other", "x", "refused")
        assert sums(log, "requests", "book_id", choice=chosen) == {("other",): 2}
        assert sums(log, "requests", choice=ChartChoice(YEAR.since, YEAR.until, "none")) == {}
        assert sums(log, "requests", choice=ChartChoice(TENTH, TENTH + timedelta(1))) == {(): 14}
        assert sums(log, "requests", choice=ChartChoice(date(2024, 2, 29), date(2024, 3, 1))) == {}
        make(log)


# Seen red with weeks that began on Sunday: a week had two columns.
async def test_a_step_begins_on_the_same_day_in_rollups_as_in_what_is_live(log: SealedLog) -> None:
    def weeks() -> dict[date | None, int]:
        with connected(log, AUDITOR) as connection:
            page = ChartLog(connection, sealed_rows_of(connection, log.vault), YEAR)
            return {key.day: count.count for key, count in page.sums("requests", "step").items()}

    before = weeks()
    assert before == {date(2025, 1, 6): 5, TENTH: 12}
    make(log)
    assert weeks() == before


# Seen red without the look at erasures: the chapter stayed until the engine was started again.
async def test_what_is_kept_of_live_counts_grows_and_forgets_what_is_erased(log: SealedLog) -> None:
    kept = LiveCounts()

    def chapters() -> dict[str | None, int]:
        with connected(log, AUDITOR) as connection:
            page = ChartLog(connection, sealed_rows_of(connection, log.vault), YEAR, kept)
            return {key.value: count.count for key, count in page.sums("chapters", "value").items()}

    assert chapters() == {None: 17}
    cited = [{"n": 1, "excerpt": "e", "chapter": "Joints", "score": 0.9}]
    log.write(FEBRUARY, 50, end_user="user:9", citations=cited)
    assert await log.seal() == {}
    assert chapters() == {None: 17, "Joints": 1}
    await log.erase(ErasureTarget(spellings("user:9")))
    assert chapters() == {None: 18}


# Seen red when a rollup was written in place of one of more leaves.
async def test_two_makers_count_no_leaf_twice(log: SealedLog) -> None:
    """The second one planned when the first had not written yet."""
    with connected(log, SEALER) as one, connected(log, SEALER) as other:
        late = RollupKeeper(other, sealed_rows_of(other, log.vault), now)
        planned = list(late._missing())
        log.write(FEBRUARY, 30)
        assert await log.seal() == {}
        made = RollupKeeper(one, sealed_rows_of(one, log.vault), now).make(quiet)
        assert [rollup.tree_size for rollup in made] == [5, 13]
        assert [stored.put(other, rollup, {}, now()) for rollup in planned[1:]] == [False]
        with stored.alone(one):
            log.write(FEBRUARY, 31)
            assert await log.seal() == {}
            with pytest.raises(RollupsBusyError, match="Another process"):
                late.make(quiet)
    make(log)
    assert sums(log, "requests") == {(): 19}
    assert check(log) == []


# Seen red on a connection that commits by itself: the records were counted twice.
async def test_a_rollup_that_is_made_while_a_page_is_drawn_changes_none_of_its_numbers(
    log: SealedLog,
) -> None:
    with charts.open_chart_log(log.database.settings, log.database, YEAR) as page:
        before = page.sums("requests", "day")
        assert len(make(log)) == 2
        assert page.sums("requests", "day") == before
        assert {key.day: count.count for key, count in page.sums("questions", "day").items()} == {
            date(2025, 1, 10): 5,
            TENTH: 12,
        }


trails = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 4 * 86_400).map(
            lambda seconds: LEAP.replace(day=27) + timedelta(seconds=seconds)
        ),
        "book_id": st.sampled_from(["one", "two", None, "<b>&\"'"]),
        "client_id": st.sampled_from(["a", "=1+1", None]),
        "outcome": st.sampled_from(["answered", "refused", "failed"]),
        "reason": st.sampled_from([None, "not_covered"]),
        "source_mode": st.sampled_from([None, "full-book"]),
        "best_score": st.one_of(st.none(), st.floats(0, 1)),
        "total_latency_ms": st.one_of(st.none(), st.integers(0, 9000)),
        "tokens_input": st.one_of(st.none(), st.integers(0, 5000)),
        "model_used": st.sampled_from([None, "m1", "m2"]),
        "repeat_count": st.integers(1, 3),
    }
)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(trails, min_size=1, max_size=8), min_size=1, max_size=3))
async def test_charts_of_any_log_are_what_its_rows_give(
    log: SealedLog, batches: list[list[dict[str, Any]]]
) -> None:
    """Rolled up in parts, with the last part live; a leap day is a day."""
    log.restore()
    leap = ChartChoice(date(2024, 2, 27), date(2024, 3, 3))
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("TRUNCATE audit_rollup_sums, audit_rollup_counts, audit_rollups")
        make_months(connection, (date(2024, 2, 1), date(2024, 3, 1)))
        connection.execute("DELETE FROM audit_logs WHERE timestamp < '2025-01-01'")
    written: list[dict[str, Any]] = []
    for batch in batches:
        make(log)
        for fields in batch:
            log.write(fields["timestamp"].date(), len(written), **fields)
            written.append(fields)
        assert await log.seal() == {}
    requests, questions, tokens = Counter[Any](), Counter[Any](), Counter[Any]()
    for row in written:
        day = row["timestamp"].date()
        requests[day, row["outcome"], row["book_id"], row["client_id"], row["reason"]] += row["repeat_count"]
        questions[row["book_id"],] += row["source_mode"] is not None
        tokens[row["model_used"],] += row["tokens_input"] is not None
    members = ("day", "outcome", "book_id", "client_id", "value")
    assert sums(log, "requests", *members, choice=leap) == requests
    assert sums(log, "questions", "book_id", choice=leap) == +questions
    assert sums(log, "tokens_input", "value", choice=leap) == +tokens
    make(log)
    assert sums(log, "requests", *members, choice=leap) == requests
    assert check(log) == []
