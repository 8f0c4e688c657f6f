"""The offline embedder: the same vector for the same text, whatever else goes on, and no word left out."""
# ruff: noqa: RUF001 - the texts have the letters of their scripts

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.providers.minilm import DIMENSION, MiniLm
from engine.retrieval.windows import WORDS_MAX, windows
from tests.build import steady

QUESTION = "What does an inertial measurement unit measure?"
PARAPHRASE = "Which quantities does an IMU sense?"
UNRELATED = "How long should I bake a sourdough loaf?"


@pytest.fixture(scope="module")
def embedder() -> MiniLm:
    return MiniLm()


@pytest.mark.parametrize("text", [QUESTION, "a", "机器人", "🤖", "x" * 5000, "ros2_control " * 400])
async def test_a_vector_has_length_one(embedder: MiniLm, text: str) -> None:
    vector = await embedder.embed_query(text)
    assert vector.shape == (DIMENSION,)
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)


async def test_every_window_of_a_passage_has_length_one(embedder: MiniLm) -> None:
    rows = (await embedder.embed_passages(["A leg is a spring. " * 100]))[0]
    assert rows.shape == (len(windows("A leg is a spring. " * 100)), DIMENSION)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-6)


async def test_the_same_text_gives_the_same_bits(embedder: MiniLm) -> None:
    first = await embedder.embed_query(QUESTION)
    await embedder.embed_query(UNRELATED * 20)
    assert (await embedder.embed_query(QUESTION)).tobytes() == first.tobytes()
    assert ((await embedder.embed_passages([QUESTION]))[0])[0].tobytes() == first.tobytes()
    assert (await MiniLm().embed_query(QUESTION)).tobytes() == first.tobytes()


# Seen red with every text padded to the longest one so far: int8 then depends on the neighbours.
async def test_the_same_text_gives_the_same_bits_among_others(embedder: MiniLm) -> None:
    alone = (await embedder.embed_query(QUESTION)).tobytes()
    others = [UNRELATED * number for number in range(1, 11)]
    mixed = [text for other in others for text in (QUESTION, other)]
    vectors = await asyncio.gather(*map(embedder.embed_query, mixed))
    assert {vector.tobytes() for vector in vectors[::2]} == {alone}


async def test_a_passage_gives_the_same_bits_among_others(embedder: MiniLm) -> None:
    texts = [f"{UNRELATED} " * 60, QUESTION, "", "0.7071 " * 300]
    together = await embedder.embed_passages(texts)
    alone = [(await embedder.embed_passages([text]))[0] for text in texts]
    assert [rows.tobytes() for rows in together] == [rows.tobytes() for rows in alone]
    assert await embedder.embed_passages([]) == []


# Seen red with the questions seen through windows, like passages.
async def test_many_questions_give_the_same_bits_as_one_by_one(embedder: MiniLm) -> None:
    texts = [QUESTION, "", PARAPHRASE, "torque " * 2000, UNRELATED, QUESTION]
    together = await embedder.embed_questions(texts)
    assert [vector.shape for vector in together] == [(DIMENSION,)] * len(texts)
    alone = [await embedder.embed_query(text) for text in texts]
    assert [vector.tobytes() for vector in together] == [vector.tobytes() for vector in alone]
    assert await embedder.embed_questions([]) == []


async def test_a_question_of_any_length_is_embedded(embedder: MiniLm) -> None:
    vector = await embedder.embed_query("torque " * 2000)
    assert np.isfinite(vector).all()


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u200b", "?"])
async def test_a_text_without_words_has_a_vector_too(embedder: MiniLm, text: str) -> None:
    assert np.linalg.norm(await embedder.embed_query(text)) == pytest.approx(1.0, abs=1e-6)
    assert ((await embedder.embed_passages([text]))[0]).shape == (1, DIMENSION)


async def test_a_paraphrase_is_closer_than_something_else(embedder: MiniLm) -> None:
    question, paraphrase, unrelated = await asyncio.gather(
        *map(embedder.embed_query, (QUESTION, PARAPHRASE, UNRELATED))
    )
    assert question @ paraphrase > question @ unrelated + 0.3


async def test_the_end_of_a_long_passage_is_found(embedder: MiniLm) -> None:
    """The model reads 256 tokens; what stands behind them must be found as well."""
    passage = f"{UNRELATED} " * 60 + QUESTION
    question = await embedder.embed_query(QUESTION)
    best = float(np.max((await embedder.embed_passages([passage]))[0] @ question))
    without = float(np.max((await embedder.embed_passages([f"{UNRELATED} " * 60]))[0] @ question))
    assert best > without + 0.1


@pytest.mark.parametrize("long_word", ["ros2_control", "0.7071"])
async def test_no_word_is_left_unread_where_words_are_long(embedder: MiniLm, long_word: str) -> None:
    """A table or a listing has several tokens a word; its 100th word must change the vectors like its first."""
    words = [long_word] * 300
    vectors = ((await embedder.embed_passages([" ".join(words)]))[0]).tobytes()
    unread = []
    for number in (0, 60, 100, 128, 165, 299):
        changed = [*words[:number], "sourdough", *words[number + 1 :]]
        if ((await embedder.embed_passages([" ".join(changed)]))[0]).tobytes() == vectors:
            unread.append(number)
    assert unread == []


@pytest.mark.parametrize("words", [1, 127, 128, 129, 256, 512, 5000])
def test_tokens_are_counted_without_a_limit(embedder: MiniLm, words: int) -> None:
    assert embedder.count_tokens("leg " * words) == words


def test_a_text_without_words_has_no_tokens(embedder: MiniLm) -> None:
    assert embedder.count_tokens(" ") == 0


# Seen red with one window too few: the last words of some lengths stood in none.
@steady
@given(st.integers(min_value=1, max_value=2000))
def test_windows_cover_every_word(count: int) -> None:
    words = [f"w{number}" for number in range(count)]
    made = [window.split() for window in windows(" ".join(words))]
    assert all(len(window) <= WORDS_MAX for window in made)
    assert sorted({word for window in made for word in window}) == sorted(words)
    for window in made:
        first = words.index(window[0])
        assert window == words[first : first + len(window)]


@steady
@given(st.text())
def test_windows_of_any_text(text: str) -> None:
    made = windows(text)
    assert made
    assert {word for window in made for word in window.split()} == set(text.split())
    assert all(len(window.split()) <= WORDS_MAX for window in made)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Short heading.\nA sentence of the page that has more than a dozen words in all, surely. And a tail.",
         ["Short heading. A sentence of the page that has more than a dozen words in all, surely. And a tail."]),
        (f"{'word ' * 12}ends here. {'other ' * 12}ends there.",
         [f"{'word ' * 12}ends here.", f"{'other ' * 12}ends there."]),
        (f"He said \"{'word ' * 12}stop.\" Then {'other ' * 12}came.",
         [f"He said \"{'word ' * 12}stop.\"", f"Then {'other ' * 12}came."]),
        (f"{'row ' * 12}\n{'row ' * 12}", ["row " * 11 + "row"] * 2),
    ],
)  # fmt: skip
def test_a_window_is_a_sentence_and_what_is_too_short_goes_with_it(text: str, expected: list[str]) -> None:
    assert windows(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "陶土是岩石风化而成的。" * 12,
        "मिट्टी चट्टानों के घिसने से बनती है। " * 12,
        "مٹی چٹانوں کے گھسنے سے بنتی ہے۔ " * 12,
    ],
)
def test_windows_end_with_the_sentences_of_any_script(text: str) -> None:
    made = windows(text)
    assert all(window[-1] in "。।۔" for window in made)


@pytest.mark.parametrize(
    "text", ["陶土" * 3000, "陶土" * 3000 + "。" + "岩石" * 3000, f"ROS {'陶土' * 3000} 2"]
)
def test_text_without_spaces_and_stops_is_split_and_nothing_lost(text: str) -> None:
    made = windows(text)
    assert all(made)
    assert max(map(len, made)) <= 4 * WORDS_MAX
    assert "".join("".join(made).split()) == "".join(text.split())


# Seen red with a run of letters cut neither into windows nor in half.
async def test_no_letter_is_left_unread_in_a_window_without_spaces(embedder: MiniLm) -> None:
    text = "人大中上" * 200
    vectors = (await embedder.embed_passages([text]))[0]
    assert len(vectors) > 1
    changed = (await embedder.embed_passages([text[:-1] + "日"]))[0]
    assert changed.tobytes() != vectors.tobytes()


def test_unknown_tokens_are_measured(embedder: MiniLm) -> None:
    assert embedder.unread("The robot walks on two legs.") == 0.0
    assert embedder.unread("陶窑釉坯") > 0.5
    assert embedder.unread("") == 0.0
