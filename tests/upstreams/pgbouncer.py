"""A real PgBouncer in front of a server; the test is skipped where it is not installed."""

import contextlib
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from engine.providers.postgres import ROOT_STAND_IN
from tests.conftest import free_port

READY_S = 60
_CONFIGURATION = """
[databases]
* = host={host} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
logfile = {folder}/log
{more}
"""


@contextlib.contextmanager
def pooled(url: str, folder: Path, mode: str, more: str = "") -> Iterator[str]:
    """The server's address through the pooler. It must let in who runs the pooler, which refuses to run as root."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("no pooler: pgbouncer is not installed")
    folder.mkdir()
    port, given = free_port(), conninfo_to_dict(url)
    configuration = folder / "pgbouncer.ini"
    given |= {"port": port, "mode": mode, "folder": str(folder), "more": more}
    configuration.write_text(_CONFIGURATION.format_map(given))
    account = None if os.geteuid() else pwd.getpwnam(ROOT_STAND_IN)
    if account:
        for path in (folder, configuration):
            os.chown(path, account.pw_uid, account.pw_gid)
    pooler = subprocess.Popen(
        [program, "-q", configuration], user=account.pw_uid if account else None,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    through = make_conninfo(host="127.0.0.1", port=port, dbname=given["dbname"], user=given["user"])
    try:
        _wait_until_ready(through)
        yield through
    finally:
        pooler.kill()
        pooler.wait()


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, "PgBouncer did not become ready"
            time.sleep(0.05)
        else:
            return
