"""Handlers of the commands that find and erase personal data in the log; their registry is `ERASURE_COMMANDS`."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial

from audit.erasure.erase import Eraser, ErasureReport
from audit.erasure.search import COLUMNS, PersonalDataReport, search
from audit.erasure.target import ErasureTarget, check_basis, spellings
from audit.errors import ErasureTooEarlyError, ErasureUnavailableError, HeldError, NothingToEraseError
from audit.proof.record import Trail
from engine import wiring
from engine.admission.operator_events import OperatorEvents
from engine.cli import output
from engine.cli.output import FROM, JSON, TO, Arguments, Command, argument, say
from engine.settings import Settings

Work = Callable[[Eraser, OperatorEvents], Awaitable[ErasureReport]]


async def erase(settings: Settings, arguments: Arguments) -> int:
    """Erase the personal data of a person, or of one query. Existing proofs stay valid and report ERASED."""
    if (arguments.user is None) == (arguments.query is None):
        say("Give exactly one of --user (a reader) and --query (one query).")
        return output.WRONG_USAGE
    try:
        target = ErasureTarget(spellings(arguments.user) if arguments.user else (), arguments.query)
        check_basis(arguments.basis, target)
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    return await _run(
        settings, arguments,
        lambda eraser, events: eraser.erase(target, arguments.basis, partial(events.event, "audit erase")),
    )  # fmt: skip


async def retention(settings: Settings, arguments: Arguments) -> int:
    """Erase the personal data of all records older than archive.retention_days. Run it daily."""
    days, show = settings.archive.retention_days, output.progress()
    until = wiring.now() - timedelta(days=days)
    basis = f"older than {days} days (archive.retention_days)"

    async def work(eraser: Eraser, events: OperatorEvents) -> ErasureReport:
        await eraser.finish(partial(events.event, "audit erase"))  # what waited for a hold
        event = partial(_retention_event, settings, events)
        return await eraser.end_retention(until, basis, event, lambda what, count: show(what, count, count))

    return await _run(settings, arguments, work)


async def _run(settings: Settings, arguments: Arguments, work: Work) -> int:
    """Erases, then overwrites what was erased in the table's pages, and prints the report."""
    async with wiring.open_existing_database(settings) as database:
        async with wiring.open_eraser(settings, database) as (eraser, operator_events):
            try:
                done = await work(eraser, operator_events)
            except (ErasureUnavailableError, ErasureTooEarlyError) as failure:
                say(str(failure))
                return output.FOUND_SOMETHING
            except HeldError as held:
                return _say_held(arguments, held)
            except NothingToEraseError:
                say(f"There is no record of query {arguments.query}, and none was erased.")
                return output.FOUND_SOMETHING
            await _vacuum(eraser, done)
    if arguments.json:
        print(json.dumps(asdict(done), default=str))
    else:
        _print_erased(done)
    return output.FOUND_SOMETHING if done.left else 0


def _say_held(arguments: Arguments, held: HeldError) -> int:
    if arguments.json:
        request_id, holds = held.request_id and str(held.request_id), [str(one) for one in held.holds]
        print(json.dumps({"held": held.records, "request_id": request_id, "holds": holds}))
    say(str(held))
    return output.FOUND_SOMETHING


async def _vacuum(eraser: Eraser, done: ErasureReport) -> None:
    """A failed VACUUM does not fail the erasure: the rows are erased, and only their old pages are not overwritten yet."""
    try:
        await eraser.vacuum()
    except ErasureUnavailableError:
        left = "the erased values are still in the table's pages on disk: run the command again to clear them"
        done.left.append(left)


@asynccontextmanager
async def _retention_event(settings: Settings, operator_events: OperatorEvents) -> AsyncIterator[Trail]:
    archive = settings.archive
    async with operator_events.event(
        "audit retention", retention_days=archive.retention_days,
        retention_acknowledged=archive.retention_acknowledged or None,
    ) as trail:  # fmt: skip
        trail.settings_sha256 = settings.fingerprint()
        yield trail


async def pii(settings: Settings, arguments: Arguments) -> int:
    """Search readers' questions for likely personal data. Names are not found: they follow no pattern."""
    async with wiring.open_existing_database(settings) as database:

        def searched() -> PersonalDataReport:
            with wiring.open_evidence(settings, database, output.period(arguments)) as evidence:
                return search(evidence, output.progress())

        access = wiring.access_of(database, "personal data, by its pattern", COLUMNS)
        async with wiring.noting_read(settings, database, "audit pii", access):  # it shows where, and no text
            found = await asyncio.to_thread(searched)
            access.records = found.checked
    if arguments.json:
        print(json.dumps(found.as_json(), default=str))
    else:
        output.print_rows([asdict(hit) for hit in found.hits], empty="No personal data was recognised.")
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.by_kind.items())) or "nothing"
        print(f"{found.records} of {found.checked} records: {kinds}. Archived months were not searched.")
    return output.FOUND_SOMETHING if found.records else 0


def _print_erased(done: ErasureReport) -> None:
    if done.is_empty:
        print("It was already erased." if done.already else "There is nothing to erase.")
    else:
        output.print_rows([{name: value for name, value in asdict(done).items() if name != "left"}])
    if done.held:
        print(f"HELD  {done.held} records stay until the holds on them are released.")
    for message in done.left:
        print(f"LEFT  {message}")


ERASURE_COMMANDS: dict[str, Command] = {
    "audit erase": Command(
        erase, "affidavit audit erase --user user:7b0e… --basis 'GDPR Art. 17, ticket 4711'",
        (
            argument("--user", metavar="ID", help="user:<uuid>, anon:<address>, or the name that the site sent; this or --query"),
            argument("--query", type=output.query_id, metavar="ID", help="erase only the record of this query; this or --user"),
            argument("--basis", required=True, metavar="TEXT", help="the reason; it is kept on record, so it must not name the person"),
            JSON,
        ),
    ),
    "audit retention": Command(retention, "affidavit audit retention --json", (JSON,)),
    "audit pii": Command(pii, "affidavit audit pii --from 2026-11-01 --json", (FROM, TO, JSON)),
}  # fmt: skip
