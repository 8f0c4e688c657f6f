"""Handler of `affidavit audit report`; its registry is `REPORT_COMMANDS`."""

import asyncio
import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from audit.errors import QueryError
from audit.reports.as_of import AsOf
from audit.reports.pack import PACKS, Pack, pack_of
from audit.vault import sync_folder
from engine import wiring
from engine.cli import output
from engine.cli.output import FROM, JSON, TO, Arguments, Command, argument, say
from engine.errors import ConfigurationError
from engine.settings import Settings
from engine.storage.database import Database

if TYPE_CHECKING:  # Arrow takes longer to load than most commands take
    from audit.reports.document import ControlReport

_FORMS = ("html", "json", "oscal")


async def report(settings: Settings, arguments: Arguments) -> int:
    """Measure the controls of a pack over a period and write what the log shows of each, with its query and proof.

    That it was made is a record of the log. --repeat measures a report anew and names each difference; exit 1 if there is one.
    """
    if arguments.repeat:
        return await _repeat(settings, arguments)
    try:
        pack, period = _chosen(arguments)
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    async with wiring.open_existing_database(settings) as database:
        made = await _make(settings, database, pack, period, arguments)
    counts = {status: number for status, number in made.counts.items() if number}
    words = ", ".join(f"{number} {status}" for status, number in counts.items())
    found = {"file": str(arguments.output), "pack": pack.id, "records": made.records, "event": made.event}
    print(
        json.dumps(found | {"controls": counts})
        if arguments.json
        else f"{arguments.output}: {words}, over {made.records} sealed records."
    )
    return 0


def _chosen(arguments: Arguments) -> tuple[Pack, AsOf]:
    """`ValueError` with words for whoever typed it."""
    if not (arguments.pack and arguments.since and arguments.until and arguments.output):
        raise ValueError(
            f"Name the pack, the period and the file: --pack {'|'.join(PACKS)}, --from DATE, --to DATE (exclusive) and"
            " -o FILE; or a report to repeat: --repeat FILE."
        )
    if arguments.output.exists():
        raise ValueError(f"{arguments.output} exists already. Give another name, or move it away.")
    return pack_of(arguments.pack), AsOf.settled(arguments.since, arguments.until, wiring.now())


async def _make(
    settings: Settings, database: Database, pack: Pack, period: AsOf, arguments: Arguments
) -> "ControlReport":
    """The record of it has the digest of the data, so that a seal proves which report was made."""
    from audit.reports.forms import FORMS

    about = {
        "pack": pack.id,
        "since": str(period.since),
        "until": str(period.until),
        "format": arguments.format,
    }
    async with wiring.noting(settings, database, "audit report", **about) as noted:
        made = await _measured(settings, database, pack, period, noted.log_id, version("affidavit"))
        noted.details["sha256"] = sha256(made.to_bytes()).hexdigest()
        _write(arguments.output, FORMS[arguments.format](made))
    return made


def _write(file: Path, content: bytes) -> None:
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_bytes(content)
    unfinished.replace(file)
    sync_folder(file.parent)


async def _repeat(settings: Settings, arguments: Arguments) -> int:
    from audit.reports.repeating import differences, read_report

    if arguments.pack or arguments.since or arguments.until or arguments.output:
        say(
            "--repeat FILE takes the pack and the period from the file. Leave out --pack, --from, --to and -o."
        )
        return output.WRONG_USAGE
    stated = read_report(await asyncio.to_thread(arguments.repeat.read_bytes))
    async with wiring.open_existing_database(settings) as database:
        made = await _measured(settings, database, stated.pack, stated.period, stated.event, stated.version)
    found = differences(stated, made)
    if arguments.json:
        print(json.dumps({"file": str(arguments.repeat), "differences": found}))
    else:
        lines = [f"DIFFERENT     {output.visible(each)}" for each in found]
        print("\n".join(lines) or f"The same: {len(made.controls)} controls over {made.records} records.")
    return output.FOUND_SOMETHING if found else 0


async def _measured(
    settings: Settings, database: Database, pack: Pack, period: AsOf, event: UUID, made_by: str
) -> "ControlReport":
    show = output.progress()
    with wiring.open_measuring(settings, database, period.months, made_by, show) as measuring:
        try:
            return await asyncio.to_thread(measuring.measure, pack, period, event)
        except QueryError as wrong:  # our own SQL: the log is of another version
            raise ConfigurationError(
                f"This log cannot be measured by this version: {wrong} Run `affidavit migrate`."
            ) from wrong
        except asyncio.CancelledError:
            measuring.log.interrupt()
            raise


REPORT_COMMANDS: dict[str, Command] = {
    "audit report": Command(
        report, "affidavit audit report --pack operation --from 2026-10-01 --to 2026-11-01 -o operation.html",
        (
            argument("--pack", choices=PACKS, help="which controls"),
            FROM, TO,
            argument("--format", choices=_FORMS, default="html", help="default: one HTML page to read and print; oscal: assessment results of OSCAL 1.1.3"),
            argument("-o", dest="output", type=Path, metavar="FILE", help="the report; it must not exist yet"),
            argument("--repeat", type=Path, metavar="FILE", help="measure this report anew, whatever its format, and name each difference"),
            JSON,
        ),
    ),
}  # fmt: skip
