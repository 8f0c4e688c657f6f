"""One text for one value, whatever it went through: RFC 8785, with the figures that node wrote down for us."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.proof.canonical import canonical_json
from tests.build import steady, texts, values

# What `JSON.stringify` of node says to the same doubles.
NUMBERS = [
    (0.0, b"0"), (-0.0, b"0"), (1.0, b"1"), (-1.0, b"-1"), (1.5, b"1.5"), (0.1, b"0.1"),
    (0.1 + 0.2, b"0.30000000000000004"), (1 / 3, b"0.3333333333333333"), (-2 / 3, b"-0.6666666666666666"),
    (0.83, b"0.83"), (100.0, b"100"), (1e15, b"1000000000000000"), (4503599627370497.5, b"4503599627370498"),
    (123456789012345680.0, b"123456789012345680"), (9007199254740991, b"9007199254740991"),
    (9007199254740992, b"9007199254740992"), (9007199254740994, b"9007199254740994"),
    (2.0**68, b"295147905179352830000"), (999999999999999868928.0, b"999999999999999900000"),
    (1e21, b"1e+21"), (-1e21, b"-1e+21"), (1.5e21, b"1.5e+21"), (1e23, b"1e+23"),
    (1.0000000000000001e23, b"1.0000000000000001e+23"), (6.02214076e23, b"6.02214076e+23"),
    (1e-4, b"0.0001"), (1e-5, b"0.00001"), (0.000123, b"0.000123"), (1e-6, b"0.000001"), (1.5e-6, b"0.0000015"),
    (0.0000012345678901234567, b"0.0000012345678901234567"), (1e-7, b"1e-7"), (-1.5e-7, b"-1.5e-7"),
    (2.2250738585072014e-308, b"2.2250738585072014e-308"), (5e-324, b"5e-324"),
    (1.7976931348623157e308, b"1.7976931348623157e+308"),
]  # fmt: skip


# Seen red with `repr` for every number: 1.0, 1e-05 and 1e+16 were what only Python writes.
@pytest.mark.parametrize(("number", "expected"), NUMBERS)
def test_numbers_are_written_as_javascript_does(number: float, expected: bytes) -> None:
    assert canonical_json(number) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [1, 2.5, None, True]}, b'{"a":[1,2.5,null,true],"b":1}'),
        ([], b"[]"),
        ({}, b"{}"),
        ((1, "a"), b'[1,"a"]'),
        ([False, [[]], {"": {}}], b'[false,[[]],{"":{}}]'),
        ('\x00\x01\x1f\b\f\n\r\t"\\/', b'"\\u0000\\u0001\\u001f\\b\\f\\n\\r\\t\\"\\\\/"'),
        ("\x7f\x80\u2028\uffff<>&é🦿", '"\x7f\x80\u2028\uffff<>&é🦿"'.encode()),
    ],
)  # fmt: skip
def test_canonical_form(value: Any, expected: bytes) -> None:
    assert canonical_json(value) == expected


# Seen red with the order of code points: the smiley, two surrogates for JavaScript, came after U+FB33.
def test_keys_stand_in_the_order_of_their_utf16() -> None:
    inorder = ["", "\r", "1", "A", "a", "\x80", "ö", "€", "😀", "\ufb33"]
    written = canonical_json(dict.fromkeys(reversed(inorder), 0)).decode()
    assert list(json.loads(written)) == inorder


@steady
@given(values)
def test_canonical_form_survives_reading_and_writing(value: Any) -> None:
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@steady
@given(st.dictionaries(texts, st.integers(0, 9), max_size=6))
def test_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


@steady
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_of_the_database_is_the_double_of_the_record(number: float) -> None:
    """PostgreSQL writes `double precision` as 1e-05 and 1e+16; it is the same number."""
    assert canonical_json(json.loads(repr(number))) == canonical_json(number)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": -float("inf")}])
def test_what_is_no_json_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(value)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 10**23 + 1, [2**68], 10**400, -(10**400)])
def test_two_integers_never_get_one_text(value: Any) -> None:
    """Beyond 2**53 a double stands for several: only the one that it is written as is taken."""
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(value)


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["a\udc00"], {"\ud83d": 1, "é": 2}])
def test_half_a_character_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        canonical_json(value)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), {1: "a"}, {None: "a"}])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)
