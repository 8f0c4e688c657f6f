"""The `audit …` commands. `AUDIT_COMMANDS` at the end says what they are called and take."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from audit import auditor
from audit.evidence import LAST_MOMENT, Span
from audit.inspection import inspect
from audit.keys import KeyFileError, PublicKey, read_public_keys
from audit.prover import UnprovenError
from audit.quotations import requote
from audit.status import gaps, words
from audit.verdict import Report
from engine import wiring
from engine.errors import ConfigurationError
from engine.settings import Settings
from engine.terminal import (
    FOUND_SOMETHING,
    JSON,
    Arguments,
    Command,
    argument,
    print_rows,
    progress,
    quiet,
    say,
)
from ingest.pipeline import Progress


async def query(settings: Settings, arguments: Arguments) -> int:
    """SQL over the log, as the auditor's role: it can read records and nothing else."""
    async with wiring.open_database(settings, quiet) as database:
        names, rows = await database.read("affidavit_auditor", arguments.sql)
    found = [dict(zip(names, row, strict=True)) for row in rows]
    print_rows(found, as_json=arguments.json, empty="No rows.")
    return 0


async def status(settings: Settings, arguments: Arguments) -> int:
    """How the log stands: months, evidence, what is on its way, gaps; exit 1 if there is one."""
    async with wiring.open_database(settings, quiet) as database:
        found = await wiring.status_of(settings, database)
    missing = gaps(found, wiring.now())
    if arguments.json:
        print(json.dumps(asdict(found) | {"gaps": missing}, default=str))
    else:
        print_rows(found.records, as_json=False, empty="No records yet.")
        print_rows(found.evidence, as_json=False, empty="Nothing is sealed yet.")
        for name, value in [*words(found), *(("GAP", gap) for gap in missing)]:
            print(f"{name:<12}  {value}")
    return FOUND_SOMETHING if missing else 0


async def partitions(settings: Settings, _: Arguments) -> int:
    """Make the log's months ahead."""
    async with wiring.open_database(settings, quiet) as database:
        made = await wiring.make_months_ahead(database, wiring.now().date())
    print("\n".join(made) or "All months are there.")
    return 0


async def verify(settings: Settings, arguments: Arguments) -> int:
    """Recompute every record, leaf, tree and signature of the log, and compare them with the anchors in the vault."""
    keys = _public_keys(settings, arguments)
    async with wiring.open_database(settings, quiet) as database:

        def inspected(show: Progress) -> Report:
            with wiring.open_evidence(settings, database, _span(arguments)) as evidence:
                return inspect(evidence, keys, show)

        return await _verdict(inspected, arguments)


async def prove(settings: Settings, arguments: Arguments) -> int:
    """Write the proof of one record, for anybody to check without us."""
    async with wiring.open_database(settings, quiet) as database, wiring.open_prover(database) as prover:
        try:
            content = await prover.prove(await prover.row(arguments.query_id))
        except UnprovenError as failure:
            say(f"{failure.verdict}: {failure}")
            return FOUND_SOMETHING
    report = auditor.check(content, _public_keys(settings, arguments))
    if report.verdict not in auditor.GOOD:  # a proof that proves nothing is not handed out
        say(str(report))
        return FOUND_SOMETHING
    if arguments.output:
        arguments.output.write_bytes(content)
    else:
        print(content.decode(), end="")
    return 0


async def check(arguments: Arguments) -> int:
    """Check a proof, a receipt or an answer: no network, no database, no settings."""
    return _printed(auditor.check_files(arguments.file, arguments.public_key, arguments.receipt), arguments)


async def reverify(settings: Settings, arguments: Arguments) -> int:
    """Cut every quotation again from the stored passages, and compare it with the records."""
    async with wiring.open_database(settings, quiet) as database:

        def compared(show: Progress) -> Report:
            with wiring.open_evidence(settings, database, _span(arguments)) as evidence:
                return requote(evidence, arguments.query_id, show)

        return await _verdict(compared, arguments)


async def _verdict(work: Callable[[Progress], Report], arguments: Arguments) -> int:
    """In a thread, so that Ctrl-C is heard. Who was interrupted has no verdict, and must not look as if all were well."""
    show, is_over = progress(), threading.Event()

    def showing(what: str, done: int, of: int) -> None:
        if is_over.is_set():
            raise InterruptedError
        show(what, done, of)

    try:
        return _printed(await asyncio.to_thread(work, showing), arguments)
    except asyncio.CancelledError:
        say("Interrupted: there is no verdict.")
        return FOUND_SOMETHING
    finally:
        is_over.set()


def _printed(report: Report, arguments: Arguments) -> int:
    print(json.dumps(report.as_json()) if arguments.json else report)
    return 0 if report.verdict in auditor.GOOD else FOUND_SOMETHING


def _public_keys(settings: Settings, arguments: Arguments) -> list[PublicKey]:
    try:
        return read_public_keys(arguments.public_key or wiring.public_keys_file(settings))
    except KeyFileError as wrong:
        raise ConfigurationError(f"{wrong} Name another with --public-key.") from None


def _span(arguments: Arguments) -> Span:
    return Span(arguments.since or datetime.min.replace(tzinfo=UTC), arguments.until or LAST_MOMENT)


def _time(text: str) -> datetime:
    """A day or a moment; in UTC unless it says otherwise."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_FROM = argument(
    "--from", dest="since", type=_time, metavar="TIME", help="records from this day or moment on (UTC)"
)
_TO = argument(
    "--to", dest="until", type=_time, metavar="TIME", help="records before this day or moment (UTC)"
)
_PUBLIC_KEY = argument(
    "--public-key", type=Path, metavar="FILE", help="one key a line (default: beside the signing key)"
)

AUDIT_COMMANDS: dict[str, Command] = {
    "audit query": Command(
        query, "affidavit audit query 'SELECT outcome, count(*) FROM audit_logs GROUP BY outcome'",
        (argument("sql", metavar="SQL"), JSON),
    ),
    "audit status": Command(status, "affidavit audit status --json", (JSON,)),
    "audit verify": Command(
        verify, "affidavit audit verify --from 2026-11-01 --json", (_FROM, _TO, _PUBLIC_KEY, JSON)
    ),
    "audit prove": Command(
        prove, "affidavit audit prove 0198c0de-… -o proof.json",
        (
            argument("query_id", type=UUID, metavar="QUERY_ID"),
            argument("-o", dest="output", type=Path, metavar="FILE", help="default: stdout"),
            _PUBLIC_KEY,
        ),
    ),
    "audit check": Command(
        check, "affidavit audit check proof.json --public-key signing.key.pub",
        (
            argument("file", type=Path, metavar="FILE", help="a proof, a receipt, or an answer that holds one"),
            argument("--public-key", type=Path, required=True, metavar="FILE", help="one key a line"),
            argument("--receipt", type=Path, metavar="FILE", help="the proof must be of this receipt's record"),
            JSON,
        ),
        has_settings=False,
    ),
    "audit reverify": Command(
        reverify, "affidavit audit reverify --from 2026-11-01 --json",
        (argument("query_id", nargs="?", type=UUID, metavar="QUERY_ID", help="default: all"), _FROM, _TO, JSON),
    ),
    "audit partitions": Command(partitions, "affidavit audit partitions"),
}  # fmt: skip
