"""The manual as a second book of `affidavit up`, published while the engine already answers from the first.

By a process of its own, because an event loop that splits pages answers nobody meanwhile. It ends with the one that started it.
"""

import asyncio
import pickle
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from audit import worker
from audit.errors import AuditError
from engine import wiring
from engine.cli.output import say
from engine.errors import AffidavitError
from engine.settings import HOUSE, Settings

MANUAL, TITLE = "manual", "Affidavit: The Manual"


@asynccontextmanager
async def publishing(
    settings: Settings, is_ready: asyncio.Event, environment: Mapping[str, str]
) -> AsyncIterator[None]:
    """Within the block, from the moment when the engine is ready."""
    publication = asyncio.create_task(_publish_when(is_ready, settings, environment))
    try:
        yield
    finally:
        publication.cancel()
        with suppress(asyncio.CancelledError):
            await publication


async def _publish_when(is_ready: asyncio.Event, settings: Settings, environment: Mapping[str, str]) -> None:
    await is_ready.wait()
    if not settings.books.manual:
        return
    process = await asyncio.create_subprocess_exec(
        *worker.command(__name__), stdin=PIPE, stdout=DEVNULL, env=environment
    )
    assert process.stdin
    try:
        process.stdin.writelines(worker.frame(b"", pickle.dumps(settings)))
        await process.wait()
    finally:
        with suppress(
            ProcessLookupError
        ):  # an ingest may be killed at any step: the next start goes on with it
            process.kill()
        await process.wait()


# In the process of its own


def _run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # so does the end of a terminal
    source, _ = worker.channel()
    _, message = worker.receive(source, worker.MESSAGE_BYTES_MAX)
    try:
        asyncio.run(publish(pickle.loads(message)))  # noqa: S301  from the process that serves
    except (AffidavitError, AuditError, OSError) as failure:
        sys.exit(f"affidavit: The manual was not published as a book. {failure}")


async def publish(settings: Settings) -> None:
    """If it is new, or has changed. A book of the owner's that has its name is left alone."""
    async with (
        wiring.open_database(settings) as database,
        wiring.open_ingest(settings, database, lambda *_: None) as pipeline,
    ):
        if (await pipeline.registry.live_content(MANUAL)).title not in {"", TITLE}:
            return
        result = await pipeline.run([HOUSE / settings.books.manual], MANUAL, TITLE)
    for error in result.errors:
        say(f"WARNING: the manual's page {error['file']} is left out: {error['error']}")
    if result.generation:
        passages = result.chunks_created + result.chunks_reused
        say(f"The manual can be asked too: {result.files_processed} pages, {passages} passages.")


if __name__ == "__main__":
    _run()
