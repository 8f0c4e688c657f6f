"""Two people judge a record blind, a third decides where they differ, and what they said is sealed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from audit.erasure.target import ErasureTarget
from audit.errors import ReviewRefusedError
from audit.review.reviews import Person
from audit.review.rubric import Marks
from engine.storage.database import Database
from tests.logs.reviewing import ADA, KAY, LIN, RIGHT, WRONG, make_present, reviewing, sampled
from tests.logs.sealed_log import SealedLog, sealed_log

AUDITOR = Person("aud", "auditor")


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("reviewed")) as made:
        make_present(made)
        await sampled(made)
        made.keep()
        yield made


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    yield whole
    whole.restore()


async def first(log: SealedLog) -> UUID:
    async with reviewing(log) as reviews:
        return (await reviews.queue()).sample.records[0].log_id


def seen(log: SealedLog, statement: str) -> list[tuple[Any, ...]]:
    """What an auditor's SQL shows."""
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_auditor")
        return connection.execute(statement.encode()).fetchall()


async def test_from_the_queue_to_the_report(log: SealedLog) -> None:
    async with reviewing(log) as reviews:
        for person in (ADA, LIN):
            while (record := await reviews.next(person)) is not None:
                await reviews.give(person, record.log_id, RIGHT)
        queue = await reviews.queue()
    report = queue.report()
    assert (report.judged, report.open, report.disputed) == (6, 0, 0)
    assert report.errors and report.errors.share == 0
    assert report.agreement["grounded"].observed == 1
    low = next(each for each in report.worth if each.level == "low")
    assert low.right and (low.right.share, low.right.records) == (1, 6)


async def test_verdicts_are_sealed_and_valid(log: SealedLog) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(ADA, record, RIGHT)
        await reviews.give(LIN, record, WRONG)
        await reviews.adjudicate(KAY, record, WRONG)
    assert await log.seal() == {}
    assert log.inspect().verdict == "VALID"
    unsealed = "SELECT FROM audit_reviews r WHERE NOT EXISTS (SELECT FROM audit_leaves s WHERE s.log_id = r.verdict_id)"
    assert seen(log, unsealed) == []


# Seen red with a view that showed each verdict at once.
async def test_the_view_shows_no_verdict_before_both_gave_theirs(log: SealedLog) -> None:
    values = "SELECT reviewer, kind, grounded, answers, harmful, personal_data, comment FROM audit_reviews ORDER BY given_at"
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(ADA, record, WRONG)
        assert seen(log, values) == [("ada", "review", None, None, None, None, None)]
        await reviews.give(LIN, record, RIGHT)
        await reviews.adjudicate(KAY, record, RIGHT)
    assert seen(log, values) == [
        ("ada", "review", "no", "partly", "no", "yes", "It names the reader."),
        ("lin", "review", "yes", "yes", "no", "no", ""),
        ("kay", "adjudication", "yes", "yes", "no", "no", ""),
    ]


async def test_the_next_record_shows_nothing_that_the_other_said(log: SealedLog) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(ADA, record, WRONG)
        shown = await reviews.next(LIN)
        assert shown and (shown.log_id, shown.task, shown.given) == (record, "review", ())
        await reviews.give(LIN, record, RIGHT)
        for_kay = await reviews.next(KAY)
        assert for_kay and (for_kay.log_id, for_kay.task) == (record, "adjudicate")
        assert {each.reviewer for each in for_kay.given} == {"ada", "lin"}


async def test_reading_a_record_is_itself_on_record(log: SealedLog) -> None:
    async with reviewing(log) as reviews:
        record = await reviews.next(ADA)
    assert record
    ((access, client_id),) = seen(
        log,
        "SELECT details -> 'access', client_id FROM audit_logs WHERE endpoint = 'affidavit audit review next'",
    )
    assert (access["who"], access["role"], access["records"], client_id) == ("ada", "reviewer", 1, "ada")
    assert str(record.log_id) in access["filter"] and "user_query_text" in access["columns"]


@pytest.mark.parametrize("again", ["ada", "ADA", "ada "])
async def test_nobody_judges_a_record_twice(log: SealedLog, again: str) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(ADA, record, RIGHT)
        with pytest.raises(ReviewRefusedError, match="a verdict stays"):
            await reviews.give(Person(again, "reviewer"), record, WRONG)
    assert seen(log, "SELECT count(*) FROM audit_reviews") == [(1,)]
    ((outcome,),) = seen(
        log, "SELECT outcome FROM audit_logs WHERE endpoint LIKE '%give' ORDER BY timestamp DESC LIMIT 1"
    )
    assert outcome == "failed", "the attempt is on record"


# Seen red without the lock.
async def test_two_verdicts_at_once_are_two_and_not_three(log: SealedLog) -> None:
    record = await first(log)
    people = [Person(name, "reviewer") for name in ("a", "b", "c", "d", "a")]
    async with reviewing(log, connections=5) as reviews:
        given = await asyncio.gather(
            *(reviews.give(each, record, RIGHT) for each in people), return_exceptions=True
        )
    assert sorted(type(each).__name__ for each in given) == ["NoneType"] * 2 + ["ReviewRefusedError"] * 3
    assert seen(log, "SELECT count(*), count(DISTINCT reviewer) FROM audit_reviews") == [(2, 2)]


@pytest.mark.parametrize(
    ("person", "task"),
    [
        (AUDITOR, "give"),
        (AUDITOR, "adjudicate"),
        (ADA, "adjudicate"),
        (Person("joe", "reviewer"), "adjudicate"),
    ],
)
async def test_nobody_does_what_their_role_may_not(log: SealedLog, person: Person, task: str) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(Person("eve", "reviewer"), record, RIGHT)
        await reviews.give(LIN, record, WRONG)
        with pytest.raises(ReviewRefusedError, match="needs the role"):
            await getattr(reviews, task)(person, record, RIGHT)
        if person is AUDITOR:
            with pytest.raises(ReviewRefusedError, match="needs the role"):
                await reviews.next(person)


async def test_an_adjudicator_is_neither_of_the_two(log: SealedLog) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        with pytest.raises(ReviewRefusedError, match="nothing to adjudicate"):
            await reviews.adjudicate(KAY, record, RIGHT)
        await reviews.give(ADA, record, RIGHT)
        await reviews.give(LIN, record, WRONG)
        with pytest.raises(ReviewRefusedError, match="a verdict stays"):
            await reviews.adjudicate(LIN, record, WRONG)
        assert (await reviews.queue()).task(record, LIN) is None
        await reviews.adjudicate(KAY, record, WRONG)
        with pytest.raises(ReviewRefusedError, match=r"a verdict stays|is final"):
            await reviews.adjudicate(KAY, record, RIGHT)
        assert (await reviews.queue()).standings[record].final == WRONG


async def test_what_two_agree_on_is_not_adjudicated(log: SealedLog) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(ADA, record, RIGHT)
        await reviews.give(LIN, record, RIGHT)
        with pytest.raises(ReviewRefusedError, match="is final"):
            await reviews.adjudicate(KAY, record, WRONG)


async def test_only_records_of_the_sample_are_judged(log: SealedLog) -> None:
    async with reviewing(log) as reviews:
        with pytest.raises(ReviewRefusedError, match="not in the sample"):
            await reviews.give(ADA, uuid4(), RIGHT)
        with pytest.raises(ReviewRefusedError, match="no drawn sample"):
            await reviews.give(ADA, uuid4(), RIGHT, uuid4())
        with pytest.raises(ValueError, match="comment"):
            await reviews.give(ADA, await first(log), Marks("yes", "yes", "no", "no", "x" * 501))


# A verdict is what its row's leaf commits to: whoever changes it in the database is named by verify, and decides nothing meanwhile.
async def test_a_verdict_that_was_changed_is_found(log: SealedLog) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(ADA, record, WRONG)
    assert await log.seal() == {}
    log.attack(
        """UPDATE audit_logs SET details = jsonb_set(details, '{grounded}', '"yes"') WHERE endpoint = 'affidavit audit review give'"""
    )
    assert log.inspect().verdict == "TAMPERED"


async def test_an_erased_comment_takes_its_verdict_and_leaves_the_proof(log: SealedLog) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(ADA, record, WRONG)
        await reviews.give(LIN, record, WRONG)
    assert await log.seal() == {}
    with psycopg.connect(log.url) as connection:
        ((query_id,),) = connection.execute(
            "SELECT query_id FROM audit_logs WHERE endpoint = 'affidavit audit review give' AND client_id = 'ada'"
        ).fetchall()
    await log.erase(ErasureTarget(query_id=query_id))
    assert await log.seal() == {}
    assert log.inspect().verdict == "VALID"
    async with reviewing(log) as reviews:
        report = (await reviews.queue()).report()
    assert (report.judged, report.erased, report.open) == (0, 1, 5)


async def test_an_erased_record_is_not_handed_out(log: SealedLog) -> None:
    record = await first(log)
    with psycopg.connect(log.url) as connection:
        ((query_id,),) = connection.execute(
            "SELECT query_id FROM audit_logs WHERE log_id = %s", (record,)
        ).fetchall()
    await log.erase(ErasureTarget(query_id=query_id))
    async with reviewing(log) as reviews:
        queue = await reviews.queue()
        assert record not in {log_id for log_id, _ in queue.for_person(ADA)}
        assert queue.report().erased == 1
        with pytest.raises(ReviewRefusedError, match="erased"):
            await reviews.give(ADA, record, RIGHT)


# Seen red when only records that nobody had judged counted as erased.
async def test_an_erased_record_on_which_two_differ_waits_for_nobody(log: SealedLog) -> None:
    record = await first(log)
    async with reviewing(log) as reviews:
        await reviews.give(ADA, record, RIGHT)
        await reviews.give(LIN, record, WRONG)
        with psycopg.connect(log.url) as connection:
            ((query_id,),) = connection.execute(
                "SELECT query_id FROM audit_logs WHERE log_id = %s", (record,)
            ).fetchall()
        await log.erase(ErasureTarget(query_id=query_id))
        report = (await reviews.queue()).report()
    assert (report.disputed, report.erased, report.open) == (0, 1, 5)


async def test_the_confidence_is_not_shown_to_whoever_judges_it(log: SealedLog) -> None:
    async with reviewing(log) as reviews:
        record = await reviews.next(ADA)
    assert record
    assert not any("confidence" in name or "score" in name for name in record.__dataclass_fields__)
