"""The drill of a restore: a backup in a scratch server, verified against the vault. Neither the live database nor the vault is written."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from audit.as_of_backup import BackedUpMonth, Newer, VaultAsOf, find_newer, log_names
from audit.checking.evidence import EVER, StoredEvidence
from audit.checking.inspection import inspect
from audit.checking.range_judge import RangeJudges
from audit.definitions.comparison import check_with
from audit.errors import NoteError
from audit.progress import Progress
from audit.proof.checkpoint import Checkpoint, open_note
from audit.proof.keys import PublicKey
from audit.proof.verdict import PROVEN, Report, Verdict
from audit.vault import Vault
from engine import cores
from engine.errors import BackupError
from engine.providers.postgres import DATABASE, SUPERUSER
from engine.providers.scratch_postgres import RESTORED, ScratchPostgres, major_version, scratch_server
from engine.settings import HOUSE, Settings
from engine.storage.backup import Backup, base_backup_at, dump_at
from engine.storage.database import AUDITOR, as_role, reading
from engine.storage.migrate import migrate
from engine.wiring.audit_log import shipped_definitions
from engine.wiring.providers import now, vault_of

_IS_OURS = (
    "SELECT to_regclass('public.audit_logs') IS NOT NULL AND to_regclass('public.audit_origin') IS NOT NULL"
)
_HEADS = (
    "SELECT DISTINCT ON (month) month, tree_size, note FROM audit_checkpoints ORDER BY month, tree_size DESC"
)
_BREAKS = "SELECT month, count(*) FROM audit_breaks GROUP BY month"
_ROWS = "SELECT count(*), min(timestamp), max(timestamp) FROM audit_logs"
_UNSEALED = "SELECT leaf_hash FROM audit_logs r WHERE NOT EXISTS (SELECT FROM audit_leaves l WHERE l.log_id = r.log_id)"
# The last sign of life of what was backed up. What was waiting for the sealer then is not late.
_TAKEN_AT = "SELECT greatest((SELECT max(timestamp) FROM audit_logs), (SELECT max(created_at) FROM audit_checkpoints))"


@dataclass(frozen=True, slots=True)
class RestoreDrill:
    """What came of it. `newer` is what a restore of this backup would lose, as far as it was anchored."""

    backup: str
    size: int
    rows: int
    oldest: datetime | None
    newest: datetime | None
    head: Checkpoint | None  # the newest in the backup
    newer: Newer
    migrated: list[str]
    report: Report
    restore_s: float
    verify_s: float

    @property
    def is_good(self) -> bool:
        """The rows of an archived month are in the vault and not in the backup."""
        return self.report.verdict in PROVEN | {Verdict.ARCHIVED}

    def as_json(self) -> dict[str, object]:
        return self.report.as_json() | {
            "is_good": self.is_good, "backup": self.backup, "bytes": self.size, "rows": self.rows, "oldest": self.oldest,
            "newest": self.newest, "head": _head_as_json(self.head), "vault_head": _head_as_json(self.newer.newest),
            "newer_rows": self.newer.rows, "migrated": self.migrated, "restore_s": round(self.restore_s, 1),
            "verify_s": round(self.verify_s, 1),
        }  # fmt: skip

    def __str__(self) -> str:
        sealed = f"sealed up to {_time(self.head.issued_at)}" if self.head else "nothing is sealed"
        newest = self.newer.newest
        lines = [
            str(self.report),
            f"Restored a {self.backup} of {self.size} bytes in {self.restore_s:.1f} s, verified in {self.verify_s:.1f} s.",
            *([f"It was of an older version, so these were applied: {', '.join(self.migrated)}."] if self.migrated else []),
            f"{self.rows} rows came back, of {_time(self.oldest)} to {_time(self.newest)}, {sealed}.",
            f"{self.newer.rows} rows newer than the backup" + (f", sealed up to {_time(newest.issued_at)}." if newest else "."),
        ]  # fmt: skip
        if self.is_good:
            return "\n".join([*lines, "The backup is restorable, and VALID up to its last seal."])
        end = "The backup was restored, but it is not proven: keep it as evidence, and take another one."
        return "\n".join([*lines, end])


def drill_restore(
    settings: Settings,
    dump: Path | None,
    base_backup: Path | None,
    keys: Sequence[PublicKey],
    progress: Progress,
    go_on: Callable[[], None],
) -> RestoreDrill:
    """`go_on` raises if it is to be given up."""
    vault, began = vault_of(settings), time.monotonic()
    with scratch_server(go_on) as server:
        if dump:
            backup, database, login = dump_at(dump), RESTORED, SUPERUSER
            server.take_dump(backup)
        else:
            assert base_backup
            backup = base_backup_at(base_backup, major_version())
            server.take_base_backup(backup)
            database, login = _place_of(settings, server)
        url = server.address(database, login)
        migrated = _prepare(url, backup)
        server.forbid_writes()
        restored = time.monotonic()
        return _verified(backup, url, vault, keys, progress, migrated, (began, restored))


def _place_of(settings: Settings, server: ScratchPostgres) -> tuple[str, str]:
    """The database and a login of a base backup: those of the settings, or the embedded server's."""
    given = conninfo_to_dict(settings.database.url.get_secret_value())
    database, reasons = str(given.get("dbname") or DATABASE), []
    for login in dict.fromkeys((SUPERUSER, str(given.get("user") or SUPERUSER))):
        try:
            psycopg.connect(server.address(database, login)).close()
        except psycopg.OperationalError as failure:
            reasons.append(str(failure).strip().splitlines()[-1])
        else:
            return database, login
    raise BackupError(
        f"The base backup started, but the database {database} of it cannot be opened: {'; '.join(reasons)}. Name its database and a"
        " superuser of it in DATABASE_URL."
    )


def _prepare(url: str, backup: Backup) -> list[str]:
    """As an engine of this version would at its first start. The names of the migrations that the backup lacked."""
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute(_IS_OURS).fetchone() != (True,):
            raise BackupError(
                f"{backup.path} was restored, but it is no backup of Affidavit's database: there is no log in it. Name the right one."
            )
        migrated = migrate(connection, HOUSE / "sql")
        connection.execute("ANALYZE")
    return migrated


def _verified(
    backup: Backup,
    url: str,
    vault: Vault,
    keys: Sequence[PublicKey],
    progress: Progress,
    migrated: list[str],
    times: tuple[float, float],
) -> RestoreDrill:
    with reading(url, AUDITOR) as connection:
        heads = connection.execute(_HEADS).fetchall()
        breaks: dict[date, int] = dict(connection.execute(_BREAKS).fetchall())
        months = {month: BackedUpMonth(size, breaks.get(month, 0)) for month, size, _ in heads}
        signed = [head for *_, note in heads if (head := _opened(note, keys))]
        _check_house(connection, backup, vault, is_ours=bool(signed) or not heads)
        ((rows, oldest, newest),) = connection.execute(_ROWS).fetchall()
        unsealed = frozenset(leaf for (leaf,) in connection.execute(_UNSEALED))
        ((entries,),) = connection.execute("SELECT count(*) FROM audit_head_entries").fetchall()
        report = _inspected(url, connection, VaultAsOf(vault, months, entries), keys, progress)
    newer = find_newer(vault, months, unsealed, keys)
    began, restored = times
    return RestoreDrill(
        str(backup), backup.size, rows, oldest, newest, signed[-1] if signed else None, newer, migrated, report,
        restored - began, time.monotonic() - restored,
    )  # fmt: skip


def _check_house(connection: psycopg.Connection, backup: Backup, vault: Vault, *, is_ours: bool) -> None:
    if is_ours:
        return
    names = {name for (name,) in connection.execute("SELECT origin FROM audit_origin")}
    theirs = log_names(vault)
    if names & theirs:
        raise BackupError(
            f"{backup.path} is of this house, but none of the public keys here signed its log: add the lines of the earlier keys to the"
            " .pub, or name a file that has them with --public-key."
        )
    raise BackupError(
        f"{backup.path} is a backup of another house: none of the public keys here signed its log,"
        f" {', '.join(sorted(names)) or 'which has no name'}. This vault is of {', '.join(sorted(theirs)) or 'no log yet'}. Give this"
        " house's backup, or the other one's --data-dir and keys."
    )


def _inspected(
    url: str, connection: psycopg.Connection, vault: VaultAsOf, keys: Sequence[PublicKey], progress: Progress
) -> Report:
    ((taken_at,),) = connection.execute(_TAKEN_AT).fetchall()
    connection.commit()
    with RangeJudges(as_role(url, AUDITOR), cores.usable()) as judges:
        evidence = StoredEvidence(connection, vault, EVER, taken_at or now(), judges)
        evidence.begin()
        return check_with(connection, shipped_definitions(), lambda: inspect(evidence, keys, progress))


def _head_as_json(head: Checkpoint | None) -> dict[str, object] | None:
    return {"month": f"{head.month:%Y-%m}", "size": head.size, "at": head.issued_at} if head else None


def _time(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "no time"


def _opened(note: str, keys: Sequence[PublicKey]) -> Checkpoint | None:
    try:
        return open_note(note, keys)
    except NoteError:
        return None
