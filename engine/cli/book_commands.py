"""Handlers of the commands about books: `ingest`, `books`, `ask`, `index …`."""

import argparse
import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine import wiring
from engine.answer import Asked
from engine.cli import output
from engine.cli.output import JSON, Arguments, Command, argument, book_id, print_rows, progress, say
from engine.errors import RequestError, UnknownBookError
from engine.http import v1
from engine.models import Client, Question
from engine.ports import NullExchange
from engine.settings import Settings
from engine.terminal import known_books
from engine.words.languages import ENGLISH
from ingest.indexing import IndexRepair
from ingest.pipeline import IngestResult
from ingest.registry import LiveIndex

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
REBUILD_S = 30.0  # `ask` waits so long for an index that is being rebuilt


async def ingest(settings: Settings, arguments: Arguments) -> int:
    """Read, split, embed and index a book, then publish it to its readers."""
    async with (
        wiring.open_database(settings, say) as database,
        wiring.open_ingest(settings, database, progress()) as pipeline,
    ):
        book = arguments.book
        title = arguments.title or (await pipeline.registry.live_content(book)).title or book
        result = await pipeline.run(
            arguments.paths, book, title, language=arguments.language, dry_run=arguments.dry_run
        )
        cost = pipeline.embedder.cost()
    if arguments.json:
        print(json.dumps(asdict(result)))
        return result.exit_code
    for error in result.errors:
        say(f"  skipped: {error['file']}: {error['error']}")
    print(_ingested(result, dry_run=arguments.dry_run), cost, sep="")
    _warn(result.warnings)
    return result.exit_code


async def books(settings: Settings, arguments: Arguments) -> int:
    """List the published books."""
    async with (
        wiring.open_existing_database(settings, say) as database,
        wiring.open_registry(database) as registry,
    ):
        found = [asdict(book) for book in await registry.books()]
    if not arguments.json:
        for book in found:
            _warn(f"{book['book_id']}: {warning}" for warning in book.pop("warnings"))
    print_rows(
        found,
        as_json=arguments.json,
        empty="No books yet. Try: affidavit ingest PATH --book ID",
        on_terminal=("book_id", "title", "language", "published_at", "passages"),
    )
    return 0


async def ask(settings: Settings, arguments: Arguments) -> int:
    """Ask one question in this process. It is recorded like any other."""

    async def read() -> Question:
        body = json.dumps({"query": " ".join(arguments.question), "selected_text": arguments.selected_text})
        asked = arguments.book or settings.books.default
        return v1.question(body.encode(), asked, None, settings.retrieval.top_k)

    operator = Client("operator", None, frozenset(output.SCOPES))
    async with (
        wiring.open_existing_database(settings) as database,
        wiring.open_house(settings, database) as house,
    ):
        with contextlib.suppress(TimeoutError):  # an index that is rebuilt; without it the answer says so
            async with asyncio.timeout(REBUILD_S):
                await house.watched_index.wait_until_searchable()
        asked = Asked("affidavit ask", str(house.engine.new_id()), NullExchange(read), operator=operator)
        try:
            answer = await house.engine.answer(asked)
        except UnknownBookError as failure:
            book = arguments.book or settings.books.default
            missing = await known_books.missed(house.library, book)
            return output.fail(f"{missing or failure.detail} (query {failure.query_id})")
        except RequestError as failure:
            return output.fail(f"{failure.detail} (query {failure.query_id})")
    body = v1.response(answer)
    print(body.model_dump_json(indent=2) if arguments.json else _for_terminal(body))
    return 0


async def index_check(settings: Settings, arguments: Arguments) -> int:
    """Read all that the index and the database hold of each published book, and compare it with what was published."""
    async with (
        wiring.open_existing_database(settings, say) as database,
        wiring.open_repair(settings, database) as repair,
    ):
        found = [await _checked(repair, live) for live in await _live(repair, arguments.book)]
    print_rows(found, as_json=arguments.json, empty="No books yet.")
    return output.FOUND_SOMETHING if any(row["damage"] for row in found) else 0


async def index_rebuild(settings: Settings, arguments: Arguments) -> int:
    """Rebuild the index of each published book from the database, without an embedder. Readers keep the old one until then."""
    async with (
        wiring.open_existing_database(settings, say) as database,
        wiring.open_repair(settings, database) as repair,
    ):
        found = [await _rebuilt(repair, live) for live in await _live(repair, arguments.book)]
    print_rows(found, as_json=arguments.json, empty="No books yet.")
    return 0


async def _live(repair: IndexRepair, book_id: str | None) -> list[LiveIndex]:
    if book_id:
        await known_books.check(repair.registry, book_id)
    return await repair.registry.live_indexes(book_id)


async def _checked(repair: IndexRepair, live: LiveIndex) -> dict[str, Any]:
    started = time.monotonic()
    damage = [await repair.examine(live), await repair.altered(live)]
    return await _row(repair, live, started) | {"damage": "; ".join(filter(None, damage))}


async def _rebuilt(repair: IndexRepair, live: LiveIndex) -> dict[str, Any]:
    started = time.monotonic()
    await repair.rebuild(live)
    return await _row(repair, live, started)


async def _row(repair: IndexRepair, live: LiveIndex, started: float) -> dict[str, Any]:
    seconds = round(time.monotonic() - started, 3)
    now = await repair.registry.live_index(live.book_id)
    return {
        "book": live.book_id, "generation": str(live.generation_id), "passages": live.passages,
        "digest": now and now.digest, "seconds": seconds,
    }  # fmt: skip


def _path(text: str) -> Path:
    if _ADDRESS.match(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is an address, and only files are read. Save its pages or its PDF, and give their path"
        )
    return Path(text)


def _language(code: str) -> str:
    if not re.fullmatch(r"[a-z]{2,3}", code):
        raise argparse.ArgumentTypeError(f"{code!r} is not a language code such as en, de or ur")
    return code


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        say(f"WARNING: {warning}")


def _ingested(result: IngestResult, *, dry_run: bool) -> str:
    state = f"generation {result.generation}" if result.generation else "nothing changed, nothing published"
    if result.index_rebuilt:
        state = "nothing changed, but the index was damaged and has been rebuilt"
    if dry_run:
        state = "a dry run, nothing was changed"
    read = "" if result.language == ENGLISH else f"; read in {result.language} by {result.embedder}"
    return (
        f"{result.book}: {result.files_processed} files, {result.chunks_created} new passages,"
        f" {result.chunks_reused} unchanged, {result.chunks_removed} removed, {result.seconds} s{read}; {state}"
    )


def _for_terminal(body: v1.QueryResponse) -> str:
    lines = [body.answer, ""]
    lines += [f"  {item.n}. {item.chapter}, {item.section} ({item.url})" for item in body.citations]
    lines += [f"  nearest: {item.chapter}, {item.section} ({item.url})" for item in body.nearest]
    verdict: str | None = body.reason
    if body.citations:
        verdict = f"confidence {body.confidence_score:.2f}, {body.confidence_level}"
    lines += [f"  {body.outcome} ({verdict}) in {body.timings.total_ms} ms, query {body.query_id}"]
    return "\n".join(lines)


_BOOK = argument("--book", type=book_id, metavar="ID", help="default: all books")

BOOK_COMMANDS: dict[str, Command] = {
    "ingest": Command(
        ingest, "affidavit ingest docs/ --book robotics --title 'Robotics'",
        (
            argument("paths", nargs="+", type=_path, metavar="PATH", help="files or folders: Markdown, MDX, HTML, PDF, text, or a site's export"),
            argument("--book", required=True, type=book_id, metavar="ID", help="lower-case letters, digits and hyphens"),
            argument("--title", help="the title that readers see (default: the current title, or the ID)"),
            argument("--language", metavar="CODE", type=_language, help="the book's language as an ISO 639 code such as de (default: detected)"),
            argument("--dry-run", action="store_true", help="print what would change, and change nothing"),
            JSON,
        ),
    ),
    "books": Command(books, "affidavit books --json", (JSON,)),
    "index check": Command(index_check, "affidavit index check --book robotics", (_BOOK, JSON)),
    "index rebuild": Command(index_rebuild, "affidavit index rebuild --book robotics", (_BOOK, JSON)),
    "ask": Command(
        ask, "affidavit ask 'What does an IMU measure?'",
        (
            argument("question", nargs="+", metavar="QUESTION", help="1 to 1,000 characters"),
            argument("--book", type=book_id, metavar="ID", help="default: the book of the settings"),
            argument("--selected-text", metavar="TEXT", help="answer only from this passage"),
            JSON,
        ),
    ),
}  # fmt: skip
