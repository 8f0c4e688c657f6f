"""Handler of `affidavit audit export`."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

from audit.access.access import Access
from audit.export.files import FileSink, StreamSink
from audit.export.following import Sink, export
from audit.export.formats import FORMATS, Form
from audit.export.position import PositionFile
from audit.proof.record import PERSONAL
from engine import wiring
from engine.cli import output
from engine.cli.output import APPROVAL, BASIS, Arguments, Command, argument, say
from engine.settings import Settings
from engine.storage.database import Database

_URLS = ("http://", "https://")


async def export_rows(settings: Settings, arguments: Arguments) -> int:
    """Deliver sealed rows to a file, standard output or an HTTP collector, in the order of their leaves, from where it stopped before.

    A file gets each row exactly once, through any kill. Rows are not verified on the way: `audit verify` does that.
    """
    if wrong := _wrong_usage(arguments):
        say(wrong)
        return output.WRONG_USAGE
    is_over = threading.Event()
    positions = _positions(arguments)
    async with (
        wiring.open_existing_database(settings) as database,
        _recorded(settings, database, arguments) as access,
    ):
        sink = _sink(settings, arguments, positions, is_over.wait)
        source = partial(
            wiring.open_sealed_rows, settings, database, arguments.since, is_open=arguments.personal
        )
        try:
            with positions.alone() if positions else nullcontext():
                count = await asyncio.to_thread(
                    export, source, sink, is_over.wait if arguments.follow else None
                )
        finally:
            is_over.set()
        access.records = count
    say(f"{count} rows were delivered.")
    return 0


@asynccontextmanager
async def _recorded(settings: Settings, database: Database, arguments: Arguments) -> AsyncIterator[Access]:
    """One that goes on until it is stopped has its record at once: nobody knows how many rows it will deliver."""
    to = arguments.output or "standard output"
    access = wiring.access_of(database, f"export to {to}", PERSONAL, arguments.basis, arguments.approval)
    recording = wiring.recording_read(settings, database, "audit export", access, to=to)
    async with AsyncExitStack() as stack:
        if arguments.personal:
            await stack.enter_async_context(recording)
            if arguments.follow:
                await stack.aclose()
        yield access


def _wrong_usage(arguments: Arguments) -> str:
    if arguments.personal != bool(arguments.basis):
        return "Personal data leaves only for a recorded reason: give --personal and --basis TEXT together."
    if (arguments.output or "").startswith(_URLS) and not arguments.position:
        return "A collector needs a file that says what it got: give --position FILE."
    return ""


def _positions(arguments: Arguments) -> PositionFile | None:
    if arguments.position:
        return PositionFile(arguments.position)
    return PositionFile(Path(f"{arguments.output}.position")) if arguments.output else None


def _sink(
    settings: Settings, arguments: Arguments, positions: PositionFile | None, wait: Callable[[float], bool]
) -> Sink:
    form = Form(arguments.format, arguments.personal)
    if positions is None or not arguments.output:
        return StreamSink(sys.stdout.buffer, positions, form)
    if arguments.output.startswith(_URLS):
        return wiring.collector_sink(settings, arguments.output, positions, form, wait, say)
    return FileSink(Path(arguments.output), positions, form)


EXPORT_COMMANDS: dict[str, Command] = {
    "audit export": Command(
        export_rows, "affidavit audit export --format ocsf --follow -o https://collector.example.org/logs --position export.position",
        (
            argument("--format", choices=FORMATS, default="jsonl", help="default: JSON lines; ocsf: API Activity events"),
            argument("-o", dest="output", metavar="PLACE", help="a file, or the URL of a collector (default: standard output)"),
            argument("--position", type=Path, metavar="FILE", help="remembers what was delivered (default for a file: FILE.position)"),
            argument("--from", dest="since", type=output.month, metavar="YYYY-MM", help="leave out the months before"),
            argument("--follow", action="store_true", help="go on with what is sealed from now on, until stopped"),
            argument("--personal", action="store_true", help="with personal data; needs --basis"),
            BASIS, APPROVAL,
        ),
        runs_until_stopped=True,
    ),
}  # fmt: skip
