"""Readers who put load on an engine in a process of its own, and what campaigns share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from engine.providers.postgres import EmbeddedPostgres
from tests.conftest import Running
from tests.labelled import sample_questions

READERS = 4
ANSWER_S = 30
QUESTIONS = [labelled["question"] for labelled in sample_questions()]


def fetch(data: Path, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(EmbeddedPostgres(data).url) as connection:
        return connection.execute(query.encode()).fetchall()


@contextmanager
def heard_out(engine: Running) -> Iterator[None]:
    """Whatever it complains about: a full pipe must not hold it up."""
    assert engine.process.stdout is not None
    listening = threading.Thread(target=engine.said.extend, args=(engine.process.stdout,))
    listening.start()
    try:
        yield
    finally:
        engine.process.terminate()
        listening.join(ANSWER_S)
