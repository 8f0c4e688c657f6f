"""Readers who put load on an engine in a process of its own, and what campaigns share."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

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


@contextmanager
def in_threads(ask: Callable[[], None], count: int, is_over: threading.Event) -> Iterator[None]:
    """So many readers who ask one question after the other until it is over: at the end of the block, or of the server."""
    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(ANSWER_S)


@contextmanager
def unlimited_folder(prefix: str) -> Iterator[Path]:
    """A new data folder, whose engines let readers ask as often as they like."""
    with (
        tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("AFFIDAVIT_LIMITS__PER_KEY", "1000000/minute")
        yield Path(folder)
