"""Handlers of the commands `affidavit audit …`; their registry, with all arguments, is `AUDIT_COMMANDS` at the end."""

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

from audit import auditor
from audit.archive.archiver import Archiver, MonthOutcome
from audit.archive.reader import ArchiveSource, LocalFiles
from audit.archive.verify import verify_archive
from audit.checking.evidence import StoredEvidence
from audit.checking.inspection import inspect
from audit.checking.month_tiers import tier_rows
from audit.checking.quotations import check_quotations
from audit.checking.status import broken_histories, gaps, summary
from audit.definitions.comparison import check_with
from audit.errors import HistoryWholeError, KeyFileError, QueryError, UnansweredError, UnprovenError
from audit.progress import Progress
from audit.proof.archive_format import MANIFEST
from audit.proof.checkpoint import BASIS_CHARACTERS_MAX, is_basis
from audit.proof.keys import PublicKey, read_public_keys
from audit.proof.verdict import PROVEN, Report
from audit.sealing.signers import KnownSigner
from engine import signing, wiring
from engine.cli import output
from engine.cli.output import CSV, FROM, JSON, TO, Arguments, Command, argument, say
from engine.errors import AffidavitError, ConfigurationError
from engine.settings import Settings
from engine.storage.database import Database

NICE = 10  # a low priority for the archiver, so that the engine on the same machine gets the CPU first


async def query(settings: Settings, arguments: Arguments) -> int:
    """Run SQL over all tiers of the log, in the auditor's role, which can only read records."""
    if arguments.personal != bool(arguments.basis):
        say("Personal data is shown only for a recorded reason: give --personal and --basis TEXT together.")
        return output.WRONG_USAGE
    async with wiring.open_database(settings) as database:
        if arguments.personal:
            await _record_access(database, arguments)
        period, is_open = output.period(arguments), arguments.personal
        with wiring.open_tiers(settings, database, period, is_open=is_open) as tiers:
            try:
                found = await asyncio.to_thread(tiers.query, arguments.sql)
            except QueryError as wrong:
                say(str(wrong))
                return output.WRONG_USAGE
            except (UnansweredError, asyncio.CancelledError) as failure:
                tiers.interrupt()
                say(str(failure) or "Interrupted: the statement was not finished.")
                return output.FOUND_SOMETHING
    output.print_found(found.names, found.rows, arguments)
    for difference in found.differences:
        say(f"Not as it was shipped, although it does not change this answer: {difference}")
    if found.archived:
        say(f"Archived months in this period: {len(found.archived)}, read: {len(found.opened)}.")
    if found.opened and not arguments.personal:
        say("Their personal data is NULL here; --personal --basis TEXT shows it, and the access is recorded.")
    return 0


async def _record_access(database: Database, arguments: Arguments) -> None:
    """Writes the operator event before the first read, so that an access that fails later is recorded too."""
    details = {"sql": arguments.sql, "basis": arguments.basis}
    times = {"since": arguments.since, "until": arguments.until}
    details |= {name: str(time) for name, time in times.items() if time}
    async with wiring.operator_events_of(database).event("audit query", **details):
        pass


async def status(settings: Settings, arguments: Arguments) -> int:
    """Print the state of the log: records, months, seals and anchors, queued rows, gaps; exit 1 if there is a gap."""
    async with wiring.open_database(settings) as database:
        found = await wiring.status_of(settings, database, output.period(arguments))
    missing = gaps(found, wiring.now())
    hot_from = wiring.now() - timedelta(days=settings.audit.hot_days)
    months = tier_rows(found.months, output.period(arguments), hot_from)
    if arguments.json:
        print(json.dumps(asdict(found) | {"months": months, "gaps": missing}, default=str))
    else:
        output.print_rows(found.records, empty="No records yet.")
        output.print_rows(found.evidence, empty="Nothing is sealed yet.")
        output.print_rows(months, empty="No month has a record.")
        breaks = (("BREAK", words) for words in broken_histories(found))
        for name, value in [*summary(found), *breaks, *(("GAP", gap) for gap in missing)]:
            print(f"{name:<12}  {value}")
    return output.FOUND_SOMETHING if missing else 0


async def partitions(settings: Settings, arguments: Arguments) -> int:
    """Create the log's partitions for the coming months, and with --from the missing ones since then."""
    today = wiring.now().date()
    async with wiring.open_database(settings) as database:
        made = await wiring.make_months_ahead(database, today)
        if arguments.since:
            made += await wiring.make_months(database, arguments.since.date(), today)
    print("\n".join(made) or "All partitions exist already.")
    return 0


async def seal(settings: Settings, arguments: Arguments) -> int:
    """Seal committed records into the month's signed tree and anchor its head in the vault, until stopped."""
    if arguments.once:
        return await _seal_once(settings, arguments)
    async with wiring.open_database(settings, say) as database, wiring.sealing(settings, database):
        say("Sealing. Press Ctrl-C to seal the remaining records and exit.")
        await asyncio.Event().wait()
    return 0


async def _seal_once(settings: Settings, arguments: Arguments) -> int:
    async with wiring.open_database(settings) as database, wiring.open_sealer(settings, database) as sealer:
        done = await sealer.seal_once()
    failures = {f"{month:%Y-%m}": message for month, message in sealer.failures.items()}
    if arguments.json:
        print(json.dumps(asdict(done) | {"failures": failures}))
    else:
        print(f"{done.rows} records sealed, {done.anchors} tree heads anchored.")
    return output.FOUND_SOMETHING if failures else 0


async def key(settings: Settings, arguments: Arguments) -> int:
    """Print the public keys that verify this installation's signatures, newest last; --new creates a signing key."""
    if arguments.new:
        lost = [] if signing.has_signing_key(settings) else await _signers(settings)
        signing.make_signing_key(settings)
        _say_what_is_lost(lost, _public_keys(settings, arguments), signing.public_keys_file(settings))
        say(
            "The new signing key is in use from now on. Restart running processes: they still sign with the old one."
        )
    keys = [str(known) for known in _public_keys(settings, arguments)]
    print(json.dumps(keys) if arguments.json else "\n".join(keys))
    return 0


async def _signers(settings: Settings) -> list[KnownSigner]:
    try:
        async with wiring.open_database(settings) as database:
            return wiring.signers_of(database)
    except AffidavitError as failure:
        say(
            f"WARNING: {failure}. If it was signed before, keep the public keys: they verify what is signed so far."
        )
    return []


def _say_what_is_lost(signers: list[KnownSigner], public: list[PublicKey], file: Path) -> None:
    """A rotation without the old key at hand: nothing signed is lost, but who still has the old key can sign with it."""
    for signer in signers:
        say(f"LOST: the private key of {signer.key_id}, which signed this log. Whoever has a copy can still sign with it:"
            " tell your auditors from when on its signatures do not count.")  # fmt: skip
        if signer.key_id not in {key.key_id for key in public}:
            say(f"LOST: its public key. Without it nothing that it signed can be verified, and its months are not sealed"
                f" any further. Add its line at the top of {file}, from a backup or from an auditor's copy."
                f" The database says it is {signer.public_key or 'unknown'}: compare the two.")  # fmt: skip


async def verify(settings: Settings, arguments: Arguments) -> int:
    """Recompute every record, leaf, tree and signature of the log, and compare them with the anchors in the vault.

    With --archive, verify one archived month instead, from the vault or a local copy, without the database.
    """
    keys = _public_keys(settings, arguments)
    if arguments.archive:
        vault, place = _archive_of(settings, arguments.archive)
        return await _check_in_thread(partial(verify_archive, vault, place, None, keys, None), arguments)
    return await _check_log(
        settings,
        arguments,
        lambda evidence, show: check_with(
            evidence.connection, wiring.shipped_definitions(), lambda: inspect(evidence, keys, show)
        ),
    )


async def break_history(settings: Settings, arguments: Arguments) -> int:
    """After a failover or a restore: state, signed, which sealed records are lost for good, so that sealing goes on.

    Nothing is repaired by it: every later verdict repeats the break, with its range and this basis.
    """
    if not is_basis(arguments.basis):
        say(
            f"Give a basis of one line and at most {BASIS_CHARACTERS_MAX} characters, without a person's name: it stays for ever."
        )
        return output.WRONG_USAGE
    month, basis = arguments.month, arguments.basis
    async with wiring.open_database(settings) as database, wiring.open_sealer(settings, database) as sealer:
        events = wiring.operator_events_of(database)
        try:
            async with events.event("audit break", month=f"{month:%Y-%m}", basis=basis) as trail:
                broken = await sealer.declare_break(month, basis, trail.log_id)
        except HistoryWholeError as whole:
            say(str(whole))
            return output.FOUND_SOMETHING
        done = await sealer.seal_once()
    lost = {
        "month": f"{month:%Y-%m}",
        "kept": broken.kept.size,
        "lost": broken.lost.size,
        "event": str(broken.event),
    }
    words = f"Stated: the leaves {broken.kept.size} to {broken.lost.size - 1} of {month:%Y-%m} are lost. {done.rows} records were sealed after it."
    print(json.dumps(lost | {"sealed": done.rows}) if arguments.json else words)
    return output.FOUND_SOMETHING if month in sealer.failures else 0


def _archive_of(settings: Settings, named: str) -> tuple[ArchiveSource, str]:
    """A local folder or file if the path exists, else a key of the vault."""
    path = Path(named)
    if path.is_dir():
        found = sorted(path.glob(f"*{MANIFEST}"))
        if len(found) != 1:
            raise ConfigurationError(
                f"{path} contains {len(found)} manifests. Give the path of the one manifest to verify."
            )
        (path,) = found
    if path.is_file():
        return LocalFiles(path.parent), path.name
    return wiring.vault_of(settings), named


async def prove(settings: Settings, arguments: Arguments) -> int:
    """Write the proof of one record, which anyone can check without this service."""
    async with wiring.open_database(settings) as database, wiring.open_prover(database) as prover:
        try:
            content = await prover.prove(await prover.row(arguments.query_id))
        except UnprovenError as failure:
            say(f"{failure.verdict}: {failure}")
            return output.FOUND_SOMETHING
    report = auditor.check(content, _public_keys(settings, arguments))
    if report.verdict not in PROVEN:  # never hand out a proof that does not verify
        say(str(report))
        return output.FOUND_SOMETHING
    if arguments.output:
        arguments.output.write_bytes(content)
    else:
        print(content.decode(), end="")
    return 0


async def check(arguments: Arguments) -> int:
    """Check a proof, a receipt or an answer offline: without network, database or settings."""
    report = auditor.check_files(arguments.file, arguments.public_key, arguments.receipt)
    return _print_verdict(report, arguments)


async def reverify(settings: Settings, arguments: Arguments) -> int:
    """Extract every quotation again from the stored passages and compare it with the records."""
    one = arguments.query_id
    return await _check_log(settings, arguments, lambda evidence, show: check_quotations(evidence, one, show))


async def _check_log(
    settings: Settings, arguments: Arguments, check: Callable[[StoredEvidence, Progress], Report]
) -> int:
    async with wiring.open_database(settings) as database:

        def checked(show: Progress) -> Report:
            with wiring.open_evidence(settings, database, output.period(arguments)) as evidence:
                return check(evidence, show)

        return await _check_in_thread(checked, arguments)


async def archive(settings: Settings, arguments: Arguments) -> int:
    """Write old months to the vault, read them back and compare; then detach their tables from the log and drop them."""

    def work(archiver: Archiver) -> Awaitable[list[MonthOutcome]]:
        run = archiver.dry_run if arguments.dry_run else archiver.archive
        return run(arguments.before)

    return await _with_archiver(settings, arguments, work)


async def restore(settings: Settings, arguments: Arguments) -> int:
    """Load an archived month back into the log for an investigation; --end removes it again."""

    async def work(archiver: Archiver) -> list[MonthOutcome]:
        run = archiver.end_restore if arguments.end else archiver.restore
        return [await run(arguments.month)]

    return await _with_archiver(settings, arguments, work)


async def _with_archiver(
    settings: Settings, arguments: Arguments, work: Callable[[Archiver], Awaitable[list[MonthOutcome]]]
) -> int:
    show, stop = _cancellable_progress()
    async with wiring.open_database(settings) as database:
        os.nice(NICE)
        try:
            outcomes = await work(wiring.archiver_of(settings, database, show, say))
        finally:
            stop.set()
    rows = [asdict(outcome) for outcome in outcomes]
    if not arguments.json:
        rows = [{name: value for name, value in row.items() if name != "is_well"} for row in rows]
    nothing = "No month is old enough to archive, and none is in progress."
    output.print_rows(rows, as_json=arguments.json, empty=nothing)
    return 0 if all(outcome.is_well for outcome in outcomes) else output.FOUND_SOMETHING


async def _check_in_thread(work: Callable[[Progress], Report], arguments: Arguments) -> int:
    """Runs a check in a thread, so that Ctrl-C interrupts it. An interrupted check has no verdict, so its exit code is not 0."""
    show, stop = _cancellable_progress()
    try:
        return _print_verdict(await asyncio.to_thread(work, show), arguments)
    except asyncio.CancelledError:
        say("Interrupted: there is no verdict.")
        return output.FOUND_SOMETHING
    finally:
        stop.set()


def _cancellable_progress() -> tuple[Progress, threading.Event]:
    """A thread cannot be cancelled: once the event is set, its next progress report raises `InterruptedError`."""
    show, stop = output.progress(), threading.Event()

    def show_or_stop(what: str, done: int, of: int) -> None:
        if stop.is_set():
            raise InterruptedError
        show(what, done, of)

    return show_or_stop, stop


def _print_verdict(report: Report, arguments: Arguments) -> int:
    print(json.dumps(report.as_json()) if arguments.json else report)
    return 0 if report.verdict in PROVEN else output.FOUND_SOMETHING


def _public_keys(settings: Settings, arguments: Arguments) -> list[PublicKey]:
    named = getattr(arguments, "public_key", None)
    try:
        return read_public_keys(named or signing.public_keys_file(settings))
    except KeyFileError as wrong:
        hint = "Create a key with `affidavit audit key --new`."
        if named:
            hint = "Give another file with --public-key."
        raise ConfigurationError(f"{wrong} {hint}") from None


def _month(text: str) -> date:
    return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()


_PUBLIC_KEY = argument(
    "--public-key",
    type=Path,
    metavar="FILE",
    help="one key per line (default: the file beside the signing key)",
)

AUDIT_COMMANDS: dict[str, Command] = {
    "audit query": Command(
        query, "affidavit audit query 'SELECT outcome, count(*) FROM audit_logs GROUP BY outcome' --from 2026-01-01",
        (
            argument("sql", metavar="SQL"), FROM, TO,
            argument("--personal", action="store_true", help="show personal data of archived records too; needs --basis"),
            argument("--basis", metavar="TEXT", help="the reason for --personal; it is recorded with the statement"),
            CSV, JSON,
        ),
    ),
    "audit status": Command(status, "affidavit audit status --from 2025-01-01 --json", (FROM, TO, JSON)),
    "audit seal": Command(
        seal, "affidavit audit seal --once --json",
        (argument("--once", action="store_true", help="seal what is committed now, then exit"), JSON),
        runs_until_stopped=True,
    ),
    "audit key": Command(
        key, "affidavit audit key --json",
        (argument("--new", action="store_true", help="create a signing key, or replace the current one"), JSON),
    ),
    "audit verify": Command(
        verify, "affidavit audit verify --from 2026-11-01 --json",
        (
            FROM, TO,
            argument(
                "--archive", metavar="KEY",
                help="verify an archived month: the key of its manifest in the vault, or a local copy of the manifest or its folder",
            ),
            _PUBLIC_KEY, JSON,
        ),
    ),
    "audit break": Command(
        break_history, 'affidavit audit break --month 2026-11 --basis "failover of 2026-11-19 08:40 UTC, ticket 4711"',
        (
            argument("--month", type=_month, required=True, metavar="YYYY-MM"),
            argument("--basis", required=True, metavar="TEXT", help="what happened; it is kept for ever, so name no person"),
            JSON,
        ),
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
            argument("file", type=Path, metavar="FILE", help="a proof, a receipt, or an answer that contains a receipt"),
            argument("--public-key", type=Path, required=True, metavar="FILE", help="one key per line"),
            argument("--receipt", type=Path, metavar="FILE", help="also check that the proof is of this receipt's record"),
            JSON,
        ),
        has_settings=False,
    ),
    "audit reverify": Command(
        reverify, "affidavit audit reverify --from 2026-11-01 --json",
        (argument("query_id", nargs="?", type=UUID, metavar="QUERY_ID", help="default: all"), FROM, TO, JSON),
    ),
    "audit archive": Command(
        archive, "affidavit audit archive --before 2026-01 --dry-run",
        (
            argument("--before", type=_month, metavar="YYYY-MM", help="archive the closed months before this one (default: those older than audit.warm_days)"),
            argument("--dry-run", action="store_true", help="print what would be done, and change nothing"),
            JSON,
        ),
    ),
    "audit restore": Command(
        restore, "affidavit audit restore 2025-11",
        (
            argument("month", type=_month, metavar="YYYY-MM"),
            argument("--end", action="store_true", help="end the restore: remove the month from the log again"),
            JSON,
        ),
    ),
    "audit partitions": Command(
        partitions, "affidavit audit partitions",
        (argument("--from", dest="since", type=output.moment, metavar="DATE", help="also the missing months since then, after a wrong clock"),),
    ),
}  # fmt: skip
