"""Search in the log: words, ids and filters, over a month that is over and the one that is being written."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from audit.proof.record import Trail
from audit.search import finding
from audit.search.criteria import Criteria
from audit.search.finding import Finder, FoundRecord, LogPlace
from audit.search.pasted import pasted
from audit.search.saved import SavedView, SavedViews
from audit.search.word_index import build_missing
from engine.storage.database import AUDITOR, Database, open_lazily
from tests.databases import migrated_database
from tests.logs.recorded import make_months, quotation, write

OVER, NOW, AHEAD = date(2031, 4, 1), date(2031, 5, 1), date(2031, 6, 1)
TODAY = date(2031, 5, 20)
CHUNK = "ab" * 32


def asked(at: datetime, question: str, answer: str = "", **fields: Any) -> Trail:
    return Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=at, endpoint="/v1/query", outcome="answered",
        user_query_text=question, answer_text=answer, book_id=fields.pop("book_id", "robots"), **fields,
    )  # fmt: skip


def days(month: date, count: int) -> Iterator[datetime]:
    return (
        datetime(month.year, month.month, 10, tzinfo=UTC) + timedelta(minutes=number)
        for number in range(count)
    )


SAID = (
    ("Was misst das Gelenk?", "Die Gelenke messen den Winkel."),
    ("كيف يعمل الروبوت؟", "الروبوت يعمل بالكهرباء"),
    ("机器人如何行走", "它用两条腿保持平衡。"),
    ("ロボットは何ですか", "機械です"),
    ("What is compliance?", "Passive compliance lets a joint yield, 3.5-inch at most."),
)


@pytest.fixture(scope="module")
def url(database: Database) -> Iterator[str]:
    """The same questions in a month that is over and has its index, and in the one that is being written."""
    with migrated_database(database) as made:
        with psycopg.connect(made.url) as inside:
            make_months(inside, (OVER, NOW, AHEAD))
            for month in (OVER, NOW):
                write(
                    inside, *[asked(at, *said) for at, said in zip(days(month, len(SAID)), SAID, strict=True)]
                )
        yield made.url


@pytest.fixture
async def finder(url: str) -> AsyncIterator[Finder]:
    async with indexed(url), open_lazily(url, AUDITOR, size_max=2, wait_s=5) as pool:
        yield Finder(pool, TODAY, budget_s=60)


@asynccontextmanager
async def indexed(url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        await owner.execute("SET ROLE affidavit_owner")
        await build_missing(owner, TODAY)
        yield owner


async def questions(finder: Finder, text: str, **given: Any) -> list[tuple[int, str | None]]:
    page = await finder.page(Criteria(text=text, **given))
    return [(found.timestamp.month, found.user_query_text) for found in page.rows]


def both(number: int) -> list[tuple[int, str | None]]:
    return [(5, SAID[number][0]), (4, SAID[number][0])]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("gelenk", 0), ("Winkel", 0), ('"das Gelenk"', 0), ("Gelen*", 0), ("Gelenk Winkel", 0),
        ("الروبوت", 1), ("بالكهرباء", 1), ("机器人", 2), ("行走", 2), ("平衡", 2), ("ロボット", 3), ("機械", 3),
        ("compliance yield", 4), ('"passive compliance"', 4), ("3.5-inch", 4), ("COMPLIANCE", 4),
    ],
)  # fmt: skip
async def test_a_word_is_found_with_and_without_an_index(finder: Finder, text: str, number: int) -> None:
    assert await questions(finder, text) == both(number)


@pytest.mark.parametrize(
    "text", ["人机", '"Gelenk das"', "Gelenken", "zzz", "!!", "&", "comp%", "yield_", "\\", "':*"]
)
async def test_what_was_not_said_is_not_found(finder: Finder, text: str) -> None:
    assert await questions(finder, text) == []


async def test_a_word_of_a_book_with_a_language_is_found_in_its_other_forms(finder: Finder, url: str) -> None:
    with psycopg.connect(url) as inside:
        inside.execute("SET session_replication_role = replica")
        generation = uuid4()
        inside.execute(
            "INSERT INTO generations (generation_id, book_id, embedder, dimension, calibration, lexicon, content_hash, language)"
            " VALUES (%s, 'robots', 'e', 1, '{}', '{}', '', 'de')", (generation,),
        )  # fmt: skip
        inside.execute(
            "INSERT INTO books (book_id, title, live_generation) VALUES ('robots', 't', %s)", (generation,)
        )
    assert await questions(finder, "Gelenken") == both(0)
    assert await questions(finder, "Gelenken", book="other") == []
    with psycopg.connect(url) as inside:
        inside.execute("SET session_replication_role = replica")
        inside.execute("DELETE FROM books")


IDS: dict[str, Any] = {
    "request_id": "req-2031-x", "provider_request_id": "msg_01'\\x", "session_id": uuid4(), "writer": uuid4(),
    "answer_id": uuid4(),
}  # fmt: skip


@pytest.mark.parametrize("month", [OVER, NOW])
async def test_every_id_finds_its_record(finder: Finder, url: str, month: date) -> None:
    at = datetime(month.year, month.month, 20, tzinfo=UTC)
    trail = asked(at, "ids", citations=[quotation(1, CHUNK, "x")], **IDS)
    with psycopg.connect(url) as inside:
        row = write(inside, trail)
        leaf = row["leaf_hash"].removeprefix("\\x")
        inside.execute("SET ROLE affidavit_sealer")
        inside.execute(
            "INSERT INTO audit_leaves VALUES (%s, 0, %s, %s, now())",
            (month, trail.log_id, bytes.fromhex(leaf)),
        )
    receipt = f'{{"log_id": "{trail.log_id}", "leaf_hash": "{leaf}", "issued_at": "x"}}'
    pastes = [
        str(trail.log_id), str(trail.query_id).upper(), f" {trail.answer_id}\n", IDS["session_id"], IDS["writer"], IDS["request_id"],
        IDS["provider_request_id"], leaf, f"\\x{leaf}", CHUNK, receipt, f'{{"query_id": "{trail.query_id}", "receipt": {receipt}}}',
        f'{{"format": "affidavit proof 1", "row": {{"log_id": "{trail.log_id}"}}}}', f'{{"leaf_hash": "{leaf}"}}',
    ]  # fmt: skip
    for text in pastes:
        found = pasted(str(text))
        assert found is not None, text
        assert trail.log_id in {each.log_id for each in await finder.named(found)}, text
        assert await finder.named(found, ["another"]) == [], "the books of a key limit what is seen"


# Seen red without the mask: who sees no personal column learned which records were of a reader.
@pytest.mark.parametrize("month", [OVER, NOW])
async def test_a_readers_name_finds_what_was_told_to_this_reader(
    finder: Finder, url: str, month: date
) -> None:
    at = datetime(month.year, month.month, 22, tzinfo=UTC)
    reader = f"user:{uuid4()}"
    trails = [asked(at + timedelta(minutes=number), "mine", end_user=reader) for number in range(3)]
    with psycopg.connect(url) as inside:
        write(inside, *trails, asked(at, "another's", end_user=f"{reader}0"))
    found = pasted(reader)
    assert found
    assert [each.log_id for each in await finder.named(found)] == [trail.log_id for trail in reversed(trails)]
    assert await finder.named(found, ["another"]) == []
    assert await finder.named(found, is_masked=True) == []


# Seen red: all words of the record were NULL, because those of its answer were.
@pytest.mark.parametrize("month", [OVER, NOW])
@pytest.mark.parametrize("missing", ["answer_text", "user_query_text"])
async def test_a_question_without_an_answer_is_found(
    finder: Finder, url: str, month: date, missing: str
) -> None:
    at = datetime(month.year, month.month, 21, tzinfo=UTC)
    writer, asked_for = uuid4(), f"unheard{uuid4().hex}"
    trail = replace(asked(at, asked_for, asked_for), outcome="failed", writer=writer)
    setattr(trail, missing, None)
    with psycopg.connect(url) as inside:
        write(inside, trail)
    assert [each.log_id for each in (await finder.page(Criteria(text=asked_for))).rows] == [trail.log_id]
    found = pasted(str(writer))
    assert found and [each.log_id for each in await finder.named(found)] == [trail.log_id]


# Seen red with the leaves of each view: 20 MB for a full list.
async def test_a_list_of_saved_views_does_not_read_what_they_froze(finder: Finder, url: str) -> None:
    at = datetime(2031, 5, 1, tzinfo=UTC)
    view = SavedView(uuid4(), "owner", "frozen", "", False, at, {"2031-04": [1, "root"]}, {"2031-04": [0]})
    async with open_lazily(url, "affidavit_engine", size_max=1, wait_s=5) as pool:
        views = SavedViews(pool, finder)
        await views.save(view)
        assert await views.seen_by("owner") == [replace(view, leaves=None)]
        assert await views.one("owner", view.view_id) == view
    assert replace(view, leaves=None).is_frozen


async def test_pages_have_each_record_once_while_others_are_written(finder: Finder, url: str) -> None:
    seen: list[FoundRecord] = []
    after, number = None, 0
    while True:
        page = await finder.page(Criteria(book="robots"), after, size=2)
        seen += page.rows
        with psycopg.connect(url) as inside:
            write(inside, asked(datetime(2031, 5, 28, number, tzinfo=UTC), "new"))
        number += 1
        if page.older is None:
            break
        after = LogPlace.read(str(page.older))
    assert len(seen) == len({found.log_id for found in seen})
    assert [found.place for found in seen] == sorted((found.place for found in seen), reverse=True)
    assert {said[0] for said in SAID} <= {found.user_query_text for found in seen}


async def test_a_search_that_runs_out_of_time_says_how_far_it_came_and_goes_on(
    finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "SLICE_ROWS", 2)
    hasty = replace(finder, budget_s=0)
    after, pages, rows = None, 0, list[FoundRecord]()
    while pages == 0 or after:
        page = await hasty.page(Criteria(text="gelenk"), after)
        after, rows, pages = page.older, rows + page.rows, pages + 1
        assert page.is_cut == (page.older is not None)
    assert pages > 1
    assert [found.user_query_text for found in rows] == [SAID[0][0]] * 2


async def test_a_filter_limits_the_period_and_the_books(finder: Finder) -> None:
    since = datetime(2031, 4, 10, 0, 1, tzinfo=UTC)
    until = since + timedelta(minutes=2)
    page = await finder.page(Criteria(since=since, until=until))
    assert [found.user_query_text for found in page.rows] == [SAID[2][0], SAID[1][0]]
    assert (await finder.page(Criteria(books=frozenset({"another"})))).rows == []
    assert (await finder.page(Criteria(books=frozenset()))).rows == []


async def test_a_month_that_is_over_says_that_it_has_no_index(finder: Finder, url: str) -> None:
    with psycopg.connect(url) as inside:
        inside.execute("DROP INDEX audit_search_2031_04")
    page = await finder.page(Criteria(text="gelenk"))
    assert (len(page.rows), page.unindexed) == (2, (OVER,))


async def test_an_unfinished_index_is_built_anew(url: str) -> None:
    async with indexed(url) as owner:
        await owner.execute("RESET ROLE")
        await owner.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'audit_search_2031_04'::regclass"
        )
        await owner.execute("SET ROLE affidavit_owner")
        assert await build_missing(owner, TODAY) == [OVER]
        assert await build_missing(owner, TODAY) == []


def test_a_uuid_names_one_thing_or_another() -> None:
    assert pasted("12 monkeys") is None
    assert pasted(str(UUID(int=1))) == ("id", str(UUID(int=1)))
