"""The server of a data folder: one for all who use it, gone with the last of them, and back after any crash."""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from subprocess import PIPE

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from engine import settings as settings_file
from engine import wiring
from engine.errors import ConfigurationError
from engine.providers.postgres import SOCKET, EmbeddedPostgres
from engine.storage.data_folder import UsageLock
from engine.storage.database import Database

CANARY = "canary-5f1d7e"
GONE_S = 10


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder with a short path, whose server is stopped whatever the test left."""
    with tempfile.TemporaryDirectory(prefix="affidavit-pg-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        end(Path(folder))


def postmaster(data: Path) -> int:
    return int((data / "postgres/postmaster.pid").read_text().split()[0])


def is_alive(pid: int) -> bool:
    """A process that has ended stays in the table until somebody asks for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + GONE_S
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_alive(pid)


def kill(pid: int) -> None:
    """The way the kernel does it when memory runs out: no last words."""
    os.kill(pid, signal.SIGKILL)
    assert is_gone(pid)


def end(data: Path) -> None:
    if (data / "postgres/postmaster.pid").exists() and is_alive(postmaster(data)):
        EmbeddedPostgres(data).stop()


def connect(server: EmbeddedPostgres) -> psycopg.Connection:
    return psycopg.connect(server.url, autocommit=True)


def test_the_first_start_makes_a_server_and_the_second_finds_it(data: Path) -> None:
    first, second = EmbeddedPostgres(data), EmbeddedPostgres(data)
    first.start()
    pid = postmaster(data)
    second.start()
    assert postmaster(data) == pid
    assert first.url == second.url
    with connect(second) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("affidavit",)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
    second.stop()
    assert is_gone(pid)


# Seen red with the lock around `start` taken out: two made the same files at once.
def test_starts_at_once_end_up_with_one_server(data: Path) -> None:
    together = threading.Barrier(3)
    answers: list[tuple[object, ...] | None] = []

    def run() -> None:
        server = EmbeddedPostgres(data)
        together.wait(10)
        server.start()
        with connect(server) as connection:
            answers.append(connection.execute("SELECT pg_postmaster_start_time()").fetchone())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 3 and len(set(answers)) == 1


# Seen red with `try_exclusive` always true: the first to leave took the server with it.
async def test_the_last_to_leave_stops_the_server_and_nobody_else(data: Path) -> None:
    settings = settings_file.load({}, data_dir=data)
    async with wiring.open_database(settings, lambda _: None) as staying:
        pid = postmaster(data)
        async with wiring.open_database(settings, lambda _: None):
            assert postmaster(data) == pid
        assert is_alive(pid)
        _, rows = await staying.read("affidavit_engine", "SELECT 1")
        assert rows == [(1,)]
    assert is_gone(pid)


def test_only_the_last_holder_is_the_last(tmp_path: Path) -> None:
    first, second = UsageLock(tmp_path), UsageLock(tmp_path)
    assert not first.try_exclusive()
    first.release()
    assert second.try_exclusive()
    second.release()


# Seen red with `synchronous_commit = off` in the server's configuration: the row was gone.
def test_a_killed_server_starts_again_with_every_committed_row(data: Path) -> None:
    server = EmbeddedPostgres(data)
    server.start()
    with connect(server) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('committed')")
        kill(postmaster(data))
    another = EmbeddedPostgres(data)
    another.start()
    with connect(another) as connection:
        assert connection.execute("SELECT word FROM kept").fetchall() == [("committed",)]


# Seen red with a `revive` that does nothing, as before: it stayed dead until the engine was started anew.
async def test_a_server_that_dies_while_it_is_used_is_started_again(data: Path) -> None:
    """Also by three who notice at once, and as often as it dies."""
    settings = settings_file.load({}, data_dir=data)
    async with AsyncExitStack() as stack:
        users = [await stack.enter_async_context(wiring.open_database(settings)) for _ in range(3)]
        for _ in range(2):
            pid = postmaster(data)
            await asyncio.to_thread(kill, pid)
            await connected(users[0])
            assert postmasters(data) == [postmaster(data)] != [pid]
    assert postmasters(data) == []


# Seen red with a server that is never cut off, as before: pg_ctl's own words after a minute, and a server that nobody could
# reach or stop.
@pytest.mark.parametrize("step", ["start", "stop"])
def test_a_server_whose_socket_was_removed_is_started_again_or_stopped(data: Path, step: str) -> None:
    server = EmbeddedPostgres(data)
    server.start()
    with connect(server) as connection:
        connection.execute("CREATE TABLE kept ()")
    pid = postmaster(data)
    (data / "postgres" / SOCKET).unlink()
    if step == "start":
        EmbeddedPostgres(data).start()
        with connect(server) as connection:
            connection.execute("SELECT FROM kept")
    else:
        server.stop()
    assert is_gone(pid)


# Seen red the same way.
async def test_a_server_whose_socket_is_removed_while_it_is_used_is_started_again(data: Path) -> None:
    async with wiring.open_database(settings_file.load({}, data_dir=data)) as database:
        (data / "postgres" / SOCKET).unlink()
        async with asyncio.timeout(GONE_S):
            await connected(database)


# Seen red the same way.
async def test_a_server_that_was_stopped_in_an_orderly_way_is_started_again_too(data: Path) -> None:
    """A server on a full disk ends like that, by itself."""
    settings = settings_file.load({}, data_dir=data)
    async with wiring.open_database(settings) as used:
        await asyncio.to_thread(EmbeddedPostgres(data)._control, "stop", "--mode=fast")
        await connected(used)


async def test_a_hung_server_is_not_taken_for_a_dead_one(data: Path) -> None:
    server = EmbeddedPostgres(data)
    server.start()
    os.kill(postmaster(data), signal.SIGSTOP)
    try:
        assert not server.revive()
    finally:
        os.kill(postmaster(data), signal.SIGCONT)


def test_the_number_of_a_dead_server_may_be_another_process(data: Path) -> None:
    """Else after a reboot some other program would be taken for the server for ever."""
    server = EmbeddedPostgres(data)
    server.start()
    pid = postmaster(data)
    assert not server.revive()
    text = (data / "postgres/postmaster.pid").read_text()
    kill(pid)
    (data / "postgres/postmaster.pid").write_text(text.replace(str(pid), str(os.getppid()), 1))
    assert server._is_dead()
    (data / "postgres/postmaster.pid").write_text(text)
    while not revived(server):
        """The remains of the killed one are being cleared away."""
    assert postmasters(data) == [postmaster(data)]


def revived(server: EmbeddedPostgres) -> bool:
    try:
        return server.revive()
    except ConfigurationError:
        return False


async def connected(database: Database) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await database.read("affidavit_engine", "SELECT 1")
            except (ConfigurationError, psycopg.Error):
                continue
            return


def postmasters(data: Path) -> list[int]:
    """The servers that work in this folder; their children have other names."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")[0]
            if (
                command.endswith(b"/bin/postgres")
                and (process / "cwd").readlink() == (data / "postgres").resolve()
            ):
                found.append(int(process.name))
    return found


def test_stopping_a_server_that_is_dead_already_is_no_error(data: Path) -> None:
    """Else Ctrl-C after a crash of the database ends in an error about a process that is not there."""
    server = EmbeddedPostgres(data)
    server.start()
    kill(postmaster(data))
    server.stop()
    server.stop()


def test_a_half_made_server_is_made_anew(data: Path) -> None:
    draft = data / "postgres.draft"
    (draft / "base").mkdir(parents=True)
    (draft / "PG_VERSION").write_text("9.1")
    server = EmbeddedPostgres(data)
    server.start()
    assert not draft.exists()
    with connect(server) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture
def long(data: Path) -> Iterator[Path]:
    """Longer than the name of a Unix socket may be."""
    folder = data / ("d" * 60) / ("e" * 60)
    folder.mkdir(parents=True)
    yield folder
    end(folder)
    shutil.rmtree(sockets(folder), ignore_errors=True)


def sockets(data: Path) -> Path:
    return Path(str(conninfo_to_dict(EmbeddedPostgres(data).url)["host"]))


def test_a_long_path_gets_its_socket_in_a_private_folder(long: Path) -> None:
    server = EmbeddedPostgres(long)
    server.start()
    private = sockets(long)
    assert private.parent == Path(tempfile.gettempdir())
    assert private.stat().st_mode & 0o777 == 0o700
    assert private.stat().st_uid == (long / "postgres").stat().st_uid
    with connect(server) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    pid = postmaster(long)
    server.stop()
    assert is_gone(pid)


# Seen red with the look for a symbolic link taken out of `socket_folder`.
def test_a_private_folder_that_somebody_laid_out_is_refused(long: Path, tmp_path: Path) -> None:
    """/tmp is everybody's: who guesses the name must not be able to lead our socket elsewhere."""
    private = sockets(long)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chown(elsewhere, private.stat().st_uid, -1)
    shutil.rmtree(private)
    private.symlink_to(elsewhere)
    try:
        with pytest.raises(ConfigurationError, match="belongs to another user"):
            EmbeddedPostgres(long).start()
    finally:
        private.unlink()


@pytest.mark.parametrize("name", ["my data", 'données: it\'s "$HOME"; `b`'])
def test_a_folder_may_have_any_name(data: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`My Documents` is a folder like any other, and no part of a shell's command."""
    monkeypatch.setattr("engine.providers.postgres.START_S", 3)
    folder = data / name
    folder.mkdir()
    server = EmbeddedPostgres(folder)
    server.start()
    try:
        with connect(server) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()


# Seen red with `log_min_messages = warning`: the first line of a wrong type's error quotes the value.
def test_the_log_of_the_server_never_repeats_a_row(data: Path) -> None:
    server = EmbeddedPostgres(data)
    server.start()
    violations = (
        "INSERT INTO kept VALUES (%s, 1)",
        "INSERT INTO kept VALUES (%s, -1)",
        "INSERT INTO kept VALUES (%s, NULL)",
        "INSERT INTO months VALUES (%s, '2001-01-01')",
        "INSERT INTO referring VALUES (%s)",
        "INSERT INTO documents VALUES (%s)",
        "SELECT 1/0 WHERE %s <> ''",
        "SELECT %s::text::int",
    )
    with connect(server) as connection:
        connection.execute(
            "CREATE TABLE kept (word text PRIMARY KEY, n int NOT NULL CHECK (n > 0));"
            "CREATE TABLE months (word text, day date) PARTITION BY RANGE (day);"
            "CREATE TABLE referring (word text REFERENCES kept); CREATE TABLE documents (body jsonb)"
        )
        connection.execute("INSERT INTO kept VALUES (%s, 1)", (CANARY,))
        for statement in violations:
            word = f'{{"{CANARY}": "\\u0000"}}' if "documents" in statement else CANARY
            unknown = f"{word}-unknown" if "referring" in statement else word
            with pytest.raises(psycopg.Error):
                connection.execute(statement, (unknown,))
            literal = psycopg.ClientCursor(connection).mogrify(statement, (unknown,))
            with pytest.raises(psycopg.Error):
                connection.execute(literal.encode())
    server.stop()
    log = (data / "postgres/server.log").read_text()
    assert "ERROR:" not in log
    assert "database system is ready" in log
    assert CANARY not in log


# It waits for a line after the imports, so that all of them make the user at once.
_ACCOUNT = """
import sys
from engine.providers import postgres
postgres.ROOT_STAND_IN = sys.argv[1]
print("ready", flush=True)
input()
print(postgres._account().pw_uid)
"""


# Seen red without the lock around `useradd`: the second start replaced the user of the first.
@pytest.mark.skipif(os.geteuid() != 0, reason="Only root needs another user for PostgreSQL.")
def test_first_starts_at_once_get_one_user() -> None:
    name = f"affidavit-{os.getpid()}"
    command = [sys.executable, "-c", _ACCOUNT, name]
    starts = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(8)]
    try:
        for start in starts:
            assert start.stdout and start.stdout.readline() == "ready\n"
        for start in starts:
            assert start.stdin
            start.stdin.write("\n")
            start.stdin.flush()
        seen = {start.communicate(timeout=60)[0].strip() for start in starts}
        assert seen == {str(pwd.getpwnam(name).pw_uid)}
    finally:
        subprocess.run(["userdel", name], check=False)
