"""The pure parts of a search: addresses that say the same again, marks that lose no character, what was pasted."""

import json
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.search import archived, words
from audit.search.criteria import Criteria, CriteriaError
from audit.search.marks import MarkedPiece, marked, spans_cited, spans_of
from audit.search.pasted import pasted

TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=50)
TIMES = st.none() | st.datetimes(timezones=st.just(UTC))


@given(TEXT, TEXT, TEXT, TIMES, TIMES)
def test_the_address_of_a_filter_gives_the_same_filter(
    text: str, book: str, client: str, since: datetime | None, until: datetime | None
) -> None:
    criteria = Criteria(text=text.strip(), book=book.strip(), client=client.strip(), since=since, until=until)
    assert Criteria.read(dict(parse_qsl(criteria.address))) == criteria


@pytest.mark.parametrize(
    "wrong", [{"from": "yesterday"}, {"text": "x" * 501}, {"book": "\x00"}, {"to": "99999-01-01"}]
)
def test_what_is_no_filter_is_refused_in_words(wrong: dict[str, str]) -> None:
    with pytest.raises(CriteriaError):
        Criteria.read(wrong)


@given(TEXT, st.lists(st.tuples(st.integers(-5, 60), st.integers(-5, 60))))
def test_marking_loses_no_character(text: str, spans: list[tuple[int, int]]) -> None:
    pieces = marked(text, spans)
    assert "".join(piece.text for piece in pieces) == text
    inside = {at for begin, end in spans for at in range(max(begin, 0), min(end, len(text)))}
    assert sum(len(piece.text) for piece in pieces if piece.is_marked) == len(inside)


def test_quotations_that_overlap_are_one_mark_and_count_code_points() -> None:
    assert marked("a🤖bcd", [(1, 3), (2, 4)]) == [
        MarkedPiece("a", False),
        MarkedPiece("🤖bc", True),
        MarkedPiece("d", False),
    ]
    assert spans_of("aXaXa", ["aXa", ""]) == [(0, 3), (2, 5)]
    assert spans_cited([{"start": 1, "end": 2}, {"start": "1", "end": None}, {}]) == [(1, 2)]


@given(st.text(max_size=200))
def test_anything_may_be_pasted(text: str) -> None:
    pasted(text)
    words.terms_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[]",
        '{"log_id": 1}',
        '{"log_id": "x"}',
        "{" * 100_000,
        json.dumps({"row": {"log_id": "\x00"}}),
    ],
)
def test_what_names_nothing_is_nothing(text: str) -> None:
    assert pasted(text) is None


def test_sql_for_archived_months_quotes_what_was_given() -> None:
    found = archived.statement(Criteria(client="o'b\\"), None, 5)
    assert found
    assert "client_id = 'o''b\\'" in found
    assert archived.statement(Criteria(text="words"), None, 5) is None
