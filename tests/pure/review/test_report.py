"""What a report says, against verdicts that were counted by hand; and that nobody's text gets into its markup."""

from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from audit.review import drawing
from audit.review.intervals import wilson
from audit.review.report import ReviewReport, report_of
from audit.review.rubric import Judgement, Marks, Standing, standing_of
from audit.review.sample import Drawable, Sample, StatedHead, Wish, draw, state

RIGHT, WRONG = Marks("yes", "yes", "no", "no"), Marks("no", "yes", "no", "no")
HOSTILE = '"><script>alert(1)</script>'
AT = datetime(2026, 11, 1, tzinfo=UTC)


def candidates(*sizes: tuple[str, int], book: str = "b") -> list[Drawable]:
    levels = [level for level, size in sizes for _ in range(size)]
    return [Drawable(str(UUID(int=number)), (level, book)) for number, level in enumerate(levels)]


def sample(found: list[Drawable], size: int) -> Sample:
    wish = Wish(None, None, ("confidence", "book"), size)
    statement = state(wish, "log", [StatedHead(date(2026, 10, 1), 4, bytes(32))], found)
    return draw(UUID(int=1), statement, 0, "head\n\n— affidavit q83vEgE=\n", found)


def judged(*marks: Marks | None) -> Standing:
    people = ("ada", "lin")
    given = zip(people, marks, strict=False)
    return standing_of(
        [Judgement(UUID(int=at), AT, who, "review", each) for at, (who, each) in enumerate(given)]
    )


def reported(drawn: Sample, wrong: int = 0) -> ReviewReport:
    """Of the records of high confidence so many are wrong; all are judged by two who agree."""
    high = [each.log_id for each in drawn.records if each.stratum[0] == "high"]
    return report_of(
        drawn,
        {
            each.log_id: judged(*[WRONG if each.log_id in high[:wrong] else RIGHT] * 2)
            for each in drawn.records
        },
    )


def test_what_high_was_worth() -> None:
    found = reported(sample(candidates(("high", 80), ("low", 20)), 20), wrong=4)
    worth = {each.level: each for each in found.worth}
    assert worth["high"].population == 80 and worth["high"].right == wilson(12, 16)
    assert worth["medium"].right is None
    assert found.errors and found.errors.share == pytest.approx(0.8 * 4 / 16)
    line = drawing.worth_line(worth["high"])
    assert line == "“high” was right in 75.0 % (50.5 % to 89.8 %), by people, from 16 of 80 such answers."
    assert line in drawing.text(found)


def test_records_that_are_not_final_are_said_to_be_so() -> None:
    drawn = sample(candidates(("high", 5)), 5)
    open_, half, disputed, final, gone = (each.log_id for each in drawn.records)
    standings = {half: judged(RIGHT), disputed: judged(RIGHT, WRONG), final: judged(RIGHT, RIGHT)}
    found = report_of(drawn, standings, [gone])
    assert (found.judged, found.open, found.disputed, found.erased) == (1, 2, 1, 1)
    assert open_ not in standings
    assert found.agreement["grounded"].records == 2
    erased = report_of(drawn, {final: judged(None, RIGHT)})
    assert (erased.judged, erased.erased, erased.open) == (0, 1, 4)


def test_without_confidence_among_the_strata_nothing_is_said_of_it() -> None:
    found = [Drawable(each.log_id, each.stratum[1:]) for each in candidates(("high", 5))]
    statement = state(
        Wish(None, None, ("book",), 5), "log", [StatedHead(date(2026, 10, 1), 4, bytes(32))], found
    )
    report = report_of(draw(UUID(int=1), statement, 0, "head\n\n— affidavit q83vEgE=\n", found), {})
    assert report.worth == []
    assert drawing.CONFIDENCE in drawing.text(report)


def test_a_hostile_book_name_stays_text() -> None:
    drawn = sample(candidates(("high", 5), book=HOSTILE), 5)
    page = drawing.html(reported(drawn)).text
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_report_on_nothing_says_so() -> None:
    found = report_of(sample(candidates(("high", 5)), 3), {})
    assert "not measured" in drawing.text(found)
    assert "undefined" in drawing.html(found).text
