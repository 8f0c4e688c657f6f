"""The commands that look for what is personal in the log, and destroy it. `ERASURE_COMMANDS` at the end names them."""

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
    """Forget a person, or one query. Every proof that there is stays good, and says ERASED."""
    if (arguments.user is None) == (arguments.query is None):
        say("Name either a reader, with --user, or one query, with --query.")
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
    """Destroy what is personal in all records that are older than the settings allow. Run it daily."""
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
    """What was erased is erased, whether its pages can be cleared now or not."""
    try:
        await eraser.vacuum()
    except ErasureUnavailableError:
        done.left.append("what was erased still lies in its pages: run the command again to clear them")


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
    """Look for likely personal data in what readers wrote. Names are not found: no rule knows them."""
    period = Period(arguments.since or datetime.min.replace(tzinfo=UTC), arguments.until or LAST_MOMENT)
    async with wiring.open_database(settings, quiet) as database:

        def searched() -> PersonalDataReport:
            with wiring.open_evidence(settings, database, period) as evidence:
                return search(evidence, progress())

        found = await asyncio.to_thread(searched)
    if arguments.json:
        print(json.dumps(found.as_json(), default=str))
    else:
        print_rows([asdict(hit) for hit in found.hits], as_json=False, empty="Nothing was recognised.")
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.by_kind.items()))
        print(
            f"{found.records} of {found.checked} questions: {kinds or 'nothing'}. Archived months were not searched."
        )
    return FOUND_SOMETHING if found.records else 0


def _print_erased(done: ErasureReport, *, as_json: bool) -> None:
    told: dict[str, Any] = {name: value for name, value in asdict(done).items() if name != "left"}
    if as_json:
        print(json.dumps(told | {"left": done.left}, default=str))
        return
    if done.is_empty:
        print("It was erased before." if done.already else "There is nothing to erase (any more).")
    else:
        print_rows([told], as_json=False, empty="")
    for words in done.left:
        print(f"LEFT  {words}")


ERASURE_COMMANDS: dict[str, Command] = {
    "audit erase": Command(
        erase, "affidavit audit erase --user user:7b0e… --basis 'GDPR Art. 17, ticket 4711'",
        (
            argument("--user", metavar="ID", help="user:<uuid>, anon:<address>, or as the site named them"),
            argument("--query", type=UUID, metavar="ID", help="only what was recorded of this query"),
            argument("--basis", required=True, metavar="TEXT", help="why; it stays on record, so it must not name the person"),
            JSON,
        ),
    ),
    "audit retention": Command(retention, "affidavit audit retention --json", (JSON,)),
    "audit pii": Command(pii, "affidavit audit pii --from 2026-11-01 --json", (FROM, TO, JSON)),
}  # fmt: skip
