"""The language of a book and of a question, how its words are compared, and how many it has."""
# ruff: noqa: RUF001 - the texts have the letters of their scripts

import json
from dataclasses import replace
from uuid import UUID

import pytest

from engine.models import Generation, Lexicon
from engine.refusals import RefusalReason
from engine.retrieval import calibrate, lexical, words_only
from engine.retrieval.retrieve import is_foreign
from engine.words import languages
from engine.words.stop_words import STOP_WORDS
from tests.conftest import ROOT

CALIBRATION = ROOT / "config" / "calibration"
PROBES = {file.suffixes[0][1:]: file for file in CALIBRATION.glob("probes.*.txt")}
POTTERY = ROOT / "tests" / "data" / "languages"


def generation(language: str, embedder: str) -> Generation:
    curves = calibrate.shipped(embedder, 1, ((0.0, 0.0), (1.0, 1.0)))
    return Generation(UUID(int=1), "book", embedder, 1, curves, Lexicon({}, 1, 3.0), language)


def asked(language: str) -> list[str]:
    return [line for line in PROBES[language].read_text().splitlines() if line and line[0] != "#"]


def test_many_languages_have_probe_questions() -> None:
    assert len(PROBES) >= 14
    assert all(len(set(asked(language))) >= 60 for language in PROBES)


@pytest.mark.parametrize("language", sorted(PROBES))
def test_the_language_of_a_text_is_found(language: str) -> None:
    assert languages.of_book("\n".join(asked(language))) == language


@pytest.mark.parametrize("language", sorted(PROBES))
def test_no_question_is_taken_for_one_in_another_language(language: str) -> None:
    wrong = [
        text for text in asked(language) if languages.is_other(languages.of_question(text), text, language)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "{}",
        "x = f(y)",
        "ros2_control MoveIt Gazebo",
        "List<int> a = new();",
        "a1 e5 c d e7 f a " * 40,
    ],
)
def test_without_a_sign_of_another_language_a_book_is_english(text: str) -> None:
    assert languages.of_book(text) == "en"


def test_an_english_book_may_quote_other_languages() -> None:
    book = "The German word for clay is Ton, and in the language of the potters there are many of these. " * 5
    assert languages.of_book(f"{book} Die Töpfer graben ihn im Herbst. 陶工在秋天挖土。") == "en"


# Seen red with the script of most letters taken for the book's.
@pytest.mark.parametrize("language", ["hi", "ur", "zh"])
def test_code_and_terms_in_a_book_do_not_make_it_english(language: str) -> None:
    pages = "\n".join(file.read_text() for file in (POTTERY / language).glob("*.md"))
    code = "ros2 launch kiln_bringup kiln.launch.py use_sim_time:=true\n"
    assert languages.of_book(pages + code * (len(pages) // len(code))) == language


@pytest.mark.parametrize(
    "text",
    [
        "ZMP",
        "Was ist ZMP?",
        "ros2_control",
        "PID",
        "der die das",
        "C++ vs. Rust",
        "SLAM 是什么",
        "",
        "???",
        "RRT* en ROS 2",
    ],
)
def test_a_short_or_technical_question_is_in_no_language_for_certain(text: str) -> None:
    asked_in = languages.of_question(text)
    assert not languages.is_other(asked_in, text, "en") or asked_in == "zh"


QUESTIONS = {
    "de": "Warum bleibt der Ton im Winter draußen?",
    "es": "¿Por qué se deja la arcilla fuera en invierno?",
    "hi": "मिट्टी को सर्दी में बाहर क्यों छोड़ते हैं?",
    "ru": "Почему глину на зиму оставляют на улице?",
    "zh": "为什么冬天要把陶土放在外面？",
}


@pytest.mark.parametrize("language", QUESTIONS)
@pytest.mark.parametrize(
    ("embedder", "readable", "book", "is_refused"),
    [
        ("minilm", frozenset({"en"}), "en", True),
        ("cohere", frozenset(), "en", False),
        ("both", frozenset({"en", *QUESTIONS}), "en", False),
        (words_only.NAME, frozenset(), "en", True),
    ],
)
def test_a_question_is_refused_if_the_embedder_cannot_compare_it_with_the_book(
    language: str, embedder: str, readable: frozenset[str], book: str, is_refused: bool
) -> None:
    question = QUESTIONS[language]
    assert is_foreign(question, generation(book, embedder), readable) is is_refused
    assert not is_foreign(question, generation(language, embedder), readable)
    assert not is_foreign(question, replace(generation(book, embedder), is_language_known=False), readable)


@pytest.mark.parametrize("language", [*QUESTIONS, "ar", "ja", "ur", "xx"])
def test_a_reader_is_told_in_the_language_of_the_question_or_in_english(language: str) -> None:
    reason = RefusalReason.LANGUAGE_NOT_SUPPORTED
    assert (reason.message(language=language) == reason.sentence) is (language == "xx")


def test_every_reason_has_a_german_sentence() -> None:
    for reason in RefusalReason:
        assert reason.message(language="de") != reason.message()
        assert "{" not in reason.message("Kapitel 3", "de")


# --- Words


def test_english_words_are_not_changed_by_other_languages() -> None:
    text = "The robot's joints are moving; ros2_control runs at 1,000 Hz."
    assert lexical.words(text) == lexical.words(text, "en")
    assert "joint" in lexical.words(text)


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("de", "Gefäße", "Gefäß"), ("de", "Strasse", "Straße"), ("tr", "IŞIK", "ışık"), ("tr", "İZMİR", "izmir"),
        ("es", "canción", "cancion"), ("ar", "الأرض", "الارض"), ("ar", "كِتَاب", "كتاب"), ("hi", "बर्तनों", "बर्तन"),
        ("ur", "كتاب", "کتاب"), ("ru", "Роботы", "робот"), ("zh", "ＲＯＳ", "ros"), ("nl", "paarden", "paard"),
    ],
)  # fmt: skip
def test_two_forms_of_a_word_share_a_term(language: str, one: str, other: str) -> None:
    assert set(lexical.words(one, language)) & set(lexical.words(other, language))


def test_a_vowel_sign_belongs_to_its_word() -> None:
    terms = lexical.words("मिट्टी की दीवार", "hi")
    assert not {"म", "ट", "द", "व", "र"} & set(terms)
    assert lexical.words("दीवार", "hi")[0].startswith("दीव")


def test_a_text_without_spaces_counts_by_letters_and_pairs() -> None:
    assert set(lexical.words("陶土", "zh")) == {"陶", "土", "陶土"}
    assert set(lexical.words("ROS2机器", "zh")) >= {"机", "器", "机器", "ros2"}


@pytest.mark.parametrize("language", sorted(STOP_WORDS.keys() - {"en"}))
def test_function_words_alone_are_no_search(language: str) -> None:
    assert lexical.words(" ".join(sorted(STOP_WORDS[language])[:5]), language) == []


@pytest.mark.parametrize("language", ["sw", "und", "th", "bn", "xx"])
def test_any_language_has_words(language: str) -> None:
    assert lexical.words("Habari za asubuhi, অভিধান ประเทศไทย", language)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One two  three", 3),
        ("陶土是岩石", 3),
        ("第49届 ROS", 3),
        ("मिट्टी की दीवार", 3),
        ("あいうえお", 3),
    ],
)
def test_words_are_counted_without_spaces_too(text: str, count: int) -> None:
    assert languages.count_words(text) == count


@pytest.mark.parametrize("language", ["de", "hi", "ur", "zh"])
def test_the_labelled_books_have_twelve_answers_and_eight_questions_about_other_things(language: str) -> None:
    rows = [json.loads(line) for line in (POTTERY / language / "questions.jsonl").read_text().splitlines()]
    text = "\n".join(file.read_text() for file in (POTTERY / language).glob("*.md"))
    assert [row["must_quote"] is None for row in rows] == [False] * 12 + [True] * 8
    assert all(row["must_quote"] in text for row in rows[:12])
