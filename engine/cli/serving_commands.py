"""Handlers of the commands that serve (`up`, `serve`) and of the one that prepares a database (`migrate`)."""

import logging

from engine import logs, wiring
from engine.cli import serving
from engine.cli.output import Arguments, Command, argument, progress, say
from engine.connections import descriptors
from engine.settings import Settings
from engine.storage.database import Database

DEMO_CLIENT = "demo"
WORKERS_MAX = 64  # more processes than one machine can use


async def up(settings: Settings, arguments: Arguments) -> int:
    """Start everything embedded: database, index, a sample book if there is none, a demo key and the server."""
    descriptors.raise_limit()
    listening = serving.listen("127.0.0.1", arguments.port)
    logs.configure(logging.WARNING)  # for a person at the terminal, the access log is noise
    async with wiring.open_database(settings, say) as database:
        await wiring.make_months_ahead(database, wiring.now().date())
        await _ensure_book(settings, database)
        async with wiring.open_keys(database) as keys:
            await keys.revoke(client_id=DEMO_CLIENT)
            secret = await keys.create(DEMO_CLIENT, ["ask"], None)
        ready = (
            f"Affidavit is ready at http://127.0.0.1:{arguments.port}\n"
            f"Demo key: {secret}\n(The key is valid for this run. Press Ctrl-C to stop everything.)"
        )
        return await serving.serve(settings, database, listening, ready, arguments.workers)


async def serve(settings: Settings, arguments: Arguments) -> int:
    """Serve with the given settings. The database must be migrated and contain a book."""
    descriptors.raise_limit()
    listening = serving.listen(arguments.host, arguments.port)
    logs.configure(logging.INFO)
    async with wiring.open_database(settings, say) as database:
        ready = f"Affidavit is ready at http://{arguments.host}:{arguments.port}"
        return await serving.serve(settings, database, listening, ready, arguments.workers)


async def migrate(settings: Settings, _: Arguments) -> int:
    """Apply the new migrations in sql/ and create the log's partitions."""
    async with wiring.open_database(settings, say) as database:
        applied = database.migrate()
        await wiring.make_months_ahead(database, wiring.now().date())
    print("\n".join(applied) or "Nothing to apply.")
    return 0


async def _ensure_book(settings: Settings, database: Database) -> None:
    book_id = settings.books.default
    async with wiring.open_registry(database) as registry:
        if any(book.book_id == book_id and book.generation for book in await registry.books()):
            return
    say("Ingesting the sample book …")
    async with wiring.open_ingest(settings, database, progress()) as pipeline:
        result = await pipeline.run([wiring.SAMPLE_BOOK], book_id, wiring.SAMPLE_TITLE)
    say(f"  {result.files_processed} chapters, {result.chunks_created} passages, {result.seconds:.1f} s")


_PORT = argument("--port", type=int, default=8000, help="default: 8000")
_WORKERS = argument(
    "--workers", type=int, choices=range(1, WORKERS_MAX + 1), default=1, metavar="N",
    help="processes that share the port (default: 1); rate limits across processes need Redis",
)  # fmt: skip

SERVING_COMMANDS: dict[str, Command] = {
    "up": Command(up, "affidavit up --port 8000", (_PORT, _WORKERS), runs_until_stopped=True),
    "serve": Command(
        serve, "affidavit serve --host 0.0.0.0 --workers 4",
        (argument("--host", default="127.0.0.1", help="default: 127.0.0.1"), _PORT, _WORKERS),
        runs_until_stopped=True,
    ),
    "migrate": Command(migrate, "affidavit migrate"),
}  # fmt: skip
