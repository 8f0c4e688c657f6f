"""One line for each part: what is there, what is missing, what to do."""

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

# What keeps rows out of PostgreSQL's own log, the value we set first. An error's very first line may quote a value.
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
class Finding:
    """A line of the report."""

    part: str
    state: State
    words: str


async def doctor(settings: Settings, arguments: Arguments) -> int:
    """What is there, what is missing, what to do."""
    async with wiring.open_database(settings, quiet) as database:
        findings = await examine(settings, database)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:<8} {finding.part:<12} {finding.words}")
    return 0 if all(finding.state == "ok" for finding in findings) else FOUND_SOMETHING


async def examine(settings: Settings, database: Database) -> list[Finding]:
    """Every check, in the order in which a question needs the parts."""
    checks: dict[str, Callable[[Settings, Database], Awaitable[Finding]]] = {
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
        except Exception as fault:  # noqa: BLE001  the report must name what is broken and go on
            findings.append(_fault(part, fault))
    findings += [finding async for finding in _vault_findings(settings)]
    return findings


async def _data_folder(settings: Settings, _: Database) -> Finding:
    free = shutil.disk_usage(settings.data_dir).free
    words = f"{settings.data_dir}, {free / 1024**3:.1f} GiB free"
    if free < FREE_BYTES_MIN:
        return Finding("data folder", "missing", f"{words}; make room, records need it")
    return Finding("data folder", "ok", words)


async def _database(settings: Settings, database: Database) -> Finding:
    _names, rows = await database.read("affidavit_engine", "SHOW server_version")
    kind = "given" if settings.database.url.get_secret_value() else "embedded"
    return Finding("database", "ok", f"PostgreSQL {rows[0][0].split()[0]}, {kind}")


async def _durability(_: Settings, database: Database) -> Finding:
    found = await wiring.weaknesses_of(database)
    if found:
        return Finding("durability", "failed", " ".join(found))
    return Finding("durability", "ok", "what is acknowledged survives a power cut")


async def _server_log(_: Settings, database: Database) -> Finding:
    """An error repeats the row that it is about; a server is told elsewhere what to keep of that."""
    names = ", ".join(f"'{name}'" for name in QUIET)
    statement = f"SELECT name, setting FROM pg_settings WHERE name IN ({names}) ORDER BY name"  # noqa: S608  our own names
    _names, rows = await database.read("affidavit_engine", statement)
    loud = [
        f"{name} = {setting} (should be {QUIET[name][0]})"
        for name, setting in rows
        if setting not in QUIET[name]
    ]
    if loud:
        return Finding(
            "server log", "failed",
            f"PostgreSQL's log may repeat what readers asked: {', '.join(loud)}; ALTER DATABASE … SET them",
        )  # fmt: skip
    return Finding("server log", "ok", "repeats no row and no statement")


async def _migrations(_: Settings, database: Database) -> Finding:
    pending = database.pending()
    if pending:
        return Finding("migrations", "missing", f"{', '.join(pending)}: run `affidavit migrate`")
    return Finding("migrations", "ok", "all of sql/ is applied")


async def _roles(_: Settings, database: Database) -> Finding:
    _names, rows = await database.read(
        "affidavit_engine",
        "SELECT privilege FROM unnest(ARRAY['SELECT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS privilege"
        " WHERE has_table_privilege('audit_logs', privilege)",
    )
    if rows:
        verbs = ", ".join(row[0] for row in rows)
        return Finding("roles", "failed", f"affidavit_engine may {verbs} audit_logs; REVOKE it")
    return Finding("roles", "ok", "the engine can insert records, and neither read nor change them")


async def _partitions(_: Settings, database: Database) -> Finding:
    ahead = await wiring.count_months_ahead(database, wiring.now().date())
    if ahead < MONTHS_AHEAD_MIN:
        return Finding("partitions", "missing", f"{ahead} months ahead: run `affidavit audit partitions`")
    return Finding("partitions", "ok", f"{ahead} months ahead")


async def _drop_guard(_: Settings, database: Database) -> Finding:
    _names, rows = await database.read(
        "affidavit_auditor",
        "SELECT evtname FROM pg_event_trigger WHERE evtname = 'audit_refuse_drop' AND evtevent = 'sql_drop' AND evtenabled IN ('O', 'A')",
    )
    if not rows:
        return Finding(
            "drop guard", "missing",
            "a month that is in no archive can be dropped; as a superuser: CREATE EVENT TRIGGER audit_refuse_drop"
            " ON sql_drop EXECUTE FUNCTION audit_guard.refuse_drop()",
        )  # fmt: skip
    return Finding(
        "drop guard", "ok", "no month of the log can be dropped before it is archived and verified"
    )


async def _spool(settings: Settings, _: Database) -> Finding:
    if not settings.audit.spool_dir:
        return Finding("spool", "ok", "none: while the database is away, nothing is answered")
    folder = settings.data_dir / settings.audit.spool_dir
    waiting = [file for file in spool_files(folder) if file.entries]
    if waiting:
        entries = sum(file.entries for file in waiting)
        return Finding("spool", "missing", f"{entries} entries in {folder}: see `affidavit audit status`")
    return Finding("spool", "ok", f"{folder}, empty")


async def _embedder(settings: Settings, _: Database) -> Finding:
    embedder = wiring.embedder_of(settings)
    try:
        vector = await embedder.embed_query("Does the embedder work?")
    finally:
        await embedder.close()
    return Finding("embedder", "ok", f"{embedder.name}, {len(vector)} dimensions")


async def _index(settings: Settings, database: Database) -> Finding:
    async with wiring.open_house(settings, database) as house:
        books = [book for book in await house.library.books() if book.generation]
        held = [await house.index.count(book.generation) for book in books if book.generation]
    short = [book.book_id for book, points in zip(books, held, strict=True) if points != book.passages]
    if short:
        return Finding("index", "failed", f"not all passages of {', '.join(short)} are indexed: ingest again")
    return Finding("index", "ok", f"{settings.providers.index}, {sum(held)} passages of {len(books)} books")


async def _books(settings: Settings, database: Database) -> Finding:
    async with wiring.open_registry(database) as registry:
        books = await registry.books()
    if settings.books.default not in {book.book_id for book in books if book.generation}:
        return Finding(
            "books", "missing",
            f"{settings.books.default} is not published: run `affidavit ingest PATH --book {settings.books.default}`",
        )  # fmt: skip
    return Finding("books", "ok", "; ".join(f"{book.book_id}, {book.passages} passages" for book in books))


async def _calibration(_: Settings, database: Database) -> Finding:
    async with wiring.open_registry(database) as registry:
        books = [book for book in await registry.books() if book.generation]
    doubtful = [f"{book.book_id}: {warning}" for book in books for warning in book.warnings]
    if doubtful:
        return Finding("calibration", "failed", " ".join(doubtful))
    said = [f"{book.book_id}, {book.calibration_kind} ({book.calibration})" for book in books]
    return Finding("calibration", "ok", "; ".join(said) or "no book yet")


async def _keys(_: Settings, database: Database) -> Finding:
    async with wiring.open_keys(database) as keys:
        valid = [key for key in await keys.all() if key.revoked_at is None or key.revoked_at > wiring.now()]
    if not valid:
        return Finding(
            "keys", "missing", "nobody can ask over HTTP: run `affidavit keys create --client NAME`"
        )
    return Finding("keys", "ok", f"{len(valid)} valid")


async def _generator(settings: Settings, _: Database) -> Finding:
    embedder = wiring.embedder_of(settings)
    generator = wiring.generator_of(settings, embedder)
    await generator.close()
    await embedder.close()
    return Finding("generator", "ok", f"{settings.providers.generator}: {generator.name}")


async def _vault_findings(settings: Settings) -> AsyncIterator[Finding]:
    """The vault's own health checks: only the vendor's file knows what can be wrong with it."""
    checks: dict[str, Callable[[], VaultState]] = {}
    try:
        checks = wiring.vault_of(settings).checks()
    except Exception as fault:  # noqa: BLE001  as in `examine`
        yield _fault("vault", fault)
    for part, check in checks.items():
        try:
            yield Finding(part, *await asyncio.to_thread(check))
        except Exception as fault:  # noqa: BLE001
            yield _fault(part, fault)


def _fault(part: str, fault: Exception) -> Finding:
    return Finding(part, "failed", f"{type(fault).__name__}: {str(fault).splitlines()[0]}")


async def _signing_key(settings: Settings, _: Database) -> Finding:
    path = settings.data_dir / settings.audit.signing_key_file
    if not path.exists():
        if not settings.database.url.get_secret_value():
            return Finding("signing key", "ok", "made at first use")
        return Finding("signing key", "missing", f"{path} is not there: run `affidavit audit key --new`")
    try:
        key, public = SigningKey.load(path), read_public_keys(public_file(path))
    except KeyFileError as wrong:
        return Finding("signing key", "failed", str(wrong))
    if key.public not in public:
        return Finding(
            "signing key", "failed",
            f"{public_file(path)} lacks {key.public}: nobody could check what it signs; add it as the last line",
        )  # fmt: skip
    return Finding(
        "signing key", "ok", f"{key.key_id}, {len(public)} public keys in {public_file(path).name}"
    )


async def _sealing(settings: Settings, database: Database) -> Finding:
    status = await wiring.status_of(settings, database)
    now = wiring.now()
    if status.unsealed.oldest and now - status.unsealed.oldest > OVERDUE:
        return Finding(
            "sealing", "failed",
            f"{status.unsealed.count} records are not sealed, the oldest of {status.unsealed.oldest:%Y-%m-%d %H:%M:%S}"
            " UTC; is `affidavit audit seal` running?",
        )  # fmt: skip
    late = [month["month"] for month in status.evidence if _is_late(month["waiting_since"], now)]
    if late:
        return Finding("sealing", "failed", f"{', '.join(late)} not anchored; can the vault be written?")
    if not status.evidence:
        return Finding("sealing", "ok", "nothing to seal yet")
    last = status.evidence[-1]
    words = f"{last['month']}: {last['tree_size']} sealed, {last['anchored_size'] or 0} anchored"
    return Finding("sealing", "ok", f"{words}, last at {last['sealed_at']:%Y-%m-%d %H:%M:%S} UTC")


def _is_late(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since > OVERDUE


DOCTOR_COMMANDS: dict[str, Command] = {"doctor": Command(doctor, "affidavit doctor", (JSON,))}
