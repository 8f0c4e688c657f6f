"""Handlers of the commands `affidavit audit access …`; their registry is `ACCESS_COMMANDS`."""

import asyncio
import json
from dataclasses import asdict

from audit.erasure.target import ErasureTarget, check_basis
from engine import wiring
from engine.cli import output
from engine.cli.output import BASIS, JSON, Arguments, Command, argument, say
from engine.settings import Settings


async def ask(settings: Settings, arguments: Arguments) -> int:
    """Ask a second person to approve that you see what the policy masks; prints the request's name."""
    try:
        check_basis(arguments.basis or "", ErasureTarget())
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    async with wiring.open_existing_database(settings) as database:
        request_id = await wiring.ask_to_unmask(settings, database, arguments.basis)
    minutes = settings.access.approval_minutes
    words = f"{request_id}  waits {minutes} minutes for a second person: affidavit audit access approve {request_id}"
    print(json.dumps({"request_id": str(request_id)}) if arguments.json else words)
    return 0


async def approve(settings: Settings, arguments: Arguments) -> int:
    """Approve another person's request, as a login of access.leads."""
    async with wiring.open_existing_database(settings) as database:
        request = await wiring.approve_unmasking(database, arguments.request_id)
    words = f"{request.who} may repeat the command with --approval {request.request_id}"
    print(json.dumps({"approved": str(request.request_id)}) if arguments.json else words)
    return 0


async def show(settings: Settings, arguments: Arguments) -> int:
    """List the requests that still count, and who approved them. `audit_access` shows all that was read."""
    async with wiring.open_existing_database(settings) as database:
        found = await asyncio.to_thread(wiring.unmask_requests, database)
    rows = [asdict(request) for request in found]
    output.print_rows(rows, as_json=arguments.json, empty="Nobody asks.")
    return 0


_REQUEST = argument(
    "request_id",
    type=output.query_id,
    metavar="REQUEST_ID",
    help="as `affidavit audit access ask` printed it",
)

ACCESS_COMMANDS: dict[str, Command] = {
    "audit access ask": Command(ask, "affidavit audit access ask --basis 'case 12/2026'", (BASIS, JSON)),
    "audit access approve": Command(approve, "affidavit audit access approve 0190c2a4-…", (_REQUEST, JSON)),
    "audit access list": Command(show, "affidavit audit access list --json", (JSON,)),
}  # fmt: skip
