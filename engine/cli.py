"""The console script. Each command is a function; `COMMANDS` at the end says what they are called and take."""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import uvicorn
from pydantic import SecretStr

from engine import certify, evaluate, wiring
from engine import doctor as doctor_checks
from engine import settings as settings_file
from engine.answer import Asked
from engine.audit_commands import AUDIT_COMMANDS
from engine.errors import AffidavitError, RequestError
from engine.http import contracts
from engine.http.app import create_app
from engine.labels import LabelsError
from engine.models import Client, Question
from engine.settings import Settings
from engine.terminal import (
    DATA_DIR,
    FOUND_SOMETHING,
    JSON,
    Arguments,
    Command,
    argument,
    print_rows,
    progress,
    quiet,
    say,
)
from engine.wiring import Database
from ingest.pipeline import Ingest, IngestResult
from ingest.read.export import FILENAME as CONTENT_FILE

DEMO_CLIENT = "demo"
EVALUATED_BOOK = "labelled-set"
SCOPES = ("ask", "audit", "erase", "admin")
STOP_S = 6  # a question takes five seconds at most; who has not read its answer by then is not waited for
UNREAD_S = 30  # as long as engine/http/stream.py waits for a reader


def main() -> None:
    """Exit 0 when all is well, 1 when something was found or failed, 2 for wrong usage."""
    arguments = parser().parse_args()
    try:
        sys.exit(asyncio.run(_until_terminated(arguments)))
    except KeyboardInterrupt:
        sys.exit(0)
    except (AffidavitError, OSError) as failure:
        print(f"affidavit: {failure}", file=sys.stderr)
        sys.exit(FOUND_SOMETHING)


async def _until_terminated(arguments: Arguments) -> int:
    """SIGTERM ends a command the way Ctrl-C does: what was started is stopped."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    settings = [settings_file.load(data_dir=arguments.data_dir)] if arguments.has_settings else []
    try:
        result: int = await arguments.run(*settings, arguments)
    except asyncio.CancelledError:
        return 0
    return result


async def up(settings: Settings, arguments: Arguments) -> int:
    """All embedded: database, index, sample book if there is none, a demo key, and the server."""
    listening = _listen("127.0.0.1", arguments.port)
    async with wiring.open_database(settings, say) as database:
        await wiring.make_months_ahead(database, wiring.now().date())
        await _ensure_book(settings, database)
        async with wiring.open_keys(database) as keys:
            await keys.revoke(client_id=DEMO_CLIENT)
            secret = await keys.create(DEMO_CLIENT, ["ask"], None)
        return await _serve(
            settings, database, listening,
            f"Affidavit is ready at http://127.0.0.1:{arguments.port}\n"
            f"Demo key: {secret}\n(The key is for this run; Ctrl-C stops everything.)",
        )  # fmt: skip


async def serve(settings: Settings, arguments: Arguments) -> int:
    """Serve with the settings given. The database must be migrated and hold a book."""
    listening = _listen(arguments.host, arguments.port)
    async with wiring.open_database(settings, say) as database:
        return await _serve(
            settings, database, listening, f"Affidavit is ready at http://{arguments.host}:{arguments.port}"
        )


async def migrate(settings: Settings, _: Arguments) -> int:
    """Apply what is new in sql/ and make the log's months."""
    async with wiring.open_database(settings, say) as database:
        applied = database.migrate()
        await wiring.make_months_ahead(database, wiring.now().date())
    print("\n".join(applied) or "Nothing to apply.")
    return 0


async def ingest(settings: Settings, arguments: Arguments) -> int:
    """Read, split, embed and index a book, then switch its readers over."""
    async with (
        wiring.open_database(settings, say) as database,
        wiring.open_ingest(settings, database, progress()) as pipeline,
    ):
        title = arguments.title or await _title(pipeline, arguments.book)
        result = await pipeline.run(arguments.paths, arguments.book, title, dry_run=arguments.dry_run)
        cost = pipeline.embedder.cost()
    if arguments.json:
        print(json.dumps(asdict(result)))
        return result.exit_code
    for error in result.errors:
        say(f"  left out: {error['file']}: {error['error']}")
    print(_ingested(result, dry_run=arguments.dry_run), cost, sep="")
    _warn(result.warnings)
    return result.exit_code


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        say(f"WARNING: {warning}")


async def _title(pipeline: Ingest, book_id: str) -> str:
    """A book keeps the title it has."""
    return (await pipeline.registry.live_content(book_id)).title or book_id


def _ingested(result: IngestResult, *, dry_run: bool) -> str:
    if dry_run:
        state = "a dry run, nothing was changed"
    else:
        state = (
            f"generation {result.generation}" if result.generation else "nothing changed, nothing published"
        )
    return (
        f"{result.book}: {result.files_processed} files, {result.chunks_created} new passages,"
        f" {result.chunks_reused} unchanged, {result.chunks_removed} removed, {result.seconds} s; {state}"
    )


async def books(settings: Settings, arguments: Arguments) -> int:
    """The books that can be asked."""
    async with wiring.open_database(settings, say) as database, wiring.open_registry(database) as registry:
        found = [asdict(book) for book in await registry.books()]
    if not arguments.json:
        for book in found:
            _warn(f"{book['book_id']}: {warning}" for warning in book.pop("warnings"))
    print_rows(found, as_json=arguments.json, empty="No books yet. Try: affidavit ingest PATH --book ID")
    return 0


async def ask(settings: Settings, arguments: Arguments) -> int:
    """One question in this process, recorded like any other."""

    async def read() -> Question:
        body = json.dumps({"query": arguments.question, "selected_text": arguments.selected_text})
        book_id = arguments.book or settings.books.default
        return contracts.question(body.encode(), book_id, None, settings.retrieval.top_k)

    operator = Client("operator", None, frozenset(SCOPES))
    async with (
        wiring.open_database(settings, quiet) as database,
        wiring.open_house(settings, database) as house,
    ):
        asked = Asked(
            endpoint="affidavit ask", request_id=str(house.engine.new_id()), read=read, operator=operator
        )
        try:
            answer = await house.engine.answer(asked)
        except RequestError as failure:
            print(f"affidavit: {failure.detail} (query {failure.query_id})", file=sys.stderr)
            return FOUND_SOMETHING
    body = contracts.response(answer)
    print(body.model_dump_json(indent=2) if arguments.json else _for_terminal(body))
    return 0


async def evaluation(settings: Settings, arguments: Arguments) -> int:
    """Ask a labelled set as a book of its own, in a data folder that is thrown away; print how well it went."""
    labelled = evaluate.read(arguments.folder, arguments.out_of_scope)
    if arguments.report:
        arguments.report.touch()  # where it cannot be written is said before the work, not after
    with tempfile.TemporaryDirectory(prefix="affidavit-eval-", ignore_cleanup_errors=True) as folder:
        content = Path(folder, "book", CONTENT_FILE)
        content.parent.mkdir()
        content.write_bytes(evaluate.book(labelled))
        found = await _evaluated(_embedded(settings, Path(folder, "data")), labelled, content, arguments)
    if arguments.report:
        arguments.report.write_text(evaluate.page(found), "utf-8")
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print(evaluate.about(found))
        print_rows(evaluate.rows(found), as_json=False, empty="")
    for failure in found.failures:
        say(f"  not measured: {failure['question']}: {failure['error']}")
    return FOUND_SOMETHING if found.failures else 0


def _embedded(settings: Settings, data_dir: Path) -> Settings:
    """The same settings on a database and an index of their own: no set may come near a real book."""
    return settings.model_copy(
        update={
            "data_dir": data_dir,
            "database": settings.database.model_copy(update={"url": SecretStr("")}),
            "providers": settings.providers.model_copy(update={"index": "edge", "limits": "memory"}),
            "books": settings.books.model_copy(update={"default": EVALUATED_BOOK}),
        }
    )


async def _evaluated(
    settings: Settings, labelled: evaluate.LabelledSet, content: Path, arguments: Arguments
) -> evaluate.Evaluation:
    async with wiring.open_database(settings, say) as database:
        async with wiring.open_ingest(settings, database, progress()) as pipeline:
            result = await pipeline.run([content], EVALUATED_BOOK, labelled.name)
        if result.errors:
            raise LabelsError(f"The corpus cannot be ingested: {result.errors[0]['error']}")
        async with wiring.open_house(settings, database) as house:
            registry, engine = house.registry, house.engine
            generation = await registry.live(EVALUATED_BOOK)
            names = sorted((await registry.live_content(EVALUATED_BOOK)).chunk_ids)
            subject = evaluate.Subject(
                retriever=engine.retriever,
                generator=None if arguments.retrieval_only else engine.generator,
                generation=generation,
                passages=list((await registry.passages(names)).values()),
                threshold=settings.retrieval.threshold,
                top_k=settings.retrieval.top_k,
            )
            try:
                return await evaluate.evaluate(labelled, subject, progress())
            finally:  # the index's worker outlives us a little, and must not write where nothing is any more
                await house.index.drop(generation.generation_id)


async def calibration(settings: Settings, arguments: Arguments) -> int:
    """Fit what a score of this book means to labelled questions, and put it in force."""
    if arguments.report:
        arguments.report.touch()  # where it cannot be written is said before the work, not after
    async with wiring.open_database(settings, say) as database:
        async with wiring.open_house(settings, database) as house:
            generation = await house.registry.live(arguments.book)
            certified = await certify.certificate(
                arguments.questions, house.engine.retriever, generation, wiring.gate_of(settings), progress()
            )
        async with wiring.open_registry(database, "affidavit_owner") as registry:
            await registry.certify(arguments.book, certified)
    if arguments.report:
        arguments.report.write_text(certify.page(certified, arguments.book), "utf-8")
    if arguments.json:
        print(json.dumps(asdict(certified)))
    else:
        print(certify.about(certified))
        print_rows(certify.table(certified), as_json=False, empty="")
    return 0


async def keys_create(settings: Settings, arguments: Arguments) -> int:
    """A new key. Its secret is printed once and kept nowhere."""
    async with wiring.open_database(settings, quiet) as database, wiring.open_keys(database) as keys:
        print(await keys.create(arguments.client, arguments.scope.split(","), arguments.limit))
    return 0


async def keys_list(settings: Settings, arguments: Arguments) -> int:
    """All keys, without their secrets."""
    async with wiring.open_database(settings, quiet) as database, wiring.open_keys(database) as keys:
        found = [asdict(key) for key in await keys.all()]
    print_rows(found, as_json=arguments.json, empty="No keys yet. Try: affidavit keys create --client NAME")
    return 0


async def keys_revoke(settings: Settings, arguments: Arguments) -> int:
    """From now on the key is refused."""
    async with wiring.open_database(settings, quiet) as database, wiring.open_keys(database) as keys:
        revoked = await keys.revoke(key_id=arguments.key_id)
    print("Revoked." if revoked else f"There is no valid key {arguments.key_id}.")
    return 0 if revoked else FOUND_SOMETHING


async def doctor(settings: Settings, arguments: Arguments) -> int:
    """What is there, what is missing, what to do."""
    async with wiring.open_database(settings, quiet) as database:
        findings = await doctor_checks.examine(settings, database)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:<8} {finding.part:<12} {finding.words}")
    return 0 if all(finding.state == "ok" for finding in findings) else FOUND_SOMETHING


async def _ensure_book(settings: Settings, database: Database) -> None:
    book_id = settings.books.default
    async with wiring.open_registry(database) as registry:
        if any(book.book_id == book_id and book.generation for book in await registry.books()):
            return
    say("Ingesting the sample book …")
    async with wiring.open_ingest(settings, database, progress()) as pipeline:
        result = await pipeline.run([wiring.SAMPLE_BOOK], book_id, wiring.SAMPLE_TITLE)
    say(f"  {result.files_processed} chapters, {result.chunks_created} passages, {result.seconds:.1f} s")


def _listen(host: str, port: int) -> socket.socket:
    """Taken before anything is started, so that a port in use is said at once."""
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as failure:
        raise OSError(
            f"Port {port} cannot be used ({os.strerror(failure.errno or 0)}). Try another: --port {port + 1}"
        ) from None
    listening.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # else each answer waits 40 ms for an acknowledgement
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else a reader who stops reading keeps its connection for ever
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
    return listening


class _Server(uvicorn.Server):
    """Says when it is ready, and leaves signals to us: after the last request the database must be stopped too."""

    ready = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what lives as long as we do is not looked at again: a full collection would stop the loop for 30 ms
        if self.started:
            print(self.ready, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(settings: Settings, database: Database, listening: socket.socket, ready: str) -> int:
    async with wiring.open_registry(database) as registry:
        for book in await registry.books():
            _warn(f"{book.book_id}: {warning}" for warning in book.warnings)
    app = create_app(lambda: wiring.open_house(settings, database))
    server = _Server(
        uvicorn.Config(
            app, log_level="warning", lifespan="on", server_header=False, timeout_graceful_shutdown=STOP_S
        )
    )
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    server.ready = ready
    await server.serve(sockets=[listening])
    say("Stopped.")
    return 0 if server.started else FOUND_SOMETHING


def _for_terminal(body: contracts.QueryResponse) -> str:
    lines = [body.answer, ""]
    lines += [f"  {item.n}. {item.chapter}, {item.section} ({item.url})" for item in body.citations]
    lines += [f"  nearest: {item.chapter}, {item.section} ({item.url})" for item in body.nearest]
    verdict = (
        f"confidence {body.confidence_score:.2f}, {body.confidence_level}" if body.citations else body.reason
    )
    return "\n".join(
        [*lines, f"  {body.outcome} ({verdict}) in {body.timings.total_ms} ms, query {body.query_id}"]
    )


_PORT = argument("--port", type=int, default=8000, help="default: 8000")

COMMANDS: dict[str, Command] = {
    "up": Command(up, "affidavit up --port 8000", (_PORT,)),
    "serve": Command(
        serve, "affidavit serve --host 0.0.0.0",
        (argument("--host", default="127.0.0.1", help="default: 127.0.0.1"), _PORT),
    ),
    "migrate": Command(migrate, "affidavit migrate"),
    "ingest": Command(
        ingest, "affidavit ingest docs/ --book robotics --title 'Robotics'",
        (
            argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders"),
            argument("--book", required=True, metavar="ID", help="small letters, digits and hyphens"),
            argument("--title", help="what readers see (default: the one it has, or the ID)"),
            argument("--dry-run", action="store_true", help="say what would change, and change nothing"),
            JSON,
        ),
    ),
    "books": Command(books, "affidavit books --json", (JSON,)),
    "ask": Command(
        ask, "affidavit ask 'What is passive compliance?'",
        (
            argument("question"),
            argument("--book", metavar="ID", help="default: the book of the settings"),
            argument("--selected-text", metavar="TEXT", help="answer only from this passage"),
            JSON,
        ),
    ),
    "eval": Command(
        evaluation, "affidavit eval labelled/ --report report.html",
        (
            argument("folder", type=Path, metavar="DIR", help="with corpus.jsonl, queries.jsonl and qrels.tsv"),
            argument("--out-of-scope", type=Path, metavar="FILE", help="questions that no passage of it answers"),
            argument("--retrieval-only", action="store_true", help="no answers, so no generator is asked"),
            JSON,
            argument("--report", type=Path, metavar="FILE.html", help="figures, curves and the worst questions"),
        ),
    ),
    "calibrate": Command(
        calibration, "affidavit calibrate --book robotics --questions questions.jsonl --report report.html",
        (
            argument("--book", required=True, metavar="ID", help="the book that is asked"),
            argument(
                "--questions", required=True, type=Path, metavar="FILE.jsonl",
                help='a line each: {"text": …, "answerable": true or false}, and "kind": "near_miss" for those that'
                " only sound like the book",
            ),
            argument("--report", type=Path, metavar="FILE.html", help="the curve, the scores and the table"),
            JSON,
        ),
    ),
    "keys create": Command(
        keys_create, "affidavit keys create --client docs-site --limit 100/minute",
        (
            argument("--client", required=True, metavar="NAME", help="who will use it"),
            argument("--scope", default="ask", help=f"comma-separated: {', '.join(SCOPES)} (default: ask)"),
            argument("--limit", metavar="RATE", help="such as 100/minute (default: the one of the settings)"),
        ),
    ),
    "keys list": Command(keys_list, "affidavit keys list --json", (JSON,)),
    "keys revoke": Command(keys_revoke, "affidavit keys revoke 1a2b3c4d5e", (argument("key_id", metavar="ID"),)),
    **AUDIT_COMMANDS,
    "doctor": Command(doctor, "affidavit doctor", (JSON,)),
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="affidavit",
        description="An answer engine under oath: answers only from the book, each with a record that proves it.",
        epilog="Example: affidavit up",
    )
    groups = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for name, command in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        if group not in groups:
            about = {"keys": "API keys", "audit": "the audit log"}[group]
            below = groups[""].add_parser(group, help=about, description=f"Commands for {about}.")
            groups[group] = below.add_subparsers(metavar="COMMAND", required=True)
        _add_command(groups[group], word, command)
    return parser


def _add_command(
    to: "argparse._SubParsersAction[argparse.ArgumentParser]", word: str, command: Command
) -> None:
    words = (command.run.__doc__ or "").strip()
    below = to.add_parser(word, help=words, description=words, epilog=f"Example: {command.example}")
    for names, options in (*command.arguments, *([DATA_DIR] if command.has_settings else [])):
        below.add_argument(*names, **options)
    below.set_defaults(run=command.run, has_settings=command.has_settings)


if __name__ == "__main__":
    main()
