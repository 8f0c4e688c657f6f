"""Routes of the page: the books that a key may ask, example questions, and a passage with what stands around it.

Whoever may ask a book may read these: they go through the same keys, and leave a row like any request.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import FastAPI, Header, Request
from pydantic import BaseModel

from engine.answer import ASK
from engine.errors import UnknownBookError, UnknownPassageError
from engine.http import problems, request_context, v1
from engine.http.page.examples import examples
from engine.models import Client, Passage, Trail
from engine.outage.cached_library import PRELOAD_BATCH
from engine.retrieval.library import StoredLibrary

PASSAGES_READ_MAX = 400  # of a book, for its examples

_CHUNK_ID = re.compile(r"[0-9a-f]{64}")
_MAY_READ = ASK | {"audit"}

Result = TypeVar("Result")
Key = Annotated[str | None, Header(alias="Authorization", description="`Bearer <API key>`")]


class SpanBody(BaseModel):
    """Character offsets into a text."""

    start: int
    end: int


class PartBody(BaseModel):
    """A part of a page of the book, with its blocks of code."""

    section: str
    text: str
    code: list[SpanBody]


class ContextBody(BaseModel):
    """A cited passage with the passages before and after it in the current edition of the book."""

    book_id: str
    chunk_id: str
    chapter: str
    page: str
    url: str
    before: PartBody | None
    passage: PartBody
    after: PartBody | None


class ReadableBookBody(BaseModel):
    """A book that this key may ask."""

    book_id: str
    title: str


class ReadableBooksBody(BaseModel):
    """The books that this key may ask, the default book of the settings first."""

    books: list[ReadableBookBody]


class ExamplesBody(BaseModel):
    """Questions that the book can answer, made of its own headings. In other languages than English they may be the headings."""

    questions: list[str]


def add_page_routes(app: FastAPI) -> None:
    failed: dict[int | str, dict[str, Any]] = {
        status: {"content": {problems.MEDIA_TYPE: {}}, "model": problems.Problem, "description": what}
        for status, what in (
            (401, "No API key, or an unknown, revoked or expired one"), (403, "The key is valid but lacks the scope"),
            (404, "No such book or passage"), (429, "Too many requests"), (500, "An internal error"),
            (503, "A required part is unavailable, or the record cannot be written"), (504, "The request took too long"),
        )
    }  # fmt: skip
    app.get("/page/books", responses=failed)(readable_books)
    app.get("/page/books/{book_id}/examples", responses=failed)(example_questions)
    app.get("/passages/{book_id}/{chunk_id}", responses=failed)(passage_in_context)


async def readable_books(request: Request, authorization: Key = None) -> ReadableBooksBody:
    """The books that this key may ask."""
    house = request_context.house(request)

    async def serve(client: Client, _: Trail) -> ReadableBooksBody:
        published = [book for book in await house.library.books() if book.generation]
        mine = [book for book in published if client.may_ask(book.book_id)]
        mine.sort(key=lambda book: book.book_id != house.default_book)
        return ReadableBooksBody(
            books=[ReadableBookBody(book_id=book.book_id, title=book.title) for book in mine]
        )

    return await _serve(request, authorization, serve)


async def example_questions(request: Request, book_id: str, authorization: Key = None) -> ExamplesBody:
    """Questions that the book can answer."""
    house = request_context.house(request)

    async def serve(client: Client, trail: Trail) -> ExamplesBody:
        v1.check_book_id(book_id)
        if not client.may_ask(book_id):
            raise UnknownBookError
        trail.book_id = book_id
        generation = await house.engine.library.live(book_id)
        passages = await _first_passages(house.library, generation.generation_id)
        return ExamplesBody(questions=await asyncio.to_thread(examples, passages, generation.language))

    return await _serve(request, authorization, serve)


async def passage_in_context(
    request: Request, book_id: str, chunk_id: str, authorization: Key = None
) -> ContextBody:
    """A passage as it was cited, with what stands before and after it. A citation's offsets are into the passage's text."""
    house = request_context.house(request)

    async def serve(client: Client, trail: Trail) -> ContextBody:
        if not _CHUNK_ID.fullmatch(chunk_id) or not client.may_ask(book_id):
            raise UnknownPassageError
        trail.chunks_returned = [{"chunk_id": chunk_id}]
        found = (await house.engine.library.passages([chunk_id])).get(chunk_id)
        if found is None or found.book_id != book_id:
            raise UnknownPassageError
        trail.book_id = book_id
        generation = await house.engine.library.live(book_id)
        return _in_context(found, await house.library.around(generation.generation_id, chunk_id))

    return await _serve(request, authorization, serve)


async def _first_passages(library: StoredLibrary, generation: UUID) -> list[Passage]:
    """In batches: one large one would delay the requests that run meanwhile."""
    starts = range(0, PASSAGES_READ_MAX, PRELOAD_BATCH)
    batches = [await library.contents(generation, start, PRELOAD_BATCH) for start in starts]
    return [passage for batch in batches for passage in batch]


async def _serve(
    request: Request, authorization: str | None, work: Callable[[Client, Trail], Awaitable[Result]]
) -> Result:
    asked = request_context.asked(request, authorization, scopes=_MAY_READ)
    return await request_context.house(request).engine.serve(asked, work)


def _in_context(passage: Passage, around: list[Passage]) -> ContextBody:
    """The neighbours share sentences with the passage: they are shown once."""
    names = [one.chunk_id for one in around]
    at = names.index(passage.chunk_id) if passage.chunk_id in names else 0
    before = [one for one in around[:at] if one.filename == passage.filename]
    after = [one for one in around[at + 1 :] if one.filename == passage.filename]
    return ContextBody(
        book_id=passage.book_id, chunk_id=passage.chunk_id, chapter=passage.chapter, page=passage.start_page,
        url=passage.url,
        before=_part(before[-1], until=passage) if before else None,
        passage=_part(passage),
        after=_part(after[0], since=passage) if after else None,
    )  # fmt: skip


def _part(passage: Passage, *, since: Passage | None = None, until: Passage | None = None) -> PartBody:
    """The passage without the sentences that it shares with the one before or after it."""
    first, end = 0, len(passage.sentences)
    if since and _is_same_section(passage, since):
        first = min(max(since.end_sentence + 1 - passage.start_sentence, 0), end)
    if until and _is_same_section(passage, until):
        end = min(max(until.start_sentence - passage.start_sentence, 0), end)
    kept = passage.sentences[first:end]
    start, stop = (kept[0].start, kept[-1].end) if kept else (0, 0)
    code = [SpanBody(start=one.start - start, end=one.end - start) for one in kept if one.kind == "code"]
    return PartBody(section=passage.section, text=passage.text[start:stop], code=code)


def _is_same_section(one: Passage, other: Passage) -> bool:
    return (one.filename, one.section) == (other.filename, other.section)
