"""Handler of the command that hands over evidence: `affidavit audit package`; its registry is `EVIDENCE_COMMANDS`."""

import asyncio
import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from audit.auditor import check_files
from audit.checking.signature_check import FastKeys
from audit.erasure.target import ErasureTarget, check_basis
from audit.packing.choice import Choice
from audit.proof.record import PERSONAL
from audit.proof.verdict import PROVEN
from engine import signing, wiring
from engine.cli import output
from engine.cli.output import FROM, JSON, TO, Arguments, Command, argument, say
from engine.settings import Settings
from engine.storage.database import Database

if TYPE_CHECKING:  # Arrow takes longer to load than most commands take
    from audit.packing.making import Made


async def package(settings: Settings, arguments: Arguments) -> int:
    """Pack the records of a period with all that proves them into one ZIP, which anyone can check without this service.

    That it was made is a record of the log. If the command is stopped, run it again: it goes on where it was.
    """
    try:
        choice = _choice(arguments)
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    async with wiring.open_existing_database(settings) as database:
        about = choice.chosen | {"redacted": choice.is_redacted, "basis": arguments.basis}
        about |= {"user": choice.user} if choice.user else {}
        about |= {"since": str(choice.since), "until": str(choice.until)}
        columns = set[str]() if choice.is_redacted else PERSONAL
        access = wiring.access_of(database, _asked_for(choice), columns, arguments.basis, arguments.approval)
        async with wiring.recording_read(settings, database, "audit package", access, **about) as event:
            made = await _make(settings, database, choice, arguments.output, event)
            access.records = made.records
    keys = signing.public_keys_file(settings)
    report = await asyncio.to_thread(
        check_files, arguments.output, keys, jobs=os.cpu_count() or 1, signers=FastKeys
    )  # never say that it is good without having looked
    found = asdict(made) | {"file": str(arguments.output), "check": report.as_json()}
    words = f"{made.records} records of {made.months} months are in {arguments.output} ({made.bytes} bytes). Checked: {report}"
    print(json.dumps(found) if arguments.json else words)
    if not made.records:
        say("No sealed record of this period was chosen: the package only says what the period holds.")
    return 0 if report.verdict in PROVEN else output.FOUND_SOMETHING


def _choice(arguments: Arguments) -> Choice:
    """`ValueError` with words for whoever typed it."""
    if not arguments.since or not arguments.until:
        raise ValueError("Name the period: --from DATE and --to DATE (exclusive).")
    if bool(arguments.basis) == arguments.redacted:
        raise ValueError(
            "A package holds personal data, which is handed over only for a recorded reason: give --basis TEXT, or --redacted."
        )
    if arguments.basis:
        check_basis(arguments.basis, ErasureTarget())
    given = (arguments.client, arguments.user, arguments.query, arguments.case)
    return Choice(arguments.since, arguments.until, *given, is_redacted=arguments.redacted)


def _asked_for(choice: Choice) -> str:
    return f"package {json.dumps(choice.chosen)}, {choice.since} to {choice.until}"


async def _make(settings: Settings, database: Database, choice: Choice, file: Path, event: UUID) -> "Made":
    """In a thread, so that Ctrl-C interrupts it; what is finished stays for the next run."""
    show, stop = output.progress(), threading.Event()

    def show_or_stop(what: str, done: int, of: int) -> None:
        if stop.is_set():
            raise InterruptedError
        show(what, done, of)

    def work() -> "Made":
        with wiring.open_making(settings, database, choice, event, show_or_stop) as making:
            return making.make(file)

    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        say("Interrupted: run the same command again to go on.")
        stop.set()
        await asyncio.wait([working])
        working.exception()
        raise


EVIDENCE_COMMANDS: dict[str, Command] = {
    "audit package": Command(
        package, 'affidavit audit package --from 2026-10-01 --to 2026-11-01 --basis "ticket 4711" -o evidence.zip',
        (
            FROM, TO,
            argument("--client", metavar="CLIENT", help="only records of this client"),
            argument("--user", metavar="USER", help="only records of this reader: user:<uuid>, anon:<address>, or the name that the site sent"),
            argument("--query", type=output.query_id, metavar="QUERY_ID", help="only the record of this query"),
            argument("--case", metavar="NAME", help="a name for the package; it chooses nothing"),
            argument("--basis", metavar="TEXT", help="the reason for handing over personal data; it is kept on record, so name no person"),
            output.APPROVAL,
            argument("--redacted", action="store_true", help="with commitments in place of all personal data"),
            argument("-o", dest="output", type=Path, required=True, metavar="FILE", help="the ZIP; unfinished parts are kept beside it"),
            JSON,
        ),
    ),
}  # fmt: skip
