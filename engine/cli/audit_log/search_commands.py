"""Handler of the command `affidavit audit search`, as the console's search page; its registry is `SEARCH_COMMANDS`."""

import asyncio
import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from audit.checking.evidence import EVER, Period
from audit.proof.record import PERSONAL
from audit.search import archived
from audit.search.criteria import Criteria, CriteriaError
from audit.search.finding import SHOWN, Finder
from audit.search.pasted import Pasted, pasted
from engine import wiring
from engine.cli import output
from engine.cli.output import APPROVAL, BASIS, FROM, JSON, TO, Arguments, Command, argument, say
from engine.settings import Settings
from engine.storage.database import Database

FOUND_MAX = 100
_PERSONAL = frozenset(SHOWN) & PERSONAL
_ON_TERMINAL = ("timestamp", "query_id", "outcome", "book_id", "user_query_text")


async def search(settings: Settings, arguments: Arguments) -> int:
    """Find records by words of the question or the answer, or by any id, receipt or proof; the newest first.

    Words are searched in the months that are in the database, ids and filters in archived months too. It is itself a record.
    """
    try:
        criteria = _criteria(arguments)
    except CriteriaError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    async with wiring.open_existing_database(settings) as database, wiring.open_finder(database) as finder:
        access = wiring.access_of(database, criteria.words, _PERSONAL, arguments.basis, arguments.approval)
        async with wiring.recording_read(settings, database, "audit search", access):
            rows = await _found(settings, database, finder, criteria)
            access.records = len(rows)
    if len(rows) > FOUND_MAX:
        say(f"There are more than {FOUND_MAX}. Narrow the search, or ask with `affidavit audit query`.")
    _print(rows[:FOUND_MAX], arguments)
    return 0 if rows else output.FOUND_SOMETHING


def _criteria(arguments: Arguments) -> Criteria:
    """What was pasted may be long, and is not words; then its id is what is searched for, and what is recorded."""
    given = pasted(arguments.text)
    text = given.value if given else arguments.text
    filters = {name: getattr(arguments, name) or "" for name in ("book", "client", "outcome")}
    times = {
        name: at.isoformat() if at else ""
        for name, at in (("from", arguments.since), ("to", arguments.until))
    }
    return Criteria.read({"text": text} | filters | times)


async def _found(
    settings: Settings, database: Database, finder: Finder, criteria: Criteria
) -> list[dict[str, Any]]:
    given = pasted(criteria.text)
    here = await finder.named(given) if given else []
    if not here:
        here = await finder.all_until(criteria, FOUND_MAX)
    given, until = await finder.archived(criteria, given)
    rows = [asdict(row) for row in here]
    if len(rows) > FOUND_MAX or until is None:
        return rows
    return rows + await asyncio.to_thread(_archived, settings, database, criteria, given, until)


def _archived(
    settings: Settings, database: Database, criteria: Criteria, given: Pasted | None, until: datetime
) -> list[dict[str, Any]]:
    statement = archived.statement(criteria, given, FOUND_MAX + 1)
    if statement is None:
        say("Words are not searched in archived months: what was said is encrypted there.")
        return []
    period = Period(criteria.since or EVER.since, min(criteria.until, until) if criteria.until else until)
    with wiring.open_tiers(settings, database, period, is_open=False) as tiers:
        found = tiers.query(statement)
    return [dict(zip(found.names, row, strict=True)) for row in found.rows]


def _print(rows: list[dict[str, Any]], arguments: Arguments) -> None:
    if arguments.json:
        print(json.dumps(output.plain(rows), default=str))
    else:
        shown = [
            {name: row[name] for name in SHOWN if row[name] is not None or len(rows) > 1} for row in rows
        ]
        output.print_rows(shown, empty="No record fits.", on_terminal=_ON_TERMINAL)


SEARCH_COMMANDS: dict[str, Command] = {
    "audit search": Command(
        search, "affidavit audit search 'balance sensor' --from 2026-11-01 --outcome refused",
        (
            argument("text", metavar="TEXT_OR_ID", help='words ("in quotation marks": that follow each other; with an asterisk at the end: that begin so), an id, the name of a reader, or a receipt or proof as text'),
            FROM, TO,
            argument("--book", metavar="BOOK_ID", help="records of this book"),
            argument("--client", metavar="CLIENT", help="records of this client"),
            argument("--outcome", metavar="OUTCOME", help="answered, refused, served, failed, client_gone, abandoned, recorded"),
            BASIS, APPROVAL, JSON,
        ),
    ),
}  # fmt: skip
