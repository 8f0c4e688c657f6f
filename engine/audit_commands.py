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


async def seal(settings: Settings, arguments: Arguments) -> int:
    """Give committed records their place in the month's signed tree, and anchor that in the vault, until stopped."""
    if arguments.once:
        return await _seal_once(settings, arguments)
    async with wiring.open_database(settings, say) as database, wiring.sealing(settings, database):
        say("Sealing. Ctrl-C seals what is left, and ends it.")
        await asyncio.Event().wait()
    return 0


async def _seal_once(settings: Settings, arguments: Arguments) -> int:
    async with (
        wiring.open_database(settings, quiet) as database,
        wiring.open_sealer(settings, database) as sealer,
    ):
        done = await sealer.seal_once()
    failures = {f"{month:%Y-%m}": words for month, words in sealer.failures.items()}
    if arguments.json:
        print(json.dumps(asdict(done) | {"failures": failures}))
    else:
        print(f"{done.rows} records sealed, {done.anchors} tree heads anchored.")
    return FOUND_SOMETHING if failures else 0


async def key(settings: Settings, arguments: Arguments) -> int:
    """The public keys that verify what is signed here, the newest last; --new makes a new signing key."""
    if arguments.new:
        wiring.make_signing_key(settings)
        say("A new key signs from now on; what runs signs with the old one until it is started again.")
    keys = [str(known) for known in _public_keys(settings, arguments)]
    print(json.dumps(keys) if arguments.json else "\n".join(keys))
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
    named = getattr(arguments, "public_key", None)
    hint = "Name another with --public-key." if named else "To make one: `affidavit audit key --new`."
    try:
        return read_public_keys(named or wiring.public_keys_file(settings))
    except KeyFileError as wrong:
        raise ConfigurationError(f"{wrong} {hint}") from None


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
    "audit seal": Command(
        seal, "affidavit audit seal --once --json",
        (argument("--once", action="store_true", help="only what is committed now, then end"), JSON),
    ),
    "audit key": Command(
        key, "affidavit audit key --json",
        (argument("--new", action="store_true", help="make one, or replace the one in use"), JSON),
    ),
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
