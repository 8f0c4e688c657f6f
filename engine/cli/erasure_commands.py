"""Handlers of the commands that find and erase personal data in the log; their registry is `ERASURE_COMMANDS`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from audit.checking.evidence import LAST_MOMENT, Period
from audit.erasure.erase import Eraser, ErasureReport
from audit.erasure.search import PersonalDataReport, search
from audit.erasure.target import ErasureTarget, check_basis, spellings
from audit.errors import ErasureTooEarlyError, ErasureUnavailableError, NothingToEraseError
from audit.proof.record import Trail
from engine import wiring
from engine.admission.operator_events import OperatorEvents
from engine.cli.output import (
    FOUND_SOMETHING,
    FROM,
    JSON,
    TO,
    WRONG_USAGE,
    Arguments,
    Command,
    argument,
    print_rows,
    progress,
    quiet,
    say,
)
from engine.settings import Settings


async def erase(settings: Settings, arguments: Arguments) -> int:
    """Erase the personal data of a person, or of one query. Existing proofs stay valid and report ERASED."""
    if (arguments.user is None) == (arguments.query is None):
        say("Give exactly one of --user (a reader) and --query (one query).")
        return WRONG_USAGE
    try:
        target = ErasureTarget(spellings(arguments.user) if arguments.user else (), arguments.query)
        check_basis(arguments.basis, target)
    except ValueError as wrong:
        say(str(wrong))
        return WRONG_USAGE
    async with wiring.open_database(settings, quiet) as database:
        async with wiring.open_eraser(settings, database) as (eraser, operator_events):
            event = partial(operator_events.event, "audit erase")
            try:
                done = await eraser.erase(target, arguments.basis, event)
            except (ErasureUnavailableError, ErasureTooEarlyError) as failure:
                say(str(failure))
                return FOUND_SOMETHING
            except NothingToEraseError:
                say(f"There is no record of query {arguments.query}, and none was erased.")
                return FOUND_SOMETHING
            await _vacuum(eraser, done)
    _print_erased(done, as_json=arguments.json)
    return FOUND_SOMETHING if done.left else 0


async def retention(settings: Settings, arguments: Arguments) -> int:
    """Erase the personal data of all records older than archive.retention_days. Run it daily."""
    archive, show = settings.archive, progress()
    until = wiring.now() - timedelta(days=archive.retention_days)
    basis = f"older than {archive.retention_days} days (archive.retention_days)"
    async with wiring.open_database(settings, quiet) as database:
        async with wiring.open_eraser(settings, database) as (eraser, operator_events):
            event = partial(_retention_event, settings, operator_events)
            try:
                done = await eraser.end_retention(
                    until, basis, event, lambda what, count: show(what, count, count)
                )
            except ErasureUnavailableError as failure:
                say(str(failure))
                return FOUND_SOMETHING
            await _vacuum(eraser, done)
    _print_erased(done, as_json=arguments.json)
    return FOUND_SOMETHING if done.left else 0


async def _vacuum(eraser: Eraser, done: ErasureReport) -> None:
    """A failed VACUUM does not fail the erasure: the rows are erased, and only their old pages are not overwritten yet."""
    try:
        await eraser.vacuum()
    except ErasureUnavailableError:
        done.left.append(
            "the erased values are still in the table's pages on disk: run the command again to clear them"
        )


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
    period = Period(arguments.since or datetime.min.replace(tzinfo=UTC), arguments.until or LAST_MOMENT)
    async with wiring.open_database(settings, quiet) as database:

        def searched() -> PersonalDataReport:
            with wiring.open_evidence(settings, database, period) as evidence:
                return search(evidence, progress())

        found = await asyncio.to_thread(searched)
    if arguments.json:
        print(json.dumps(found.as_json(), default=str))
    else:
        print_rows(
            [asdict(hit) for hit in found.hits], as_json=False, empty="No personal data was recognised."
        )
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.by_kind.items()))
        print(
            f"{found.records} of {found.checked} questions: {kinds or 'nothing'}. Archived months were not searched."
        )
    return FOUND_SOMETHING if found.records else 0


def _print_erased(done: ErasureReport, *, as_json: bool) -> None:
    counts: dict[str, Any] = {name: value for name, value in asdict(done).items() if name != "left"}
    if as_json:
        print(json.dumps(counts | {"left": done.left}, default=str))
        return
    if done.is_empty:
        print("It was already erased." if done.already else "There is nothing to erase.")
    else:
        print_rows([counts], as_json=False, empty="")
    for message in done.left:
        print(f"LEFT  {message}")


ERASURE_COMMANDS: dict[str, Command] = {
    "audit erase": Command(
        erase, "affidavit audit erase --user user:7b0e… --basis 'GDPR Art. 17, ticket 4711'",
        (
            argument("--user", metavar="ID", help="user:<uuid>, anon:<address>, or the name that the site sent"),
            argument("--query", type=UUID, metavar="ID", help="erase only the record of this query"),
            argument("--basis", required=True, metavar="TEXT", help="the reason; it is kept on record, so it must not name the person"),
            JSON,
        ),
    ),
    "audit retention": Command(retention, "affidavit audit retention --json", (JSON,)),
    "audit pii": Command(pii, "affidavit audit pii --from 2026-11-01 --json", (FROM, TO, JSON)),
}  # fmt: skip
