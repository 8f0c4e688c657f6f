"""Handlers of the commands `affidavit audit hold …`; their registry is `HOLD_COMMANDS`."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial

from audit.erasure.erase import Eraser, ErasureReport
from audit.erasure.target import ErasureTarget, check_basis, spellings
from audit.errors import ErasureUnavailableError, HoldRefusedError
from audit.holding.hold import Scope, check_people
from audit.holding.holds import Hold, WaitingErasure
from engine import wiring
from engine.cli import output
from engine.cli.output import APPROVAL, JSON, Arguments, Command, argument, say
from engine.settings import Settings

NOTHING_YET = "WARNING: no record matches the hold now. It stands, and holds what matches it later; check what you named."


async def add(settings: Settings, arguments: Arguments) -> int:
    """Hold records: they are neither erased, nor ended by retention, nor dropped from the database until it is released.

    Several criteria narrow the hold. For records that meet one or the other, add two holds.
    """
    try:
        scope = _scope(arguments)
        scope.check()
        check_basis(arguments.basis, ErasureTarget(scope.names))
        check_people(arguments.actor, None, scope.names)
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    async with (
        wiring.open_existing_database(settings) as database,
        wiring.open_holds(database) as holds,
    ):
        event = wiring.operator_events_of(database).event
        hold_id, records = await holds.add(scope, arguments.actor, arguments.basis, event)
    if arguments.json:
        print(json.dumps({"hold_id": str(hold_id), "records": records}))
    else:
        print(f"{hold_id}  holds {records} records from now on.")
    if not records:
        say(NOTHING_YET)
    return 0


async def release(settings: Settings, arguments: Arguments) -> int:
    """End a hold, and carry out the erasures that waited for it. Two different people ask for it and approve it."""
    try:
        check_basis(arguments.basis, ErasureTarget())
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    refused = ""
    async with (
        wiring.open_existing_database(settings) as database,
        wiring.open_eraser(settings, database) as (eraser, events),
        wiring.open_holds(database) as holds,
    ):
        people = (arguments.actor, arguments.approved_by)
        try:
            await holds.release(arguments.hold_id, *people, arguments.basis, events.event)
        except HoldRefusedError as failure:  # what an earlier release has left is carried out all the same
            refused = str(failure)
        done = await eraser.finish(partial(events.event, "audit erase"))
        if done:
            await _vacuum(eraser, done[-1])
    return _print_released(arguments, refused, done)


async def _vacuum(eraser: Eraser, last: ErasureReport) -> None:
    try:
        await eraser.vacuum()
    except ErasureUnavailableError:
        last.left.append(
            "the erased values are still in the table's pages on disk: the next erasure clears them"
        )


def _print_released(arguments: Arguments, refused: str, done: list[ErasureReport]) -> int:
    if arguments.json:
        erased = [asdict(report) for report in done]
        print(
            json.dumps({"released": not refused, "refused": refused or None, "erased": erased}, default=str)
        )
    elif not refused:
        print(f"{arguments.hold_id}  is released.")
    if refused:
        say(refused)
    for report in [] if arguments.json else done:
        print(
            f"Erased, as it was asked for: {report.records + report.archived} records ({report.erasure_id})."
        )
        for message in report.left:
            print(f"LEFT  {message}")
    return output.FOUND_SOMETHING if refused or any(report.left for report in done) else 0


async def show(settings: Settings, arguments: Arguments) -> int:
    """List all holds: what they cover, since when, by whom, and which erasures wait for their end."""
    async with (
        wiring.open_existing_database(settings) as database,
        wiring.open_listed_holds(database) as holds,
    ):
        columns = {"end_user"} if await holds.has_names() else set[str]()
        about = ("holds", columns, arguments.basis, arguments.approval)
        access = wiring.access_of(database, *about)
        async with (
            wiring.recording_read(settings, database, "audit hold list", access) if columns else nullcontext()
        ):
            found, waiting = await holds.all(), await holds.waiting()
            access.records = len(found) + len(waiting)
        doubts = await wiring.hold_doubts_of(database)
    if arguments.json:
        shown = {
            "holds": [asdict(hold) for hold in found],
            "waiting": [asdict(request) for request in waiting],
        }
        print(json.dumps(shown | {"doubts": doubts}, default=str))
    else:
        output.print_rows([_row(hold) for hold in found], empty="There is no hold.")
        for request in waiting:
            print(f"WAITS  {_describe(request)}")
        for doubt in doubts:
            print(f"FAILED  {doubt}")
    return output.FOUND_SOMETHING if doubts else 0


def _row(hold: Hold) -> dict[str, object]:
    """Without what it does not have."""
    return {
        "hold_id": hold.hold_id, "state": hold.state, "covers": _covers(hold), "records": hold.records,
        "since": hold.added_at, "by": hold.actor, "basis": hold.basis,
        "released": f"{hold.released_at} by {hold.released_by}, {hold.approved_by}" if hold.released_at else "no",
    }  # fmt: skip


def _covers(hold: Hold) -> str:
    criteria = {
        "user": hold.user, "query": hold.query_id, "client": hold.client_id, "from": hold.since, "to": hold.until
    }  # fmt: skip
    return ", ".join(f"{name} {value}" for name, value in criteria.items() if value is not None)


def _describe(request: WaitingErasure) -> str:
    whom = f"query {request.query_id}" if request.query_id else request.user
    holds = ", ".join(map(str, request.holds)) or "nothing: the engine carries it out within a minute"
    return (
        f"the erasure of {whom} ({request.request_id}, asked for on {request.at:%Y-%m-%d}) waits for {holds}"
    )


def _scope(arguments: Arguments) -> Scope:
    user = arguments.user and arguments.user.strip()
    others = [name for name in spellings(user) if name != user] if arguments.user is not None else []
    names = (user, *others) if arguments.user is not None else ()
    return Scope(names, arguments.query, arguments.client, arguments.since, arguments.until)


_ACTOR = argument("--actor", required=True, metavar="NAME", help="who orders it; kept on record")
_BASIS = argument(
    "--basis",
    required=True,
    metavar="TEXT",
    help="the reason; it is kept on record, so it must not name the reader",
)

HOLD_COMMANDS: dict[str, Command] = {
    "audit hold add": Command(
        add, "affidavit audit hold add --user user:7b0e… --from 2026-11-01 --basis 'case 12/2026' --actor 'A. Counsel'",
        (
            argument("--user", metavar="ID", help="records of this reader: user:<uuid>, anon:<address>, or the name that the site sent"),
            argument("--query", type=output.query_id, metavar="ID", help="the record of this query"),
            argument("--client", metavar="ID", help="records of this client"),
            output.FROM, output.TO, _BASIS, _ACTOR, JSON,
        ),
    ),
    "audit hold list": Command(show, "affidavit audit hold list --json", (output.BASIS, APPROVAL, JSON)),
    "audit hold release": Command(
        release, "affidavit audit hold release 0190c2a4-… --basis 'case closed' --actor 'A. Counsel' --approved-by 'B. Officer'",
        (
            argument("hold_id", type=output.query_id, metavar="HOLD_ID", help="as `affidavit audit hold list` shows it"),
            _BASIS,
            argument("--actor", required=True, metavar="NAME", help="who asks for it; kept on record"),
            argument("--approved-by", required=True, metavar="NAME", help="who approves it: another person"),
            JSON,
        ),
    ),
}  # fmt: skip
