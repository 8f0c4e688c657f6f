"""Health checks of an installation (`affidavit doctor`): one line per part, and what to do about a failure."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

from audit.checking.status import OVERDUE, spool_files
from audit.errors import KeyFileError
from audit.ledger.partitions import MONTHS_AHEAD_MIN
from audit.proof.keys import SigningKey, public_file, read_public_keys
from audit.vault import VaultState
from engine import wiring
from engine.cli.output import FOUND_SOMETHING, JSON, Arguments, Command, quiet
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

State = Literal["ok", "missing", "failed"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A line of the report."""

    part: str
    state: State
    words: str


async def doctor(settings: Settings, arguments: Arguments) -> int:
    """Check every part of the installation; print one line per part, and what to do about a failure."""
    async with wiring.open_database(settings, quiet) as database:
        findings = await examine(settings, database)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:<8} {finding.part:<12} {finding.words}")
    return 0 if all(finding.state == "ok" for finding in findings) else FOUND_SOMETHING


async def examine(settings: Settings, database: Database) -> list[CheckResult]:
    """Runs every check, in the order in which a question needs the parts. A failed check does not stop the others."""
    checks: dict[str, Callable[[Settings, Database], Awaitable[CheckResult]]] = {
        "data folder": _data_folder,
        "database": _database,
        "durability": _durability,
        "server log": _server_log,
        "migrations": _migrations,
        "roles": _roles,
        "partitions": _partitions,
        "drop guard": _drop_guard,
        "spool": _spool,
        "signing key": _signing_key,
        "sealing": _sealing,
        "embedder": _embedder,
        "index": _index,
        "books": _books,
        "calibration": _calibration,
        "keys": _keys,
        "generator": _generator,
    }
    findings = []
    for part, check in checks.items():
        try:
            findings.append(await check(settings, database))
        except Exception as fault:  # noqa: BLE001  becomes a line of the report
            findings.append(_fault(part, fault))
    findings += [finding async for finding in _vault_findings(settings)]
    return findings


async def _data_folder(settings: Settings, _: Database) -> CheckResult:
    free = shutil.disk_usage(settings.data_dir).free
    words = f"{settings.data_dir}, {free / 1024**3:.1f} GiB free"
    if free < FREE_BYTES_MIN:
        return CheckResult("data folder", "missing", f"{words}: free some space, because records need it")
    return CheckResult("data folder", "ok", words)


async def _database(settings: Settings, database: Database) -> CheckResult:
    _names, rows = await database.read("affidavit_engine", "SHOW server_version")
    kind = "given" if settings.database.url.get_secret_value() else "embedded"
    return CheckResult("database", "ok", f"PostgreSQL {rows[0][0].split()[0]}, {kind}")


async def _durability(_: Settings, database: Database) -> CheckResult:
    found = await wiring.weaknesses_of(database)
    if found:
        return CheckResult("durability", "failed", " ".join(found))
    return CheckResult("durability", "ok", "acknowledged records survive a power cut")


async def _server_log(_: Settings, database: Database) -> CheckResult:
    """PostgreSQL's error messages may quote a row. On a given server its operator decides what the log keeps."""
    names = ", ".join(f"'{name}'" for name in QUIET)
    statement = f"SELECT name, setting FROM pg_settings WHERE name IN ({names}) ORDER BY name"  # noqa: S608  our own names
    _names, rows = await database.read("affidavit_engine", statement)
    loud = [
        f"{name} = {setting} (should be {QUIET[name][0]})"
        for name, setting in rows
        if setting not in QUIET[name]
    ]
    if loud:
        return CheckResult(
            "server log", "failed",
            f"PostgreSQL's log may contain readers' questions: {', '.join(loud)}; correct them with ALTER DATABASE … SET",
        )  # fmt: skip
    return CheckResult("server log", "ok", "contains no row and no statement")


async def _migrations(_: Settings, database: Database) -> CheckResult:
    pending = database.pending()
    if pending:
        return CheckResult("migrations", "missing", f"{', '.join(pending)}: run `affidavit migrate`")
    return CheckResult("migrations", "ok", "all of sql/ is applied")


async def _roles(_: Settings, database: Database) -> CheckResult:
    _names, rows = await database.read(
        "affidavit_engine",
        "SELECT privilege FROM unnest(ARRAY['SELECT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS privilege"
        " WHERE has_table_privilege('audit_logs', privilege)",
    )
    if rows:
        verbs = ", ".join(row[0] for row in rows)
        return CheckResult("roles", "failed", f"affidavit_engine has {verbs} on audit_logs: REVOKE it")
    return CheckResult("roles", "ok", "the engine can insert records, but not read or change them")


async def _partitions(_: Settings, database: Database) -> CheckResult:
    ahead = await wiring.count_months_ahead(database, wiring.now().date())
    if ahead < MONTHS_AHEAD_MIN:
        return CheckResult(
            "partitions",
            "missing",
            f"{ahead} future months have a partition: run `affidavit audit partitions`",
        )
    return CheckResult("partitions", "ok", f"{ahead} future months have a partition")


async def _drop_guard(_: Settings, database: Database) -> CheckResult:
    _names, rows = await database.read(
        "affidavit_auditor",
        "SELECT evtname FROM pg_event_trigger WHERE evtname = 'audit_refuse_drop' AND evtevent = 'sql_drop' AND evtenabled IN ('O', 'A')",
    )
    if not rows:
        return CheckResult(
            "drop guard", "missing",
            "a month that is not archived can be dropped; run as a superuser: CREATE EVENT TRIGGER audit_refuse_drop"
            " ON sql_drop EXECUTE FUNCTION audit_guard.refuse_drop()",
        )  # fmt: skip
    return CheckResult(
        "drop guard", "ok", "no month of the log can be dropped before it is archived and verified"
    )


async def _spool(settings: Settings, _: Database) -> CheckResult:
    if not settings.audit.spool_dir:
        return CheckResult("spool", "ok", "none: while the database is unavailable, no question is answered")
    folder = settings.data_dir / settings.audit.spool_dir
    waiting = [file for file in spool_files(folder) if file.entries]
    if waiting:
        entries = sum(file.entries for file in waiting)
        return CheckResult(
            "spool",
            "missing",
            f"{entries} entries in {folder} wait for the database: run `affidavit audit status`",
        )
    return CheckResult("spool", "ok", f"{folder}, empty")


async def _embedder(settings: Settings, _: Database) -> CheckResult:
    embedder = wiring.embedder_of(settings)
    try:
        vector = await embedder.embed_query("Does the embedder work?")
    finally:
        await embedder.close()
    return CheckResult("embedder", "ok", f"{embedder.name}, {len(vector)} dimensions")


async def _index(settings: Settings, database: Database) -> CheckResult:
    async with wiring.open_house(settings, database) as house:
        books = [book for book in await house.library.books() if book.generation]
        held = [await house.index.count(book.generation) for book in books if book.generation]
    short = [book.book_id for book, points in zip(books, held, strict=True) if points != book.passages]
    if short:
        return CheckResult(
            "index", "failed", f"not all passages of {', '.join(short)} are indexed: ingest again"
        )
    return CheckResult(
        "index", "ok", f"{settings.providers.index}, {sum(held)} passages of {len(books)} books"
    )


async def _books(settings: Settings, database: Database) -> CheckResult:
    async with wiring.open_registry(database) as registry:
        books = await registry.books()
    if settings.books.default not in {book.book_id for book in books if book.generation}:
        return CheckResult(
            "books", "missing",
            f"{settings.books.default} is not published: run `affidavit ingest PATH --book {settings.books.default}`",
        )  # fmt: skip
    return CheckResult(
        "books", "ok", "; ".join(f"{book.book_id}, {book.passages} passages" for book in books)
    )


async def _calibration(_: Settings, database: Database) -> CheckResult:
    async with wiring.open_registry(database) as registry:
        books = [book for book in await registry.books() if book.generation]
    doubtful = [f"{book.book_id}: {warning}" for book in books for warning in book.warnings]
    if doubtful:
        return CheckResult("calibration", "failed", " ".join(doubtful))
    curves = [f"{book.book_id}, {book.calibration_kind} ({book.calibration})" for book in books]
    return CheckResult("calibration", "ok", "; ".join(curves) or "no book yet")


async def _keys(_: Settings, database: Database) -> CheckResult:
    async with wiring.open_keys(database) as keys:
        valid = [key for key in await keys.all() if key.revoked_at is None or key.revoked_at > wiring.now()]
    if not valid:
        return CheckResult(
            "keys",
            "missing",
            "no valid API key, so no HTTP client is admitted: run `affidavit keys create --client NAME`",
        )
    return CheckResult("keys", "ok", f"{len(valid)} valid")


async def _generator(settings: Settings, _: Database) -> CheckResult:
    embedder = wiring.embedder_of(settings)
    generator = wiring.generator_of(settings, embedder)
    await generator.close()
    await embedder.close()
    return CheckResult("generator", "ok", f"{settings.providers.generator}: {generator.description}")


async def _vault_findings(settings: Settings) -> AsyncIterator[CheckResult]:
    """The vault's own health checks, which the vendor's module defines."""
    checks: dict[str, Callable[[], VaultState]] = {}
    try:
        checks = wiring.vault_of(settings).checks()
    except Exception as fault:  # noqa: BLE001  as in `examine`
        yield _fault("vault", fault)
    for part, check in checks.items():
        try:
            yield CheckResult(part, *await asyncio.to_thread(check))
        except Exception as fault:  # noqa: BLE001
            yield _fault(part, fault)


def _fault(part: str, fault: Exception) -> CheckResult:
    return CheckResult(part, "failed", f"{type(fault).__name__}: {str(fault).splitlines()[0]}")


async def _signing_key(settings: Settings, _: Database) -> CheckResult:
    path = settings.data_dir / settings.audit.signing_key_file
    if not path.exists():
        if not settings.database.url.get_secret_value():
            return CheckResult("signing key", "ok", "created at first use")
        return CheckResult(
            "signing key", "missing", f"{path} does not exist: run `affidavit audit key --new`"
        )
    try:
        key, public = SigningKey.load(path), read_public_keys(public_file(path))
    except KeyFileError as wrong:
        return CheckResult("signing key", "failed", str(wrong))
    if key.public not in public:
        return CheckResult(
            "signing key", "failed",
            f"{public_file(path)} lacks {key.public}, so its signatures cannot be verified: add it as the last line",
        )  # fmt: skip
    return CheckResult(
        "signing key", "ok", f"{key.key_id}, {len(public)} public keys in {public_file(path).name}"
    )


async def _sealing(settings: Settings, database: Database) -> CheckResult:
    status = await wiring.status_of(settings, database)
    now = wiring.now()
    if status.unsealed.oldest and now - status.unsealed.oldest > OVERDUE:
        return CheckResult(
            "sealing", "failed",
            f"{status.unsealed.count} records are not sealed, the oldest of {status.unsealed.oldest:%Y-%m-%d %H:%M:%S}"
            " UTC: check that `affidavit audit seal` or the engine is running",
        )  # fmt: skip
    late = [month["month"] for month in status.evidence if _is_late(month["waiting_since"], now)]
    if late:
        return CheckResult(
            "sealing", "failed", f"{', '.join(late)} not anchored: check that the vault can be written"
        )
    if not status.evidence:
        return CheckResult("sealing", "ok", "nothing to seal yet")
    last = status.evidence[-1]
    state = f"{last['month']}: {last['tree_size']} sealed, {last['anchored_size'] or 0} anchored"
    return CheckResult("sealing", "ok", f"{state}, last at {last['sealed_at']:%Y-%m-%d %H:%M:%S} UTC")


def _is_late(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since > OVERDUE


DOCTOR_COMMANDS: dict[str, Command] = {"doctor": Command(doctor, "affidavit doctor", (JSON,))}
