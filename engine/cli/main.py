"""The console script. Each command is a function; `COMMANDS` at the end says what they are called and take."""

import argparse
import asyncio
import json
import logging
import re
import signal
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from pydantic import SecretStr

from audit.errors import AuditError
from engine import logs, wiring
from engine import settings as settings_file
from engine.answer import Asked
from engine.cli import doctor as doctor_checks
from engine.cli import serving
from engine.cli.audit_commands import AUDIT_COMMANDS, seal
from engine.cli.erasure_commands import ERASURE_COMMANDS
from engine.cli.output import (
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
from engine.database import Database
from engine.errors import AffidavitError, RequestError
from engine.evaluation import certify, evaluate, evaluation_report, labelled_set
from engine.evaluation.labels import LabelsError
from engine.http import v1
from engine.models import RATE, Client, Question
from engine.settings import Settings
from ingest.pipeline import Ingest, IngestResult
from ingest.read.export import FILENAME as CONTENT_FILE

DEMO_CLIENT = "demo"
EVALUATED_BOOK = "labelled-set"
BOOK_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_DURATION = re.compile(r"(?P<count>[0-9]{1,4})(?P<unit>[smhd])|0")
SCOPES = ("ask", "audit", "erase", "admin")
WORKERS_MAX = 64  # more than any machine of today can feed


def main() -> None:
    """Exit 0 when all is well, 1 when something was found or failed, 2 for wrong usage."""
    arguments = parser().parse_args()
    try:
        sys.exit(asyncio.run(_until_terminated(arguments)))
    except KeyboardInterrupt:
        sys.exit(_interrupted(arguments))
    except (AffidavitError, AuditError, OSError) as failure:
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
        return _interrupted(arguments)
    return result


def _interrupted(arguments: Arguments) -> int:
    """A server is ended that way. Of all else nobody may believe that it was done."""
    if arguments.run in _SERVERS and not getattr(arguments, "once", False):
        return 0
    say("Interrupted: it was not finished.")
    return FOUND_SOMETHING


async def up(settings: Settings, arguments: Arguments) -> int:
    """All embedded: database, index, sample book if there is none, a demo key, and the server."""
    listening = serving.listen("127.0.0.1", arguments.port)
    logs.configure(logging.WARNING)  # a person reads along
    async with wiring.open_database(settings, say) as database:
        await wiring.make_months_ahead(database, wiring.now().date())
        await _ensure_book(settings, database)
        async with wiring.open_keys(database) as keys:
            await keys.revoke(client_id=DEMO_CLIENT)
            secret = await keys.create(DEMO_CLIENT, ["ask"], None)
        return await serving.serve(
            settings, database, listening,
            f"Affidavit is ready at http://127.0.0.1:{arguments.port}\n"
            f"Demo key: {secret}\n(The key is for this run; Ctrl-C stops everything.)",
            arguments.workers,
        )  # fmt: skip


async def serve(settings: Settings, arguments: Arguments) -> int:
    """Serve with the settings given. The database must be migrated and hold a book."""
    listening = serving.listen(arguments.host, arguments.port)
    logs.configure(logging.INFO)
    async with wiring.open_database(settings, say) as database:
        return await serving.serve(
            settings, database, listening,
            f"Affidavit is ready at http://{arguments.host}:{arguments.port}", arguments.workers,
        )  # fmt: skip


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
        return v1.question(body.encode(), book_id, None, settings.retrieval.top_k)

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
    body = v1.response(answer)
    print(body.model_dump_json(indent=2) if arguments.json else _for_terminal(body))
    return 0


async def evaluation(settings: Settings, arguments: Arguments) -> int:
    """Ask a labelled set as a book of its own, in a data folder that is thrown away; print how well it went."""
    labelled = labelled_set.read(arguments.folder, arguments.out_of_scope)
    if arguments.report:
        arguments.report.touch()  # where it cannot be written is said before the work, not after
    with tempfile.TemporaryDirectory(prefix="affidavit-eval-", ignore_cleanup_errors=True) as folder:
        content = Path(folder, "book", CONTENT_FILE)
        content.parent.mkdir()
        content.write_bytes(labelled_set.book(labelled))
        found = await _evaluated(_embedded(settings, Path(folder, "data")), labelled, content, arguments)
    if arguments.report:
        arguments.report.write_text(evaluation_report.page(found), "utf-8")
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print(evaluation_report.about(found))
        print_rows(evaluation_report.rows(found), as_json=False, empty="")
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
    settings: Settings, labelled: labelled_set.LabelledSet, content: Path, arguments: Arguments
) -> evaluate.Evaluation:
    async with wiring.open_database(settings, say) as database:
        async with wiring.open_ingest(settings, database, progress()) as pipeline:
            result = await pipeline.run([content], EVALUATED_BOOK, labelled.name)
        if result.errors:
            raise LabelsError(f"The corpus cannot be ingested: {result.errors[0]['error']}")
        async with wiring.open_house(settings, database) as house:
            library, engine = house.library, house.engine
            generation = await library.live(EVALUATED_BOOK)
            names = sorted((await library.live_content(EVALUATED_BOOK)).chunk_ids)
            subject = evaluate.Subject(
                retriever=engine.retriever,
                generator=None if arguments.retrieval_only else engine.generator,
                generation=generation,
                passages=list((await library.passages(names)).values()),
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
            generation = await house.library.live(arguments.book)
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
        print(await keys.create(arguments.client, arguments.scope, arguments.limit, arguments.book))
    return 0


async def keys_list(settings: Settings, arguments: Arguments) -> int:
    """All keys, without their secrets."""
    async with wiring.open_database(settings, quiet) as database, wiring.open_keys(database) as keys:
        found = [asdict(key) for key in await keys.all()]
    print_rows(found, as_json=arguments.json, empty="No keys yet. Try: affidavit keys create --client NAME")
    return 0


async def keys_rotate(settings: Settings, arguments: Arguments) -> int:
    """A new secret for the same client, scopes and books. The old one stays good for a while."""
    async with wiring.open_database(settings, quiet) as database, wiring.open_keys(database) as keys:
        secret = await keys.rotate(arguments.key_id, arguments.overlap)
    if secret is None:
        say(f"There is no key {arguments.key_id} that could be rotated: see `affidavit keys list`.")
        return FOUND_SOMETHING
    print(secret)
    return 0


async def keys_revoke(settings: Settings, arguments: Arguments) -> int:
    """From now on the key is refused."""
    async with wiring.open_database(settings, quiet) as database, wiring.open_keys(database) as keys:
        revoked = await keys.revoke(key_id=arguments.key_id)
    print("Revoked." if revoked else f"There is no valid key {arguments.key_id}.")
    return 0 if revoked else FOUND_SOMETHING


async def sessions_purge(settings: Settings, arguments: Arguments) -> int:
    """Delete the sessions that nobody came back to for as long as the settings say. Run it daily."""
    async with wiring.open_database(settings, quiet) as database:
        async with wiring.open_sessions(settings, database) as sessions:
            purged = await sessions.purge()
    days = settings.sessions.purge_days
    print(json.dumps({"purged": purged, "days": days}) if arguments.json
          else f"{purged} sessions without activity for {days} days were deleted.")  # fmt: skip
    return 0


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


def _for_terminal(body: v1.QueryResponse) -> str:
    lines = [body.answer, ""]
    lines += [f"  {item.n}. {item.chapter}, {item.section} ({item.url})" for item in body.citations]
    lines += [f"  nearest: {item.chapter}, {item.section} ({item.url})" for item in body.nearest]
    verdict = (
        f"confidence {body.confidence_score:.2f}, {body.confidence_level}" if body.citations else body.reason
    )
    return "\n".join(
        [*lines, f"  {body.outcome} ({verdict}) in {body.timings.total_ms} ms, query {body.query_id}"]
    )


def _scopes(text: str) -> list[str]:
    scopes = text.split(",")
    if unknown := set(scopes) - set(SCOPES):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(SCOPES)}")
    return scopes


def _rate(text: str) -> str:
    if not RATE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is not a rate such as 100/minute, 50/hour or 1000/day")
    return text


def _book(text: str) -> str:
    if not BOOK_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is not the ID of a book: small letters, digits and hyphens")
    return text


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is not a time such as 30m, 24h or 7d, and not 0")
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    return timedelta(**{units[found["unit"] or "s"]: int(found["count"] or 0)})


_PORT = argument("--port", type=int, default=8000, help="default: 8000")
_WORKERS = argument(
    "--workers", type=int, choices=range(1, WORKERS_MAX + 1), default=1, metavar="N",
    help="processes that share the port (default: 1); their limits need Redis to be counted together",
)  # fmt: skip

_SERVERS = (up, serve, seal)

COMMANDS: dict[str, Command] = {
    "up": Command(up, "affidavit up --port 8000", (_PORT, _WORKERS)),
    "serve": Command(
        serve, "affidavit serve --host 0.0.0.0 --workers 4",
        (argument("--host", default="127.0.0.1", help="default: 127.0.0.1"), _PORT, _WORKERS),
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
            argument("--scope", type=_scopes, default=["ask"], help=f"comma-separated: {', '.join(SCOPES)} (default: ask)"),
            argument("--limit", type=_rate, metavar="RATE", help="such as 100/minute (default: the one of the settings)"),
            argument(
                "--book", action="append", type=_book, default=[], metavar="ID",
                help="the only book it may ask; again for more (default: every book)",
            ),
        ),
    ),
    "keys list": Command(keys_list, "affidavit keys list --json", (JSON,)),
    "keys rotate": Command(
        keys_rotate, "affidavit keys rotate 1a2b3c4d5e --overlap 24h",
        (
            argument("key_id", metavar="ID"),
            argument(
                "--overlap", type=_duration, default="24h", metavar="TIME",
                help="how long the old secret stays good, such as 30m, 24h or 7d; 0 for not at all (default: 24h)",
            ),
        ),
    ),
    "keys revoke": Command(keys_revoke, "affidavit keys revoke 1a2b3c4d5e", (argument("key_id", metavar="ID"),)),
    "sessions purge": Command(sessions_purge, "affidavit sessions purge --json", (JSON,)),
    **AUDIT_COMMANDS,
    **ERASURE_COMMANDS,
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
            about = {"keys": "API keys", "audit": "the audit log", "sessions": "conversations"}[group]
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
