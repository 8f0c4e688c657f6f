"""The offline embedder of other languages: the same vector for the same text, and an honest word about what it cannot read."""

import asyncio

import numpy as np
import pytest

from engine.providers.multilingual import Multilingual
from engine.retrieval.raw_scores import MULTILINGUAL, needs_words

QUESTION = "Warum bleibt der Ton im Winter draußen?"
PARAPHRASE = "Weshalb lässt man den Lehm in der kalten Jahreszeit im Freien?"
UNRELATED = "Wie viele Tasten hat ein Klavier?"


@pytest.fixture(scope="module")
def embedder() -> Multilingual:
    return Multilingual()


def test_its_name_says_that_a_question_must_share_words_with_the_book() -> None:
    assert Multilingual.name == MULTILINGUAL
    assert needs_words(Multilingual.name)
    assert not needs_words("all-MiniLM-L6-v2-int8-under-headings")


@pytest.mark.parametrize("text", ["", " ", "?", QUESTION, "陶土" * 3000, "🤖", "मिट्टी"])
async def test_a_vector_has_length_one(embedder: Multilingual, text: str) -> None:
    vector = await embedder.embed_query(text)
    assert vector.shape == (embedder.dimension,)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)
    rows = (await embedder.embed_passages([f"{text}\n{QUESTION}"]))[0]
    assert rows.shape == (2, embedder.dimension)


async def test_concurrent_texts_give_the_same_bits_as_one_by_one(embedder: Multilingual) -> None:
    texts = [QUESTION, "", PARAPHRASE, UNRELATED, QUESTION]
    together = await asyncio.gather(*map(embedder.embed_query, texts))
    alone = [await embedder.embed_query(text) for text in texts]
    listed = await embedder.embed_questions(texts)
    assert [vector.tobytes() for vector in together] == [vector.tobytes() for vector in alone]
    assert [vector.tobytes() for vector in listed] == [vector.tobytes() for vector in alone]


async def test_a_paraphrase_is_closer_than_something_else(embedder: Multilingual) -> None:
    question, paraphrase, unrelated = await embedder.embed_questions([QUESTION, PARAPHRASE, UNRELATED])
    assert question @ paraphrase > question @ unrelated + 0.2


def test_a_script_that_it_does_not_know_is_unread(embedder: Multilingual) -> None:
    assert embedder.unread("Der Ton bleibt im Winter draußen.") == 0.0
    assert embedder.unread("मिट्टी चट्टानों के घिसने से बनती है।") > 0.3
    assert embedder.unread("") <= 1.0
