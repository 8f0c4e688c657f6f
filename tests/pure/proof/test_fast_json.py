"""The library in C gives the very text of the reference, or leaves the value to it."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from audit import fast_json
from audit.proof.canonical import canonical_text, texts_of_parsed
from audit.proof.record import leaf_hash
from tests.build import steady, values

# As PostgreSQL, which keeps all digits, and others write numbers.
_NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)
_ODD = [
    "0", "-0", "-0.0", "1.0", "1.00", "1e0", "1E5", "1e-5", "0.00001", "0.0001", "1e16", "1e21", "1e-7", "123456789012345678",
    "9007199254740992", "9007199254740993", "-9007199254740993", "18446744073709551615", "18446744073709551616",
    "100000000000000000000000", "100000000000000000000001", "1e400", "5e-324", "0.1000000000000000055511151231257827",
]  # fmt: skip
_NAMES = [
    "\x7f",
    "\u2028",
    "\uffff",
    "\ue000",
    "😀",
    "\ufb33",
    "e5,",
    '"',
    "\\",
    "/",
    "\x00",
    "\x1f",
    "ö",
    "a.0,",
]


def outcome(read: Any, text: str) -> Any:
    try:
        return read(text)
    except (ValueError, TypeError, RecursionError) as wrong:
        return "no canonical form" if isinstance(wrong, ValueError | TypeError) else "too deep"


def reference(text: str) -> Any:
    row = json.loads(text)
    texts = texts_of_parsed({name: value for name, value in row.items() if value is not None})
    assert texts == {name: canonical_text(value) for name, value in row.items() if value is not None}
    return texts


def fast(text: str) -> Any:
    return fast_json.read_members(text)[1]


# Those with odd numbers were seen red, one after the other, without the look at exponents, at whole fractions, at integers and at
# top-level numbers beyond 2^53.
@steady
@given(st.dictionaries(st.text(max_size=3), values, max_size=5), st.booleans())
def test_any_object_has_the_text_of_the_reference(row: dict[str, Any], is_ascii: bool) -> None:
    text = json.dumps(row, ensure_ascii=is_ascii)
    assert outcome(fast, text) == outcome(reference, text)


@steady
@given(_NUMBERS)
@example("100000000000000000000001")
def test_any_number_has_the_text_of_the_reference(number: str) -> None:
    for text in (f'{{"a":{number}}}', f'{{"a":[{number}]}}', f'{{"a":{{"b":{number},"c":"e5,"}}}}'):
        assert outcome(fast, text) == outcome(reference, text)


@pytest.mark.parametrize("number", _ODD)
def test_odd_numbers_have_the_text_of_the_reference(number: str) -> None:
    for text in (f'{{"a":{number}}}', f'{{"a":[[{number}],1]}}', f'{{"a":{{"b":[1,{number}]}}}}'):
        assert outcome(fast, text) == outcome(reference, text)
    assert outcome(fast_json.canonical, number) == outcome(
        lambda text: canonical_text(json.loads(text)), number
    )


# Seen red without the look at the order of names.
def test_names_are_ordered_as_utf16_has_them() -> None:
    text = json.dumps({"a": {"\uffff": 1, "😀": 2}}, ensure_ascii=False)
    assert fast(text) == reference(text)


def test_odd_names_are_written_and_ordered_as_the_reference_has_them() -> None:
    text = json.dumps(
        {"a": {name: [name, 0.5] for name in _NAMES}, "b": _NAMES, "c": None}, ensure_ascii=False
    )
    assert fast(text) == reference(text)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]x", '{"a":NaN}', '{"a":"\\ud800"}', '{"a":"\ud800"}', "[" * 100_000, '{"a":1,"a":2.0}'],
)
def test_what_is_no_object_or_has_no_canonical_form_fails_as_with_the_reference(text: str) -> None:
    assert outcome(fast, text) == outcome(reference, text)


def row_text(plain: str, personal: str) -> str:
    salt = f'"\\\\x{"5a" * 32}"'
    return f'{{"reason":{plain},"top_k":null,"details":{personal},"salt":{salt},"spooled":false}}'


def fast_leaf(text: str) -> Any:
    row = fast_json.read_row(text)
    return row.leaf(row.commitments()), row.plain_text


def reference_leaf(text: str) -> Any:
    row = json.loads(text)
    return leaf_hash(row), canonical_text({"reason": row["reason"]})


# Seen red, in what is not personal, without the look at what the library writes differently.
@pytest.mark.parametrize("number", _ODD)
def test_a_row_with_odd_numbers_has_the_leaf_of_the_reference(number: str) -> None:
    for plain, personal in (number, '"a"'), ('"a"', number), (f"[{number}]", f'{{"b":{number}}}'):
        text = row_text(plain, personal)
        assert outcome(fast_leaf, text) == outcome(reference_leaf, text)


@steady
@given(values, values)
def test_any_row_has_the_leaf_of_the_reference(plain: Any, personal: Any) -> None:
    text = row_text(json.dumps([plain]), json.dumps([personal]))
    assert outcome(fast_leaf, text) == outcome(reference_leaf, text)


def test_a_row_without_a_salt_has_no_commitments() -> None:
    with pytest.raises(ValueError, match="no salt"):
        fast_json.read_row('{"details":"a","salt":null}').commitments()


def test_usual_rows_are_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be right, and slow."""
    monkeypatch.setattr(fast_json, "json", None)
    text = '{"b":[{"z":0.25,"a":"12e5"}],"a":"1.0, 1e5,","c":0.5,"d":17,"e":null,"f":{"ö":["\uff0c"]}}'
    found = fast_json.read_members(text)[1]
    assert found["b"] == '[{"a":"12e5","z":0.25}]'
    assert found["f"] == '{"ö":["\uff0c"]}'
