"""Handlers of the commands `affidavit audit …`; their registry, with all arguments, is `AUDIT_COMMANDS` at the end."""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit import auditor
from audit.checking.evidence import StoredEvidence
from audit.checking.month_tiers import tier_rows
from audit.checking.prover import Prover
from audit.checking.quotations import check_quotations
from audit.checking.status import broken_histories, gaps, spool_files, summary
from audit.coverage import verifications
from audit.erasure.target import ErasureTarget, check_basis
from audit.errors import HistoryWholeError, KeyFileError, QueryError, UnansweredError, UnprovenError
from audit.heads.head import log_keys
from audit.heads.proof_check import HeadsProof
from audit.ledger.spool import ASIDE_FILE
from audit.progress import Progress
from audit.proof.archive_format import MANIFEST
from audit.proof.checkpoint import BASIS_CHARACTERS_MAX, is_basis
from audit.proof.keys import PublicKey, read_public_keys
from audit.proof.record import PERSONAL
from audit.proof.verdict import PROVEN, Report
from audit.sealing.signers import KnownSigner
from audit.vault_copy import copy_vault
from engine import signing, wiring
from engine.cli import output
from engine.cli.output import APPROVAL, BASIS, CSV, FROM, JSON, TO, Arguments, Command, argument, say
from engine.errors import AffidavitError, ConfigurationError
from engine.settings import Settings
from engine.storage.data_folder import usable
from engine.storage.database import Database

if TYPE_CHECKING:  # Arrow takes longer to load than most commands take
    from audit.archive.archiver import Archiver, MonthOutcome
    from audit.archive.reader import ArchiveSource
    from audit.query.tiers import QueryResult, TieredLog

BASIS_WANTED = f"Give a reason of one line and at most {BASIS_CHARACTERS_MAX} characters, without a person's name: it is kept forever."
NICE = 10  # a low priority for the archiver, so that the engine on the same machine gets the CPU first


async def query(settings: Settings, arguments: Arguments) -> int:
    """Run SQL over all tiers of the log, in the auditor's role, which can only read records.

    A query that reads personal columns is itself a record, written before the first read.
    """
    if arguments.personal and not arguments.basis:
        say("Personal data of archives is shown only for a recorded reason: give --basis TEXT too.")
        return output.WRONG_USAGE
    async with wiring.open_existing_database(settings) as database:
        period, is_open = output.period(arguments), arguments.personal
        with wiring.open_tiers(settings, database, period, is_open=is_open) as tiers:
            try:
                found = await _answered(settings, database, tiers, arguments)
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


async def _answered(
    settings: Settings, database: Database, tiers: "TieredLog", arguments: Arguments
) -> "QueryResult":
    columns = await asyncio.to_thread(tiers.shown_columns, arguments.sql)
    if not columns:
        return await asyncio.to_thread(tiers.query, arguments.sql)
    times = {"since": arguments.since, "until": arguments.until}
    about = {name: str(time) for name, time in times.items() if time}
    access = wiring.access_of(database, arguments.sql, columns, arguments.basis, arguments.approval)
    async with wiring.recording_read(settings, database, "audit query", access, **about):
        found = await asyncio.to_thread(tiers.query, arguments.sql)
        access.records = len(found.rows)
    return found


async def status(settings: Settings, arguments: Arguments) -> int:
    """Print the state of the log: records, months, seals and anchors, queued rows, gaps; exit 1 if there is a gap."""
    async with wiring.open_existing_database(settings) as database:
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
    """Create the log's partitions for the coming months, and the search index of each month that is over.

    With --from also the partitions that are missing since then.
    """
    today = wiring.now().date()
    async with wiring.open_existing_database(settings) as database:
        made = await wiring.make_months_ahead(database, today)
        if arguments.since:
            made += await wiring.make_months(database, arguments.since.date(), today)
        made += [
            f"search index of {month:%Y-%m}" for month in await wiring.build_search_indexes(database, today)
        ]
    print("\n".join(made) or "All partitions and search indexes exist already.")
    return 0


async def drain(settings: Settings, arguments: Arguments) -> int:
    """Write the records in the spool of a lost machine into the database, and close the requests that it left open."""
    before = [file for file in spool_files(arguments.folder) if file.name != ASIDE_FILE]
    if not before:
        say(
            f"{arguments.folder} has no spool file. It is the folder `spool` of the lost machine's data folder."
        )
        return output.FOUND_SOMETHING
    async with wiring.open_existing_database(settings) as database:
        left = await wiring.drain_spool(settings, database, arguments.folder)
    entries = sum(file.entries for file in before) - sum(
        file.entries for file in left if file.name != ASIDE_FILE
    )
    print(f"{entries} entries of {len(before)} files were drained.")
    for file in left:
        words = "refused for good" if file.name == ASIDE_FILE else "of a process that lives, or not taken now"
        print(f"LEFT          {file.name}: {file.entries} entries, {words}")
    return output.FOUND_SOMETHING if left else 0


async def seal(settings: Settings, arguments: Arguments) -> int:
    """Seal committed records into the month's signed tree and anchor its head in the vault, until stopped.

    Before a vault of another log it seals nothing, nor before an empty one if the log was anchored before: see --new-vault.
    """
    if arguments.new_vault is not None and not is_basis(arguments.new_vault):
        say(BASIS_WANTED)
        return output.WRONG_USAGE
    if arguments.once or arguments.new_vault:
        return await _seal_once(settings, arguments)
    async with (
        wiring.open_existing_database(settings, say) as database,
        wiring.sealing(settings, database),
        wiring.stamping(settings, database),
        wiring.keeping_rollups(settings, database),
    ):
        say("Sealing. Press Ctrl-C to seal the remaining records and exit.")
        await asyncio.Event().wait()
    return 0


async def _seal_once(settings: Settings, arguments: Arguments) -> int:
    reason = arguments.new_vault
    async with (
        wiring.open_existing_database(settings) as database,
        wiring.open_sealer(settings, database, may_begin_vault=bool(reason)) as sealer,
    ):
        if reason:  # its record is the first that the new vault anchors
            async with wiring.operator_events_of(database).event("audit seal", new_vault=reason):
                pass
        done = await sealer.seal_once()
        async with wiring.open_stamper(settings, database) as stamper:
            stamps = int(await stamper.try_once()) if stamper else 0
    failures = {f"{month:%Y-%m}": message for month, message in sealer.failures.items()}
    if arguments.json:
        found = asdict(done) | {"stamps": stamps, "failures": failures, "stopped": sealer.stopped}
        print(json.dumps(found))
    else:
        stamped = ", 1 time stamp made" if stamps else ""
        print(f"{done.rows} records sealed, {done.anchors} tree heads anchored{stamped}.")
    return output.FOUND_SOMETHING if failures or sealer.stopped else 0


async def key(settings: Settings, arguments: Arguments) -> int:
    """Print the public keys that verify this installation's signatures, newest last; --new creates or pins a signing key.

    With --revoke, what a key signed before a time stays valid, and what it signs from then on does not count.
    """
    if bool(arguments.revoke) != bool(arguments.at) or (arguments.new and arguments.revoke):
        say("To revoke a key, give --revoke ID and --at TIME together, and no --new.")
        return output.WRONG_USAGE
    if arguments.revoke:
        await _revoke(settings, arguments.revoke, arguments.at)
    if arguments.new:
        is_known = signing.has_signing_key(settings) or not wiring.has_database(settings)
        lost = [] if is_known else await _signers(settings)
        if not wiring.pin_key(settings):
            say(
                "The newest key of signing.provider is pinned already. To replace it, make a new key there first."
            )
            return output.FOUND_SOMETHING
        _say_what_is_lost(lost, _public_keys(settings, arguments), signing.public_keys_file(settings))
        say(
            "The new signing key is in use from now on. Restart running processes: they still sign with the old one."
        )
    public = _public_keys(settings, arguments)
    keys = [known.line for known in public]
    if arguments.for_witness:
        async with wiring.open_existing_database(settings) as database:
            keys = [str(known) for known in log_keys(await wiring.origin_of(database), public)]
    print(json.dumps(keys) if arguments.json else "\n".join(keys))
    return 0


async def _revoke(settings: Settings, key_id: str, at: datetime) -> None:
    """The log has a record of it, and says how many of its records do not count any more."""
    async with wiring.open_existing_database(settings) as database:
        delegations = await asyncio.to_thread(wiring.delegations_of, database)
        events = wiring.operator_events_of(database)
        async with events.event("audit key --revoke", key=key_id, at=at.isoformat()) as trail:
            revoked = signing.revoke_key(settings, key_id, at, delegations)
            trail.reason = f"{key_id} is revoked from {at.isoformat()} on"
        lost = await asyncio.to_thread(wiring.count_signed_since, database, revoked, at)
    say(f"{key_id} is revoked. Give your auditors its new line, which stands below.")
    if lost:
        say(
            f"WARNING: {lost} records of that time or later were signed by it: from now on nothing proves that the engine wrote them."
        )


async def _signers(settings: Settings) -> list[KnownSigner]:
    try:
        async with wiring.open_existing_database(settings) as database:
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

    With --archive, verify one archived month instead, from the vault or a local copy, without the database. With --resume, a run
    that was stopped goes on where it was; the verdict says how much was judged earlier.
    """
    keys = _public_keys(settings, arguments)
    if arguments.archive:
        from audit.archive.verify import verify_archive

        vault, place = _archive_of(settings, arguments.archive)
        return await _check_in_thread(partial(verify_archive, vault, place, None, keys, None), arguments)
    period, begun_at = output.period(arguments), wiring.now()
    async with wiring.open_existing_database(settings) as database:
        watch = await wiring.watch_of(settings, database)

        async def record(report: Report) -> None:
            seconds = (wiring.now() - begun_at).total_seconds()
            said = verifications.about(report, arguments.since, arguments.until, seconds)
            if unrecorded := await wiring.record_verification(database, said, begun_at):
                say(unrecorded)

        check = partial(wiring.verified, database, keys, watch, period, resumed=arguments.resume)
        return await _check_in_thread(check, arguments, record)


async def break_history(settings: Settings, arguments: Arguments) -> int:
    """After a failover or a restore: state, signed, which sealed records are lost for good, so that sealing goes on.

    This repairs nothing: every later verdict repeats the break, with its range and this basis.
    """
    if not is_basis(arguments.basis):
        say(BASIS_WANTED)
        return output.WRONG_USAGE
    month, basis = arguments.month, arguments.basis
    async with (
        wiring.open_existing_database(settings) as database,
        wiring.open_sealer(settings, database) as sealer,
    ):
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


async def set_aside(settings: Settings, arguments: Arguments) -> int:
    """Take the rows and open requests that the engine did not sign out of the log, so that their months can be archived.

    Prints each as a line of JSON. The log keeps the parts that are not personal, and a record of the command with its basis.
    """
    try:
        check_basis(arguments.basis, ErasureTarget())
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    async with wiring.open_existing_database(settings) as database:
        taken = await wiring.set_aside(database, arguments.basis, _print_whole)
    say(
        f"{len(taken)} rows were set aside."
        if taken
        else "The engine signed every row: nothing was set aside."
    )
    return 0


def _print_whole(rows: list[dict[str, Any]]) -> None:
    """Fails here, and not at the end of the process, if the disk is full or nobody reads."""
    for row in rows:
        print(json.dumps(row))
    sys.stdout.flush()


def _archive_of(settings: Settings, named: str) -> tuple["ArchiveSource", str]:
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
        from audit.archive.reader import LocalFiles

        return LocalFiles(path.parent), path.name
    return wiring.vault_of(settings), named


async def copy_the_vault(settings: Settings, arguments: Arguments) -> int:
    """Copy the vault into a folder or a bucket: verify each anchored head and each object, and read every copy back.

    Nothing is changed in the vault that is read. Repeat it at any time: what is there already is compared.
    """
    source, target = wiring.vault_of(settings), wiring.vault_at(settings, arguments.to)
    keys, show = _public_keys(settings, arguments), output.progress()
    copied = await asyncio.to_thread(copy_vault, source, target, keys, usable(settings.data_dir), show)
    if not copied.objects:
        say("The vault of these settings is empty: check --data-dir and AFFIDAVIT_PROVIDERS__VAULT.")
        return output.FOUND_SOMETHING
    words = f"{copied.objects} objects ({copied.size} bytes) are in {arguments.to}, each read back; {copied.heads} anchored heads were recomputed."
    print(json.dumps(asdict(copied)) if arguments.json else words)
    say(
        "Stop what seals, run it once more, and name the new vault in the settings; then run `affidavit audit verify`."
    )
    return 0


async def drill_restore(settings: Settings, arguments: Arguments) -> int:
    """Restore a backup into a scratch server, verify it against the vault, and say what it lacks; the scratch is removed.

    Neither the live database nor the vault is written. Exit code 0 means that it is restorable, and VALID up to the backup.
    """
    if bool(arguments.dump) == bool(arguments.base_backup):
        say("Give one backup: --dump FILE, or --base-backup FOLDER.")
        return output.WRONG_USAGE
    keys = _public_keys(settings, arguments)
    show, stop = _cancellable_progress()

    def go_on() -> None:
        if stop.is_set():
            raise InterruptedError

    given = (settings, arguments.dump, arguments.base_backup, keys, show, go_on)
    working = asyncio.create_task(asyncio.to_thread(wiring.drill_restore, *given))
    try:
        drill = await asyncio.shield(working)
    except asyncio.CancelledError:
        say("Interrupted: there is no verdict. The scratch server is being removed.")
        stop.set()
        await asyncio.wait([working])
        working.exception()
        raise
    print(json.dumps(output.plain(drill.as_json())) if arguments.json else drill)
    return 0 if drill.is_good else output.FOUND_SOMETHING


async def prove(settings: Settings, arguments: Arguments) -> int:
    """Write the proof of one record, which anyone can check without this service. It holds the record, so this is a record too."""
    async with wiring.open_existing_database(settings) as database, wiring.open_prover(database) as prover:
        about = (f"query {arguments.query_id}", PERSONAL, arguments.basis, arguments.approval)
        access = wiring.access_of(database, *about)
        try:
            async with wiring.recording_read(settings, database, "audit prove", access):
                content, of_head = await _proof(prover, arguments)
                access.records = 1
        except UnprovenError as failure:
            say(f"{failure.verdict}: {failure}")
            return output.FOUND_SOMETHING
    heads = HeadsProof(of_head.encode()) if of_head else None
    report = auditor.check(content, _public_keys(settings, arguments), heads=heads)
    if report.verdict not in PROVEN:  # never hand out a proof that does not verify
        say(str(report))
        return output.FOUND_SOMETHING
    if arguments.heads:
        arguments.heads.write_text(of_head, "utf-8")
    if arguments.output:
        arguments.output.write_bytes(content)
    else:
        print(content.decode(), end="")
    return 0


async def _proof(prover: Prover, arguments: Arguments) -> tuple[bytes, str]:
    row = await prover.row(arguments.query_id)
    if arguments.heads:
        return await prover.prove_in_heads(row)
    return await prover.prove(row), ""


async def check(arguments: Arguments) -> int:
    """Check a proof, a receipt, an answer, a time stamp or an evidence package offline: without network, database or settings."""
    from audit.checking.signature_check import FastKeys

    check_files = partial(auditor.check_files, jobs=os.cpu_count() or 1, signers=FastKeys)
    given = (arguments.file, arguments.public_key, auditor.Beside.of(arguments))
    return _print_verdict(await asyncio.to_thread(check_files, *given), arguments)


async def reverify(settings: Settings, arguments: Arguments) -> int:
    """Extract every quotation again from the stored passages and compare it with the records."""
    one = arguments.query_id
    return await _check_log(settings, arguments, lambda evidence, show: check_quotations(evidence, one, show))


async def _check_log(
    settings: Settings, arguments: Arguments, check: Callable[[StoredEvidence, Progress], Report]
) -> int:
    async with wiring.open_existing_database(settings) as database:
        return await _check_stored(database, arguments, check)


async def _check_stored(
    database: Database, arguments: Arguments, check: Callable[[StoredEvidence, Progress], Report]
) -> int:
    def checked(show: Progress) -> Report:
        with wiring.open_evidence(database.settings, database, output.period(arguments)) as evidence:
            return check(evidence, show)

    return await _check_in_thread(checked, arguments)


async def archive(settings: Settings, arguments: Arguments) -> int:
    """Write old months to the vault, read them back and compare; then detach their tables from the log and drop them."""

    def work(archiver: "Archiver") -> Awaitable[list["MonthOutcome"]]:
        run = archiver.dry_run if arguments.dry_run else archiver.archive
        return run(arguments.before)

    return await _with_archiver(settings, arguments, work)


async def restore(settings: Settings, arguments: Arguments) -> int:
    """Load an archived month back into the log for an investigation; --end removes it again."""

    async def work(archiver: "Archiver") -> list["MonthOutcome"]:
        run = archiver.end_restore if arguments.end else archiver.restore
        return [await run(arguments.month)]

    return await _with_archiver(settings, arguments, work)


async def _with_archiver(
    settings: Settings, arguments: Arguments, work: Callable[["Archiver"], Awaitable[list["MonthOutcome"]]]
) -> int:
    show, stop = _cancellable_progress()
    async with wiring.open_existing_database(settings) as database:
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


async def _check_in_thread(
    work: Callable[[Progress], Report],
    arguments: Arguments,
    record: Callable[[Report], Awaitable[None]] | None = None,
) -> int:
    """Runs a check in a thread, so that Ctrl-C interrupts it. An interrupted check has no verdict, so its exit code is not 0."""
    show, stop = _cancellable_progress()
    began_s = time.monotonic()
    try:
        report = await asyncio.to_thread(work, show)
    except asyncio.CancelledError:
        say("Interrupted: there is no verdict.")
        return output.FOUND_SOMETHING
    finally:
        stop.set()
    exit_code = _print_verdict(report, arguments)
    if record:
        await record(report)
    if file := getattr(arguments, "metrics", None):
        _write_metrics(file, report, time.monotonic() - began_s)
    return exit_code


def _write_metrics(file: Path, report: Report, seconds: float) -> None:
    from engine.http.metrics import write_verification

    try:
        write_verification(file, report, wiring.now(), seconds)
    except OSError as failure:
        raise ConfigurationError(f"The metrics cannot be written: {failure}") from None


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
            argument("sql", metavar="SQL", help="one SELECT statement"), FROM, TO,
            argument("--personal", action="store_true", help="show personal data of archived records too; needs --basis"),
            BASIS, APPROVAL, CSV, JSON,
        ),
    ),
    "audit status": Command(status, "affidavit audit status --from 2025-01-01 --json", (FROM, TO, JSON)),
    "audit drain": Command(
        drain, "affidavit audit drain /mnt/lost-machine/affidavit/spool",
        (argument("folder", type=Path, metavar="FOLDER", help="the spool folder, from the disk of the lost machine"),),
    ),
    "audit seal": Command(
        seal, "affidavit audit seal --once --json",
        (
            argument("--once", action="store_true", help="seal what is committed now, then exit"),
            argument("--new-vault", metavar="REASON", help="once, into an empty vault, because the old one is lost for good; the reason is kept on record, so name no person"),
            JSON,
        ),
        runs_until_stopped=True,
    ),
    "audit key": Command(
        key, "affidavit audit key --revoke affidavit+1a2b3c4d --at 2026-11-20T08:00",
        (
            argument("--new", action="store_true", help="create a signing key, or pin the newest one of signing.provider"),
            argument("--revoke", metavar="ID", help="a key that is not to count from --at on; first replace it with --new and restart everything"),
            argument("--at", type=output.moment, metavar="TIME", help="from when on; a time without a zone is UTC"),
            argument("--for-witness", action="store_true", help="as a witness needs them: under the log's own name"),
            JSON,
        ),
    ),
    "audit verify": Command(
        verify, "affidavit audit verify --from 2026-11-01 --json",
        (
            FROM, TO,
            argument(
                "--archive", metavar="KEY",
                help="verify an archived month: the key of its manifest in the vault, or a local copy of the manifest or its folder",
            ),
            argument(
                "--metrics", type=Path, metavar="FILE",
                help="also write the verdict and its time for Prometheus, such as verification.prom in the folder of node_exporter's textfile collector",
            ),
            argument(
                "--resume", type=Path, metavar="FILE",
                help="keep in this file how far it is, and go on from there if an earlier run was stopped; the file is removed at the end",
            ),
            _PUBLIC_KEY, JSON,
        ),
    ),
    "audit break": Command(
        break_history, 'affidavit audit break --month 2026-11 --basis "failover of 2026-11-19 08:40 UTC, ticket 4711"',
        (
            argument("--month", type=output.month, required=True, metavar="YYYY-MM", help="the month whose sealing has stopped"),
            argument("--basis", required=True, metavar="TEXT", help="what happened; it is kept forever, so name no person"),
            JSON,
        ),
    ),
    "audit set-aside": Command(
        set_aside, 'affidavit audit set-aside --basis "ticket 4711" > forged.jsonl',
        (argument("--basis", required=True, metavar="TEXT", help="the reason; it is kept on record, so name no person"),),
    ),
    "vault copy": Command(
        copy_the_vault, "affidavit vault copy --to s3://my-bucket/affidavit",
        (
            argument("--to", required=True, metavar="PLACE", help="a folder, or s3://bucket/prefix with AWS_… as for the vault"),
            _PUBLIC_KEY, JSON,
        ),
    ),
    "drill restore": Command(
        drill_restore, "affidavit drill restore --dump affidavit.dump --json",
        (
            argument("--dump", type=Path, metavar="FILE", help="a file or a folder that pg_dump wrote, in any of its formats"),
            argument("--base-backup", type=Path, metavar="FOLDER", help="a folder that pg_basebackup wrote"),
            _PUBLIC_KEY, JSON,
        ),
    ),
    "audit prove": Command(
        prove, "affidavit audit prove 0198c0de-… -o proof.json",
        (
            argument("query_id", type=output.query_id, metavar="QUERY_ID", help="as the answer names it"),
            argument("-o", dest="output", type=Path, metavar="FILE", help="default: stdout"),
            argument("--heads", type=Path, metavar="FILE", help="also write the proof that the month's head is in the log of heads, such as proof.tlog-proof"),
            BASIS, APPROVAL, _PUBLIC_KEY,
        ),
    ),
    "audit check": Command(
        check, "affidavit audit check proof.json --public-key signing.key.pub",
        (*auditor.ARGUMENTS, JSON),
        has_settings=False,
    ),
    "audit reverify": Command(
        reverify, "affidavit audit reverify --from 2026-11-01 --json",
        (argument("query_id", nargs="?", type=output.query_id, metavar="QUERY_ID", help="default: all"), FROM, TO, JSON),
    ),
    "audit archive": Command(
        archive, "affidavit audit archive --before 2026-01 --dry-run",
        (
            argument("--before", type=output.month, metavar="YYYY-MM", help="archive the closed months before this one (default: those older than audit.warm_days)"),
            argument("--dry-run", action="store_true", help="print what would be done, and change nothing"),
            JSON,
        ),
    ),
    "audit restore": Command(
        restore, "affidavit audit restore 2025-11",
        (
            argument("month", type=output.month, metavar="YYYY-MM", help="the archived month"),
            argument("--end", action="store_true", help="end the restore: remove the month from the log again"),
            JSON,
        ),
    ),
    "audit partitions": Command(
        partitions, "affidavit audit partitions",
        (argument("--from", dest="since", type=output.moment, metavar="DATE", help="also the missing months since then, after a wrong clock"),),
    ),
}  # fmt: skip
