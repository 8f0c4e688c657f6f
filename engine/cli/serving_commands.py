"""Handlers of the commands that serve (`up`, `serve`, `witness`) and of the one that prepares a database (`migrate`)."""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from audit import worker
from audit.errors import AuditError
from audit.witness.__main__ import announce, opened
from engine import logs, wiring
from engine import settings as settings_file
from engine.admission.keys import key_id_of
from engine.cli import manual
from engine.cli.output import Arguments, Command, argument, port, progress, say
from engine.connections import descriptors, listening
from engine.connections.listening import Port
from engine.errors import AffidavitError
from engine.settings import Settings
from engine.storage.data_folder import UsageLock, usable
from engine.storage.database import Database
from engine.terminal import browser, hangup

DEMO_CLIENT = "demo"
WORKERS_MAX = 64  # more processes than one machine can use


async def up(settings: Settings, arguments: Arguments) -> int:
    """Start everything embedded: database, index, a sample book if there is none, the manual, a demo key and the server."""
    from engine.cli import serving  # the web framework, which other commands do without

    descriptors.raise_limit()
    bound = listening.listen("127.0.0.1", arguments.port)
    logs.configure(logging.WARNING)  # for a person at the terminal, the access log is noise
    async with wiring.open_database(settings, say) as database:
        await wiring.make_months_ahead(database, wiring.now().date())
        await _ensure_book(settings, database)
        is_ready = asyncio.Event()
        environment = worker.environment(*wiring.FROM_ENVIRONMENT)
        second_book = manual.publishing(settings, is_ready, environment)
        async with _demo_key(settings, database) as secret, second_book:

            def say_ready() -> None:
                print(f"Affidavit is ready at {_address(bound)}\nDemo key: {secret}")
                print("(The key is valid for this run. Press Ctrl-C to stop everything.)", flush=True)
                if arguments.opens and settings.page.enabled:
                    browser.open_for_person(_address(bound), sys.stdout)
                is_ready.set()

            return await serving.serve(settings, database, bound, say_ready, arguments.workers)


async def serve(settings: Settings, arguments: Arguments) -> int:
    """Serve with the given settings. The database must be migrated and contain a book."""
    from engine.cli import serving

    command = asyncio.current_task()
    assert command is not None
    hangup.obey(command.cancel, lambda: None)  # not running yet, it has nothing to reload
    descriptors.raise_limit()
    bound, kind = listening.inherited(), Port.INHERITED
    if bound is None:
        kind = Port.REUSED if arguments.reuses_port else Port.OWN
        bound = listening.listen(arguments.host, arguments.port, kind)
    logs.configure(settings.server.log_level)
    async with wiring.open_database(settings, say) as database:
        return await serving.serve(
            settings, database, bound, partial(print, f"Affidavit is ready at {_address(bound)}", flush=True),
            arguments.workers, port=kind, load=partial(settings_file.load, data_dir=arguments.data_dir),
        )  # fmt: skip


async def console(settings: Settings, arguments: Arguments) -> int:
    """Open the console's pages alone, on this machine and read-only, with any login of the database that may read the log."""
    from engine.cli import console as pages

    logs.configure(logging.WARNING)
    async with wiring.open_existing_database(settings, say) as database:
        await pages.serve(settings, database, arguments.port, opens=arguments.opens)
    say("Stopped.")
    return 0


async def migrate(settings: Settings, _: Arguments) -> int:
    """Apply the new migrations in sql/ and create the log's partitions."""
    async with wiring.open_database(settings, say) as database:
        applied = database.migrate()
        await wiring.make_months_ahead(database, wiring.now().date())
    print("\n".join(applied) or "Nothing to apply.")
    return 0


@asynccontextmanager
async def _demo_key(settings: Settings, database: Database) -> AsyncIterator[str]:
    """A key for this run. Those of runs that were killed are revoked by the next run that is alone on the folder."""
    running = UsageLock(usable(settings.data_dir), "up.lock")
    async with wiring.open_keys(database) as keys:
        if running.try_exclusive():
            await keys.revoke(client_id=DEMO_CLIENT)
        running.share()
        secret = await keys.create(DEMO_CLIENT, ["ask"], None)
    try:
        yield secret
    finally:
        with suppress(AffidavitError, AuditError):  # without a database; then the next run revokes it
            async with wiring.open_keys(database) as keys:
                await keys.revoke(key_id=key_id_of(secret))
        running.release()


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _ensure_book(settings: Settings, database: Database) -> None:
    book_id = settings.books.default
    async with wiring.open_registry(database) as registry:
        if any(book.book_id == book_id and book.generation for book in await registry.books()):
            return
    say("Ingesting the sample book …")
    async with wiring.open_ingest(settings, database, progress()) as pipeline:
        result = await pipeline.run([wiring.SAMPLE_BOOK], book_id, wiring.SAMPLE_TITLE)
    say(f"  {result.files_processed} chapters, {result.chunks_created} passages, {result.seconds:.1f} s")


_PORT = argument("--port", type=port, default=8000, help="default: 8000; 0 takes a free one")
_WORKERS = argument(
    "--workers", type=int, choices=range(1, WORKERS_MAX + 1), default=1, metavar="N",
    help="processes that share the port (default: 1); rate limits across processes need Redis",
)  # fmt: skip

_REUSE_PORT = argument(
    "--reuse-port", dest="reuses_port", action="store_true",
    help="share the port with other servers that have this option too: start one more, then stop an old one, and no request is"
    " refused (Linux)",
)  # fmt: skip


async def witness(arguments: Arguments) -> int:
    """Witness a log from another machine: sign its heads only if it has done nothing but grow. See docs/how-to/witness.md."""
    address = (arguments.host, arguments.port)
    server = opened(arguments.log, arguments.folder, arguments.name, address)
    serving = asyncio.create_task(asyncio.to_thread(server.serve_forever))
    announce(server)
    try:
        await asyncio.shield(serving)
    finally:
        server.shutdown()
        await serving
        server.server_close()
    return 0


SERVING_COMMANDS: dict[str, Command] = {
    "up": Command(
        up, "affidavit up --port 8000",
        (
            _PORT, _WORKERS,
            argument("--no-open", dest="opens", action="store_false", help="do not open the page in the browser"),
        ),
        runs_until_stopped=True,
    ),
    "serve": Command(
        serve, "affidavit serve --host 0.0.0.0 --workers 4",
        (argument("--host", default="127.0.0.1", help="default: 127.0.0.1"), _PORT, _WORKERS, _REUSE_PORT),
        runs_until_stopped=True,
    ),
    "console": Command(
        console, "affidavit console --port 8090",
        (
            argument("--port", type=port, default=8090, help="default: 8090; 0 takes a free one"),
            argument("--no-open", dest="opens", action="store_false", help="do not open the page in the browser"),
        ),
        runs_until_stopped=True,
    ),
    "migrate": Command(migrate, "affidavit migrate"),
    "witness": Command(
        witness, "affidavit witness --log affidavit/0198c0de-…+1a2b3c4d+AQ… --folder /var/lib/witness --name example.org/witness",
        (
            argument("--log", action="append", required=True, metavar="KEY", help="a log's key, as `affidavit audit key --for-witness` prints it; repeatable"),
            argument("--folder", type=Path, required=True, metavar="DIR", help="where it keeps its key and the last heads; on another machine than the log's"),
            argument("--name", default="affidavit-witness", help="its name in signatures; like example.org/witness"),
            argument("--host", default="127.0.0.1", help="default: 127.0.0.1"),
            argument("--port", type=port, default=8070, help="default: 8070; 0 takes a free one"),
        ),
        has_settings=False, runs_until_stopped=True,
    ),
}  # fmt: skip
