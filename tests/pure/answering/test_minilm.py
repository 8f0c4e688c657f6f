"""The offline embedder: the same vector for the same text, whatever else goes on, and no word left out."""

import asyncio
import os
import threading
from functools import partial

import numpy as np
import pytest

from engine.providers.minilm import DIMENSION, NICENESS, MiniLm
from tests.conftest import CAMPAIGN_ROUNDS, campaign_only

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


async def test_every_line_of_a_passage_is_a_window_of_length_one(embedder: MiniLm) -> None:
    rows = (await embedder.embed_passages(["A leg is a spring.\n" * 100]))[0]
    assert rows.shape == (100, DIMENSION)
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


# Seen red with one array for the token ids of all threads.
@pytest.mark.rounds
async def test_the_bits_do_not_depend_on_the_number_of_threads(embedder: MiniLm) -> None:
    count = 60 if CAMPAIGN_ROUNDS else 12
    texts = [f"{UNRELATED} " * (number % 7 + 1) + f"Robot {number}.\n{QUESTION}" for number in range(count)]
    made = [await MiniLm(threads).embed_passages(texts) for threads in (1, 2, 5)]
    made.append([(await embedder.embed_passages([text]))[0] for text in texts])
    assert len({b"".join(rows.tobytes() for rows in passages) for passages in made}) == 1


# Seen red with a niceness that is lower than the process's own: nobody but root may set that.
async def test_an_ingest_gives_way_to_readers(embedder: MiniLm) -> None:
    """Its threads are nice; those of questions are not."""
    niceness = partial(os.getpriority, os.PRIO_PROCESS)
    usual = niceness(0)
    in_threads = await embedder._each(lambda _: niceness(threading.get_native_id()), ["one", "two"])
    assert in_threads == [max(usual, NICENESS)] * 2
    assert niceness(0) == usual


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


@pytest.mark.parametrize("long_word", [campaign_only("ros2_control"), "0.7071"])
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


# Seen red with a window without spaces cut off after 256 tokens.
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
