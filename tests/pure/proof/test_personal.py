"""Recognisers: each form there is, what only looks like one, and how well they do on sentences that they were not made from."""

from collections import Counter
from typing import Any

import pytest

from audit.erasure import personal
from audit.erasure.personal import KINDS
from tests.labelled import own, published, sample_questions

# Their names of what we recognise; what has no form (PERSON, GPE, STREET_ADDRESS, …) nobody here claims to find.
OURS = {
    "EMAIL_ADDRESS": "email", "IBAN_CODE": "iban", "CREDIT_CARD": "card", "US_SSN": "national_id", "IP_ADDRESS": "ip",
    "PHONE_NUMBER": "phone",
}  # fmt: skip

RECOGNISED = {
    "jane.doe+book@mail.example.org": "email", "o'neil@example.ie": "email", "müller@bücher.example": "email",
    "DE89 3704 0044 0532 0130 00": "iban", "gb82west12345698765432": "iban",
    "4111 1111 1111 1111": "card", "378282246310005": "card", "6011-1111-1111-1117": "card",
    "123-45-6789": "national_id", "AB 12 34 56 C": "national_id", "12345678Z": "national_id", "X1234567L": "national_id",
    "2 55 08 14 168 025 38": "national_id", "RSSMRA85T10A562S": "national_id",
    "198.51.100.7": "ip", "2001:db8:0:0:8:800:200c:417a": "ip",
    "+44 20 7946 0958": "phone", "0049 30 901820": "phone", "(555) 010-4477": "phone", "555-010-4477": "phone",
    "089 636 48018": "phone", "Call me at 5550104477": "phone",
}  # fmt: skip
ONLY_ALIKE = [
    "a@b", "me @ home", "f(x)@y", "4111 1111 1111 1112", "GB82WEST12345698765433", "12345678A",
    "999.1.1.1", "version 10.0.0.1", "v 1.2.3.4", "1.2.3", "std::vector<int>::iterator", "12:30:45", "1978-04-13 12:20:39",
    "2/8/1935", "299 792 458 m/s", "1 000 000 steps", "3.14159265358979", "978-3-16-148410-0", "9783161484100", "1990-1995",
    "6.02214076e23", "0x1F2E3D4C", "10 20 30 40 50 60 70", "page 156", "1700000000000", "F = 9.81", "2001:db8",
    "What does a 12-bit ADC with 4096 steps measure?",
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), RECOGNISED.items(), ids=RECOGNISED)
def test_a_form_is_recognised_in_a_sentence(text: str, kind: str) -> None:
    for sentence in (text, f"Mine is {text}, and what does an IMU measure?", f"({text})", f"“{text}”"):
        assert [found.kind for found in personal.find(sentence)] == [kind], sentence


# Seen red without the check digits.
@pytest.mark.parametrize("text", ONLY_ALIKE)
def test_what_only_looks_like_it_is_not_recognised(text: str) -> None:
    assert personal.find(text) == []


def test_where_it_stands_is_said() -> None:
    text = "Write to jane@example.org or call +44 20 7946 0958."
    found = personal.find(text)
    assert [(one.kind, text[one.start : one.end]) for one in found] == [
        ("email", "jane@example.org"),
        ("phone", "+44 20 7946 0958"),
    ]


def test_a_name_is_not_found_and_nobody_says_so() -> None:
    assert personal.find("My name is Rubija Kowalska and I live in Tallinn.") == []


def test_questions_about_a_book_name_nobody() -> None:
    assert [
        question["question"] for question in sample_questions() if personal.find(question["question"])
    ] == []


@pytest.mark.parametrize(
    "text", ["1" * 100_000, "1 " * 50_000, "a@" * 50_000, "a." * 50_000, ":" * 100_000, "+1-" * 30_000]
)
def test_a_hostile_text_takes_no_longer(text: str) -> None:
    """A question has a thousand characters, a file of an older log may have more. Ends within the suite's patience."""
    personal.find(text)


def measured(sentences: list[dict[str, Any]]) -> dict[str, tuple[float, float, int]]:
    """Precision, recall and how many there are, by kind. Detection is what overlaps."""
    right, wrong, missed, there = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for told in sentences:
        spans = [
            (OURS[span["type"]], span["start"], span["end"]) for span in told["spans"] if span["type"] in OURS
        ]
        found = [(one.kind, one.start, one.end) for one in personal.find(told["text"])]
        there.update(kind for kind, _, _ in spans)
        right.update(one[0] for one in found if any(overlap(one, span) for span in spans))
        wrong.update(one[0] for one in found if not any(overlap(one, span) for span in spans))
        missed.update(span[0] for span in spans if not any(overlap(one, span) for one in found))
    return {
        kind: (
            right[kind] / max(1, right[kind] + wrong[kind]),
            1 - missed[kind] / max(1, there[kind]),
            there[kind],
        )
        for kind in KINDS
    }


def overlap(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


@pytest.mark.parametrize(
    "sentences", [rows for rows in (own("personal.jsonl"), published("pii/synthetic.jsonl")) if rows]
)
def test_precision_and_recall_on_labelled_sentences(sentences: list[dict[str, Any]]) -> None:
    found = {kind: figures for kind, figures in measured(sentences).items() if figures[-1]}
    print("\n  kind         precision  recall  there")
    for kind, (precision, recall, there) in found.items():
        print(f"  {kind:<12} {precision:>9.3f} {recall:>7.3f} {there:>6}")
    assert set(found) == set(KINDS)
    assert all(precision >= 0.95 and recall >= 0.95 for precision, recall, _ in found.values()), found
