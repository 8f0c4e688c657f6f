"""Health checks of an installation (`affidavit doctor`): one line per part, and what to do about a failure."""

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from audit.checking.stamp_check import LATE
from audit.checking.status import OVERDUE, READ_OVERDUE, forgeries, spool_files
from audit.errors import KeyFileError, NoSigningKeyError
from audit.heads.inspection import UNWATCHED
from audit.ledger.partitions import MONTHS_AHEAD_MIN
from audit.proof.keys import PublicKey, SigningKey, public_file, read_public_keys
from audit.vault import VaultState
from engine import signing, wiring
from engine.admission.single_sign_on import RETURN
from engine.cli.output import FOUND_SOMETHING, JSON, Arguments, Command
from engine.errors import ConfigurationError, IdentityProviderError, IndexUnavailableError
from engine.settings import Settings
from engine.storage.database import Database

FREE_BYTES_MIN = 1024**3  # a month of a busy site, and room for its indexes

# Settings that keep rows out of PostgreSQL's own log: the allowed values, the recommended one first. The first line of an
# error may quote a value even so.
QUIET = {
    "log_error_verbosity": ("terse",),
    "log_min_messages": ("log", "fatal", "panic"),
    "log_min_error_statement": ("panic", "fatal", "log"),
    "log_statement": ("none", "ddl"),
    "log_min_duration_statement": ("-1",),
    "log_min_duration_sample": ("-1",),
    "log_parameter_max_length": ("0",),
    "log_parameter_max_length_on_error": ("0",),
    "auto_explain.log_min_duration": ("-1",),
}

Check = Callable[[Settings, Database], Awaitable[VaultState]]  # the same result as the checks of a vault


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A line of the report."""

    part: str
    state: str
    words: str


async def doctor(settings: Settings, arguments: Arguments) -> int:
    """Check every part of the installation; print one line per part, and what to do about a failure."""
    async with wiring.open_database(settings) as database:
        findings = await examine(settings, database)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:<8} {finding.part:<12} {finding.words}")
    return 0 if all(finding.state == "ok" for finding in findings) else FOUND_SOMETHING


async def examine(settings: Settings, database: Database) -> list[CheckResult]:
    """Runs every check, in the order in which a question needs the parts. A failed check does not stop the others."""
    checks: dict[str, Check] = {
        "data folder": _data_folder,
        "clock": _clock,
        "database": _database,
        "durability": _durability,
        "replication": _replication,
        "server log": _server_log,
        "migrations": _migrations,
        "roles": _roles,
        "readers": _readers,
        "schema": _schema,
        "partitions": _partitions,
        "drop guard": _drop_guard,
        "spool": _spool,
        "signing key": _signing_key,
        "identity": _identity,
        "sealing": _sealing,
        "anchors": _anchors,
        "log of heads": _log_of_heads,
        "witnesses": _witnesses,
        "time stamps": _time_stamps,
        "embedder": _embedder,
        "index": _index,
        "books": _books,
        "passages": _passages,
        "calibration": _calibration,
        "keys": _keys,
        "sign-on": _single_sign_on,
        "holds": _holds,
        "reads": _reads,
        "generator": _generator,
        "traces": _traces,
    }
    findings = [await _result(part, check(settings, database)) for part, check in checks.items()]
    try:
        of_vault = wiring.vault_of(settings).checks()
    except Exception as fault:  # noqa: BLE001  becomes a line of the report
        return [*findings, _fault("vault", fault)]
    return findings + [await _result(part, asyncio.to_thread(check)) for part, check in of_vault.items()]


async def _result(part: str, check: Awaitable[VaultState]) -> CheckResult:
    try:
        return CheckResult(part, *await check)
    except Exception as fault:  # noqa: BLE001  becomes a line of the report
        return _fault(part, fault)


def _fault(part: str, fault: Exception) -> CheckResult:
    reason = f" The index says: {fault.reason}" if isinstance(fault, IndexUnavailableError) else ""
    return CheckResult(part, "failed", f"{type(fault).__name__}: {str(fault).partition(chr(10))[0]}{reason}")


async def _data_folder(settings: Settings, _: Database) -> VaultState:
    free = shutil.disk_usage(settings.data_dir).free
    words = f"{settings.data_dir}, {free / 1024**3:.1f} GiB free"
    if free < FREE_BYTES_MIN:
        return "missing", f"{words}: free some space, because records need it"
    return "ok", words


async def _clock(_: Settings, database: Database) -> VaultState:
    today = wiring.now()
    await wiring.check_clock(database, today.date())
    return "ok", f"{today:%Y-%m-%d %H:%M} UTC, not behind the log"


async def _database(settings: Settings, database: Database) -> VaultState:
    _names, ((version, read_only, is_standby, name),) = await database.read(
        "affidavit_engine",
        "SELECT current_setting('server_version'), boot.reset_val, pg_is_in_recovery(), quote_ident(current_database())"
        " FROM pg_settings boot WHERE name = 'default_transaction_read_only'",
    )
    kind = "given" if settings.database.url.get_secret_value() else "embedded"
    words = f"PostgreSQL {version.split()[0]}, {kind}"
    if is_standby:
        return (
            "failed",
            f"{words}: it is a standby, which takes no records: name the primary in DATABASE_URL, or all servers and target_session_attrs=read-write",
        )
    if read_only == "on":
        change = f"BEGIN READ WRITE; ALTER DATABASE {name} SET default_transaction_read_only = off; COMMIT;"
        reason = "it takes no records, because default_transaction_read_only is on"
        return "failed", f"{words}: {reason}; run as its owner: {change}"
    return "ok", words


async def _durability(_: Settings, database: Database) -> VaultState:
    found = await wiring.weaknesses_of(database)
    if found:
        return "failed", " ".join(found)
    return "ok", "acknowledged records survive a power cut"


async def _replication(_: Settings, database: Database) -> VaultState:
    lost = await wiring.failover_losses_of(database)
    return ("failed", lost) if lost else ("ok", "no standby that could take over without the last records")


async def _server_log(_: Settings, database: Database) -> VaultState:
    """PostgreSQL's error messages may quote a row. On a given server its operator decides what the log keeps."""
    names = ", ".join(f"'{name}'" for name in QUIET)
    statement = f"SELECT name, setting, quote_ident(current_database()) FROM pg_settings WHERE name IN ({names}) ORDER BY name"  # noqa: S608  our own names
    _names, rows = await database.read("affidavit_engine", statement)
    loud = [(name, value, of) for name, value, of in rows if value not in QUIET[name]]
    if loud:
        found = ", ".join(f"{name} = {value}" for name, value, _ in loud)
        mend = "; ".join(f"ALTER DATABASE {of} SET {name} = '{QUIET[name][0]}'" for name, _, of in loud)
        words = f"PostgreSQL's log may contain readers' questions: {found}"
        return "failed", f"{words}; run as a superuser: {mend}"
    return "ok", "contains no row and no statement"


async def _migrations(_: Settings, database: Database) -> VaultState:
    pending = database.pending()
    if pending:
        return "missing", f"{', '.join(pending)}: run `affidavit migrate`"
    return "ok", "all of sql/ is applied"


async def _roles(_: Settings, database: Database) -> VaultState:
    _names, rows = await database.read(
        "affidavit_engine",
        "SELECT privilege FROM unnest(ARRAY['SELECT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS privilege"
        " WHERE has_table_privilege('audit_logs', privilege)",
    )
    if rows:
        verbs = ", ".join(row[0] for row in rows)
        return "failed", f"affidavit_engine has {verbs} on audit_logs: REVOKE it"
    return "ok", "the engine can insert records, but not read or change them"


async def _readers(_: Settings, database: Database) -> VaultState:
    """Whoever migrates may not be allowed to take PostgreSQL's own functions from everybody."""
    _names, rows = await database.read("affidavit_auditor", "SELECT * FROM audit_disk_writers()")
    if rows:
        writers = ", ".join(row[0] for row in rows)
        words = (
            "whoever can log in to the database, such as an auditor, can fill its disk; run as a superuser"
        )
        return "missing", f"{words}: REVOKE EXECUTE ON FUNCTION {writers} FROM PUBLIC"
    return "ok", "no function of PostgreSQL lets an auditor write to the disk"


async def _schema(_: Settings, database: Database) -> VaultState:
    found = await asyncio.to_thread(wiring.differences_of, database)
    if found:
        return "failed", " ".join(str(difference) for difference in found)
    return "ok", "views, tables, functions and months are as they were shipped"


async def _partitions(_: Settings, database: Database) -> VaultState:
    ahead = await wiring.count_months_ahead(database, wiring.now().date())
    words = f"{ahead} future months have a partition"
    if ahead < MONTHS_AHEAD_MIN:
        return "missing", f"{words}: run `affidavit audit partitions`"
    return "ok", words


async def _drop_guard(_: Settings, database: Database) -> VaultState:
    _names, rows = await database.read(
        "affidavit_auditor",
        "SELECT evtname FROM pg_event_trigger WHERE evtname = 'audit_refuse_drop' AND evtevent = 'sql_drop' AND evtenabled IN ('O', 'A')",
    )
    if not rows:
        return "missing", (
            "a month that is not archived can be dropped; run as a superuser: CREATE EVENT TRIGGER audit_refuse_drop"
            " ON sql_drop EXECUTE FUNCTION audit_guard.refuse_drop()"
        )
    return "ok", "no month of the log can be dropped before it is archived and verified"


async def _spool(settings: Settings, _: Database) -> VaultState:
    if not settings.audit.spool_dir:
        return "ok", "none: while the database is unavailable, no question is answered"
    folder = settings.data_dir / settings.audit.spool_dir
    entries = sum(file.entries for file in spool_files(folder))
    if entries:
        return "missing", f"{entries} entries in {folder} wait for the database: run `affidavit audit status`"
    return "ok", f"{folder}, empty"


async def _embedder(settings: Settings, _: Database) -> VaultState:
    embedder = wiring.embedder_of(settings)
    try:
        vector = await embedder.embed_query("Does the embedder work?")
    finally:
        await embedder.close()
    return "ok", f"{embedder.name}, {len(vector)} dimensions"


async def _index(settings: Settings, database: Database) -> VaultState:
    async with wiring.open_repair(settings, database) as repair:
        running = await repair.index.describe()
        books = await repair.registry.live_indexes()
        found = {book.book_id: await repair.examine(book) for book in books}
    damaged = [f"the index of {book_id} is damaged: {damage}" for book_id, damage in found.items() if damage]
    if damaged:
        return "failed", f"{running}: {'; '.join(damaged)}: run `affidavit index rebuild`"
    return (
        "ok",
        f"{running}, {sum(book.passages for book in books)} passages of {len(books)} books, read as a whole",
    )


async def _books(settings: Settings, database: Database) -> VaultState:
    async with wiring.open_registry(database) as registry:
        books = await registry.books()
    default = settings.books.default
    if default not in {book.book_id for book in books if book.generation}:
        return "missing", f"{default} is not published: run `affidavit ingest PATH --book {default}`"
    return "ok", "; ".join(f"{book.book_id}, {book.passages} passages" for book in books)


async def _passages(settings: Settings, database: Database) -> VaultState:
    async with wiring.open_repair(settings, database) as repair:
        books = await repair.registry.live_indexes()
        found = {book.book_id: await repair.altered(book) for book in books}
    damaged = [f"{book_id}: {words}" for book_id, words in found.items() if words]
    return ("failed", "; ".join(damaged)) if damaged else ("ok", "as they were ingested")


async def _calibration(_: Settings, database: Database) -> VaultState:
    async with wiring.open_registry(database) as registry:
        books = [book for book in await registry.books() if book.generation]
    doubtful = [f"{book.book_id}: {warning}" for book in books for warning in book.warnings]
    if doubtful:
        return "failed", " ".join(doubtful)
    curves = [f"{book.book_id}, {book.calibration_kind} ({book.calibration})" for book in books]
    return "ok", "; ".join(curves) or "no book yet"


async def _keys(_: Settings, database: Database) -> VaultState:
    async with wiring.open_keys(database) as keys:
        valid = [key for key in await keys.all() if key.revoked_at is None or key.revoked_at > wiring.now()]
    if doubts := await wiring.key_doubts_of(database):
        words = f"not as the log records it: {'; '.join(doubts)}"
        return (
            "failed",
            f"{words}. Revoke such keys with `affidavit keys revoke`, and find out who else can write to the database",
        )
    if not valid:
        words = "no valid API key, so no HTTP client is admitted: run `affidavit keys create --client NAME`"
        return "missing", words
    return "ok", f"{len(valid)} valid"


async def _single_sign_on(settings: Settings, _: Database) -> VaultState:
    """Signs nobody in: what the provider must know of this console shows at the first sign-in only."""
    if not settings.oidc.issuer:
        return "ok", "off: API keys alone sign in to the console"
    provider = wiring.identity_provider_of(settings)
    try:
        words = await provider.examine()
    except IdentityProviderError as failure:
        return "failed", f"{failure.upstream}: check oidc.issuer, and the way there from this machine"
    finally:
        await provider.close()
    return "ok", f"{words}; it must allow the redirect URI {settings.oidc.address}{RETURN}"


async def _holds(_: Settings, database: Database) -> VaultState:
    if doubts := await wiring.hold_doubts_of(database):
        words = f"not as the log records it: {'; '.join(doubts)}"
        return "failed", f"{words}. Find out who else can write to the database"
    async with wiring.open_listed_holds(database) as holds:
        in_force = [hold for hold in await holds.all() if hold.state == "active"]
        waiting = await holds.waiting()
    if due := [request for request in waiting if not request.holds]:
        words = f"{len(due)} erasures are not held any more, and were not carried out yet"
        return "missing", f"{words}: a running engine does it within a minute"
    return "ok", f"{len(in_force)} in force, {len(waiting)} erasures wait"


async def _reads(_: Settings, database: Database) -> VaultState:
    """Of auditors' logins: an engine takes a minute, and a quarter of an hour for what was interrupted."""
    waiting = await wiring.reads_waiting_of(database)
    if waiting.oldest and wiring.now() - waiting.oldest > READ_OVERDUE:
        return (
            "missing",
            f"{waiting.count} reads of auditors wait to be recorded: start an engine, which records them",
        )
    return "ok", f"{waiting.count} wait to be recorded"


async def _generator(settings: Settings, _: Database) -> VaultState:
    embedder = wiring.embedder_of(settings)
    try:
        generator = wiring.generator_of(settings, embedder, {})
        await generator.close()
    finally:
        await embedder.close()
    return "ok", f"{settings.providers.generator}: {generator.description}"


async def _traces(settings: Settings, _: Database) -> VaultState:
    exporter = wiring.trace_exporter_of(settings)
    if exporter is None:
        return "ok", "off"
    try:
        failure = await exporter.failure()
    finally:
        await exporter.close()
    if failure:
        return "failed", f"the collector takes none ({failure}): check traces.endpoint and traces.headers"
    return "ok", "the collector takes them"


async def _signing_key(settings: Settings, database: Database) -> VaultState:
    if settings.signing.provider != "file":
        return await asyncio.to_thread(_key_elsewhere, settings, database)
    path = settings.data_dir / settings.audit.signing_key_file
    signers = wiring.signers_of(database)
    if not path.exists():
        return _missing_key(settings, path, [signer.key_id for signer in signers])
    try:
        key, public = SigningKey.load(path), read_public_keys(public_file(path))
    except KeyFileError as wrong:
        return "failed", str(wrong)
    if key.public not in public:
        words = f"{public_file(path)} lacks {key.public}, so its signatures cannot be verified"
        return "failed", f"{words}: add it as the last line"
    listed = {known.key_id for known in public}
    if lost := [signer.key_id for signer in signers if signer.is_newest and signer.key_id not in listed]:
        words = f"{public_file(path)} lacks {lost[0]}, which signed this log's newest head, so nothing more is sealed"
        return "failed", f"{words}: restore its line from a backup, or from an auditor's copy"
    return "ok", f"{key.key_id}, {len(public)} public keys in {public_file(path).name}"


def _key_elsewhere(settings: Settings, database: Database) -> VaultState:
    """It signs once, and says how long the keys last that it has delegated."""
    ends = [
        key.delegation.until for key in map(PublicKey.of, wiring.delegations_of(database)) if key.delegation
    ]
    last = f"; its newest delegation lasts until {max(ends):%Y-%m-%d %H:%M:%S} UTC" if ends else ""
    began_s = time.monotonic()
    try:
        key = wiring.head_key(database)
        key.sign(b"affidavit doctor\n")
    except (ConfigurationError, NoSigningKeyError) as wrong:
        return "failed", f"{wrong}{last}, and then nothing is answered" if last else str(wrong)
    took_ms = (time.monotonic() - began_s) * 1000
    return "ok", f"{settings.signing.provider}: {key.key_id} signed in {took_ms:.0f} ms{last}"


async def _identity(_: Settings, database: Database) -> VaultState:
    doubts = await asyncio.to_thread(wiring.identity_doubts_of, database)
    if doubts:
        return "failed", f"{'; '.join(doubts)}: somebody else can write to the database"
    return "ok", "the log's name and keys are those of its signed heads"


def _missing_key(settings: Settings, path: Path, signers: list[str]) -> VaultState:
    if signers:
        words = f"{path} is missing, but {', '.join(signers)} signed this log"
        return (
            "failed",
            f"{words}: restore it from a backup; if it is lost for good, run `affidavit audit key --new`",
        )
    if not settings.database.url.get_secret_value():
        return "ok", "created at first use"
    return "missing", f"{path} does not exist: run `affidavit audit key --new`"


async def _sealing(settings: Settings, database: Database) -> VaultState:
    status = await wiring.status_of(settings, database)
    if forged := forgeries(status):
        return "failed", "; ".join(forged)
    oldest, overdue = status.unsealed.oldest, wiring.now() - OVERDUE
    if oldest and oldest < overdue:
        return "failed", (
            f"{status.unsealed.count} records are not sealed, the oldest of {oldest:%Y-%m-%d %H:%M:%S}"
            " UTC: check that `affidavit audit seal` or the engine is running"
        )
    waiting = [month for month in status.evidence if month["waiting_since"]]
    late = [month["month"] for month in waiting if month["waiting_since"] < overdue]
    if late:
        return "failed", f"{', '.join(late)} not anchored: check that the vault can be written"
    if not status.evidence:
        return "ok", "nothing to seal yet"
    last = status.evidence[-1]
    state = f"{last['month']}: {last['tree_size']} sealed, {last['anchored_size'] or 0} anchored"
    return "ok", f"{state}, last at {last['sealed_at']:%Y-%m-%d %H:%M:%S} UTC"


async def _anchors(settings: Settings, database: Database) -> VaultState:
    wrong = await wiring.foreign_vault_of(settings, database)
    return ("failed", wrong) if wrong else ("ok", "the vault holds the log's last anchors")


async def _log_of_heads(settings: Settings, database: Database) -> VaultState:
    heads = (await wiring.status_of(settings, database)).heads
    if not heads["heads"]:
        return "ok", "begins with the next anchor"
    words = f"{heads['heads']} heads, {heads['published']} of them published"
    since = heads["waiting_since"]
    if since and since < wiring.now() - OVERDUE:
        return (
            "failed",
            f"{words}; the others wait since {since:%Y-%m-%d %H:%M:%S} UTC for a quorum of witnesses or for the vault",
        )
    return "ok", words + (", cosigned by a quorum of witnesses" if heads["has_quorum"] else "")


async def _witnesses(settings: Settings, database: Database) -> VaultState:
    watch = await wiring.watch_of(settings, database)
    if watch.policy is None or not watch.policy.witnesses:
        return "ok", f"0 {UNWATCHED}; docs/how-to/witness.md"
    heads = (await wiring.status_of(settings, database)).heads["heads"]
    public = read_public_keys(signing.public_keys_file(settings))
    if ahead := watch.ahead_of(heads, public):
        return (
            "failed",
            f"{'; '.join(ahead)}: database and vault were set back to an older copy (rollback); run `affidavit audit verify`",
        )
    silent = [f"{seen.name}: {seen.trouble}" for seen in watch.seen if seen.trouble]
    if silent:
        return "failed" if watch.is_required else "missing", "; ".join(silent)
    return "ok", f"{len(watch.seen)} answer, and none has seen more of this log"


async def _time_stamps(settings: Settings, _: Database) -> VaultState:
    mode = settings.time_stamps.mode
    if mode == "off":
        return "ok", "off"
    last, newest_head = await asyncio.to_thread(wiring.stamped_of, settings)
    state: Literal["ok", "failed"] = "failed" if mode == "required" else "ok"
    if last is None:
        why = (
            "nothing was stamped yet"
            if newest_head
            else "the log of heads is empty, so nothing was stamped yet"
        )
        return state, f"{mode}: {why}"
    words = f"{mode}: the head of {last.size} entries was stamped on {last.time:%Y-%m-%d %H:%M:%S} UTC"
    if wiring.now() - last.time > LATE:
        return state, f"{words}, and nothing since: check that {settings.time_stamps.url} answers"
    return "ok", words


DOCTOR_COMMANDS: dict[str, Command] = {"doctor": Command(doctor, "affidavit doctor", (JSON,))}
