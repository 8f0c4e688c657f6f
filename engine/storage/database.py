"""PostgreSQL connections: pools and single connections, each in one role, and the life cycle of the embedded server.

A role is set for each connection, whatever login the address has, so that each part has only the rights that it needs.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.session import AsyncSession, Session
from engine.errors import ConfigurationError, DatabaseUnavailableError, StatementError
from engine.settings import HOUSE, Settings
from engine.storage.data_folder import UsageLock, usable
from engine.storage.migrate import migrate, pending
from engine.storage.pooler import check_sessions

AUDITOR = "affidavit_auditor"
ARCHIVER = "affidavit_archiver"
OWNER = "affidavit_owner"

HOST_S = 2  # for each of several hosts, then the next one is tried; the driver takes no less
ONLY_HOST_S = 10
OPEN_S = 5.0  # a database that does not accept a connection within it is down
READER_LOCK_MS = 10_000  # a migration that holds a table longer is said to a reader, not waited for
READER_GONE_S = 5.0
CLEANUP_S = 0.05  # of a time limit, for a second cancellation: psycopg needs it if the server hangs
RECONNECT_S = 1.0  # then the next caller tries again; the pool's own backoff would grow without a limit

WATCH_S = 1.0  # how soon a dead embedded server is noticed; records wait in the spool meanwhile
WATCH_PAUSE_MAX_S = 30.0  # between two attempts: what keeps it from starting, such as a full disk, may last

# Whatever the defaults of a role or database: a statement after a lock must see what the lock's last owner committed, no
# schema of the login's name may stand in for ours, a policy that would hide rows is an error, and times and SQL mean the same
# everywhere: psycopg reads no time in the German style.
_PINNED = (
    r"-c default_transaction_isolation=read\ committed -c search_path=public -c row_security=off"
    r" -c datestyle=ISO,MDY -c intervalstyle=postgres -c transform_null_equals=off -c standard_conforming_strings=on"
)


_CONNECTION: type[psycopg.AsyncConnection] = AsyncSession  # of a pool

log = logging.getLogger(__name__)


class Server(Protocol):
    """A PostgreSQL server that this process can start and stop."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def revive(self) -> bool: ...

    def is_made(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Database:
    """The address of a running database, and what commands do with it."""

    url: str
    settings: Settings

    def pool(
        self, role: str, size_max: int = 2, *, has_autocommit: bool = False, size_min: int = 1
    ) -> AbstractAsyncContextManager[AsyncConnectionPool]:
        wait_s = self.settings.budget.audit_s
        return open_pool(
            self.url, role, size_max=size_max, wait_s=wait_s, has_autocommit=has_autocommit, size_min=size_min
        )

    def migrate(self) -> list[str]:
        with _connected(self.url) as connection:
            return migrate(connection, HOUSE / "sql")

    def pending(self) -> list[str]:
        with _connected(self.url) as connection:
            return pending(connection, HOUSE / "sql")

    def check_schema(self) -> None:
        """`ConfigurationError` if migrations are missing."""
        if missing := self.pending():
            raise ConfigurationError(f"The database lacks {', '.join(missing)}. Run `affidavit migrate`.")

    async def read(self, role: str, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and rows of one read-only statement."""
        opened = open_pool(self.url, role, size_max=1, wait_s=OPEN_S)
        async with opened as pool, pool.connection() as connection:
            await connection.set_read_only(True)
            try:
                cursor = await connection.execute(statement.encode())
            except psycopg.Error as failure:
                raise StatementError(f"PostgreSQL refuses this: {str(failure).strip()}") from failure
            rows = await cursor.fetchall() if cursor.description else []
            return [column.name for column in cursor.description or ()], rows


@asynccontextmanager
async def open_database(
    settings: Settings, embedded: Callable[[Path], Server], say: Callable[[str], None]
) -> AsyncIterator[Database]:
    """The database that the settings name, or the embedded one of the data folder.

    The embedded server is started and migrated if necessary, and started again if it dies. The last process that uses it
    stops it.
    """
    try:
        async with _opened(settings, embedded, say) as database:
            yield database
    except psycopg.errors.ReadOnlySqlTransaction:
        raise ConfigurationError(
            "The database takes no writes: it is a standby, or default_transaction_read_only is on. Run `affidavit doctor`."
        ) from None


@asynccontextmanager
async def _opened(
    settings: Settings, embedded: Callable[[Path], Server], say: Callable[[str], None]
) -> AsyncIterator[Database]:
    if url := settings.database.url.get_secret_value():
        _check_address(url)
        url = _with_time_limit(url)
        await check_sessions(url)
        yield Database(url, settings)
        return
    in_use = UsageLock(usable(settings.data_dir))
    server = embedded(settings.data_dir)
    try:
        if not server.is_made():
            say(f"Making a new database in {settings.data_dir} …")
        say("Starting the embedded PostgreSQL …")
        await asyncio.to_thread(server.start)
        database = Database(_with_time_limit(server.url), settings)
        await asyncio.to_thread(database.migrate)
        async with _kept_alive(server):
            yield database
    finally:
        if in_use.try_exclusive():
            await asyncio.to_thread(server.stop)
        in_use.release()


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection]:
    try:
        opened = psycopg.connect(url)
    except psycopg.OperationalError as failure:
        reason = str(failure).strip().partition("\n")[0]
        raise ConfigurationError(
            f"No connection to the database: {reason}. Check that it runs and that its address"
            " (DATABASE_URL) is right."
        ) from failure
    with opened:
        yield opened


def _check_address(url: str) -> None:
    """Without the driver's own words, which repeat a password."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            "The database's address (DATABASE_URL, or database.url) is none of PostgreSQL. Write it like"
            " postgresql://user:password@host:5432/name, or leave it out for the embedded database."
        ) from None


def _with_time_limit(url: str) -> str:
    """The driver's own limit is two minutes for each host: a leader whose machine is gone would hide its successor.

    What the address leaves out the driver takes from its environment: PGHOST, PGCONNECT_TIMEOUT, a service file.
    """
    known = {item.keyword.decode(): item.val.decode() for item in Conninfo.get_defaults() if item.val}
    given = known | conninfo_to_dict(url)
    if "connect_timeout" in given:
        return url
    has_several = any("," in str(given.get(name) or "") for name in ("host", "hostaddr"))
    return make_conninfo(url, connect_timeout=HOST_S if has_several else ONLY_HOST_S)


@asynccontextmanager
async def _kept_alive(server: Server) -> AsyncIterator[None]:
    """At the end of the block nobody starts it any more, so that it can be stopped."""
    is_over = asyncio.Event()
    watching = asyncio.create_task(_watch(server, is_over))
    try:
        yield
    finally:
        is_over.set()
        await asyncio.wait([watching])


async def _watch(server: Server, is_over: asyncio.Event) -> None:
    pause_s = WATCH_S
    while not await _is_set_within(is_over, pause_s):
        try:
            if await asyncio.to_thread(server.revive):
                log.warning("The embedded PostgreSQL had died, or lost its socket, and was started again")
            pause_s = WATCH_S
        except (ConfigurationError, OSError) as failure:
            pause_s = min(2 * pause_s, WATCH_PAUSE_MAX_S)
            log.error("The embedded PostgreSQL died, or lost its socket, and does not start: %s", failure)  # noqa: TRY400  its own words say why


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


@asynccontextmanager
async def open_pool(
    url: str, role: str, *, size_max: int, wait_s: float, has_autocommit: bool = False, size_min: int = 1
) -> AsyncIterator[AsyncConnectionPool]:
    """A connection pool in one role. Connections are checked before use, so a broken one is not handed out.

    With autocommit a statement takes one round trip; without it three, because BEGIN and COMMIT surround it.
    """
    conninfo = make_conninfo(
        url, options=f"-c role={role} -c timezone=UTC {_PINNED}", application_name=f"affidavit {role}"
    )
    async with AsyncConnectionPool(
        conninfo, connection_class=_CONNECTION, min_size=size_min, max_size=size_max, timeout=wait_s, open=False, name=role,
        kwargs={"autocommit": has_autocommit}, reconnect_timeout=RECONNECT_S,
        check=AsyncConnectionPool.check_connection,
    ) as pool:  # fmt: skip
        try:
            await pool.wait(OPEN_S)
        except PoolTimeout as failure:
            raise ConfigurationError(
                f"No connection to the database as {role} within {OPEN_S:.0f} s: {await _why_none(conninfo)}"
            ) from failure
        yield pool


async def _why_none(conninfo: str) -> str:
    """What the server says to one more attempt: a pool keeps that to itself."""
    try:
        await (await AsyncSession.connect(conninfo, connect_timeout=int(OPEN_S))).close()
    except psycopg.Error as failure:
        reason = str(failure).strip().splitlines()[0]
        if "permission denied to set role" in reason:
            return (
                "its login is not a member of that role. Grant it, as docs/how-to/postgresql-rights.md shows."
            )
        if "does not exist" in reason:
            return f"{reason}. Run `affidavit migrate`."
        return f"{reason}. Check that it runs and that its address (DATABASE_URL) is right."
    return "it was too slow. Try again."


@asynccontextmanager
async def open_lazily(
    url: str, role: str, *, size_max: int, wait_s: float, within_s: float | None = None
) -> AsyncIterator[AsyncConnectionPool]:
    """A lazy connection pool for rare work: it connects at the first use. `within_s` limits each statement."""
    conninfo = as_role(url, role)
    async with AsyncConnectionPool(
        within(conninfo, within_s) if within_s else conninfo, connection_class=_CONNECTION, min_size=0, max_size=size_max, timeout=wait_s,
        open=False, name=role, kwargs={"autocommit": True},
    ) as pool:  # fmt: skip
        yield pool


@asynccontextmanager
async def borrowed(pool: AsyncConnectionPool) -> AsyncIterator[psycopg.AsyncConnection]:
    """A connection of the pool; `DatabaseUnavailableError` if there is none, or if it fails."""
    try:
        async with pool.connection() as connection:
            yield connection
    except (psycopg.Error, PoolTimeout) as failure:
        raise DatabaseUnavailableError from failure


@contextmanager
def reading(url: str, role: str) -> Iterator[psycopg.Connection]:
    """One connection for long reads. An error message leaves out PostgreSQL's details, which can repeat a row."""
    try:
        with Session.connect(as_role(url, role)) as connection:
            yield connection
    except psycopg.Error as failure:
        reason = failure.diag.message_primary or type(failure).__name__
        raise StatementError(f"Reading the database as {role} failed before the end: {reason}") from failure


@asynccontextmanager
async def changing(url: str, role: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """One autocommit connection for a job of many statements. Errors are reported as in `reading`."""
    try:
        async with await AsyncSession.connect(as_role(url, role), autocommit=True) as connection:
            yield connection
    except psycopg.Error as failure:
        reason = failure.diag.message_primary or type(failure).__name__
        raise StatementError(f"The database failed while the {role} was working: {reason}") from failure


def as_role(url: str, role: str) -> str:
    """An address whose session sets the role, and formats numbers and bytes as records are hashed."""
    options = f"-c role={role} -c timezone=UTC -c bytea_output=hex -c extra_float_digits=1 {_PINNED}"
    return make_conninfo(url, options=options, application_name=f"affidavit {role}")


def within(url: str, seconds: float) -> str:
    """An address for a reader who ends each statement after this time. If the reader is gone, the server does a little later."""
    most = f"{(seconds + READER_GONE_S) * 1000:.0f}"
    options = (
        f"{conninfo_to_dict(url)['options']} -c statement_timeout={most} -c lock_timeout={READER_LOCK_MS}"
        f" -c idle_in_transaction_session_timeout={most}"
    )
    return make_conninfo(url, options=options)


def as_login(url: str, role: str) -> str:
    """An address that logs in as the role itself, which only the embedded server allows: it cannot switch roles."""
    return as_role(make_conninfo(url, user=role), role)
