"""The archiver is killed at every point, S3 fails in every way, PostgreSQL is restarted: no row is ever nowhere.

Each round has a copy of one log. After the strike each row must be in a table or in a verified archive, and nothing may be
recorded that was not done; then the archiver runs once more, undisturbed, and must come to the end.
"""

import contextlib
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from audit.archive.month_table import read_row_keys
from audit.archive.verify import verify_archive
from audit.proof.verdict import Verdict
from audit.vault import Vault
from audit.vault_copy import copy_vault
from engine import settings as settings_file
from engine import wiring
from engine.errors import AffidavitError
from engine.providers.postgres import EmbeddedPostgres
from engine.providers.s3 import S3Vault
from engine.storage.database import ARCHIVER, Database, reading
from engine.wiring import now
from tests.conftest import CAMPAIGN_ROUNDS, ROOT, campaign_only
from tests.logs.archiving import archiver_of, attached, events, rows_of, steps, tables
from tests.logs.dying_archiver import Points, disturbed
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, quiet, sealed_log
from tests.upstreams import s3

ROUNDS = CAMPAIGN_ROUNDS if CAMPAIGN_ROUNDS > 1 else 0
FEW = 2  # of each kind in the normal suite
TABLE = "audit_logs_2025_01"
WORKS = ("archive", "restore", "end")
KILLED = -9
FAULTS: tuple[s3.Fault, ...] = get_args(s3.Fault)
LONGEST_STATEMENT_S = 0.02
_HELD = "SELECT log_id::text, leaf_hash FROM {}"


@pytest.fixture(scope="module")
async def whole(
    anyio_backend: str, database: Database, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, SealedLog]]:
    """By what is to be done next with January: to leave, to come back, to leave again."""
    folder = tmp_path_factory.mktemp("whole")
    async with sealed_log(database, folder) as log:
        with psycopg.connect(log.url) as connection:
            make_months(connection, [now().date()])
        made = {"archive": log}
        for work, before in (("restore", "archive"), ("end", "restore")):
            made[work] = copied(made[before], folder.with_name(f"{folder.name}-{work}"))
            archiver = archiver_of(made[work])
            outcome = (
                (await archiver.archive(FEBRUARY))[0]
                if work == "restore"
                else await archiver.restore(JANUARY)
            )
            assert outcome.is_well, outcome
        yield made
        for work in ("restore", "end"):
            dropped(made[work])


@pytest.fixture(scope="module")
def dying() -> Iterator["Dying"]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.logs.dying_archiver"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=ROOT,
    ) as process:  # fmt: skip
        yield Dying(process)
        assert process.stdin
        process.stdin.close()


class Dying:
    """Does work in a process that is killed at a point of it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def do(self, log: SealedLog, work: str, kill_at: int, delay_s: float = 0) -> tuple[int, int]:
        """How it ended, and how many points it passed if it was not killed."""
        order = {
            "url": log.url, "folder": str(log.folder), "data_dir": str(log.database.settings.data_dir),
            "work": work, "kill_at": kill_at, "delay_s": delay_s,
        }  # fmt: skip
        assert self._process.stdin and self._process.stdout
        print(json.dumps(order), file=self._process.stdin, flush=True)
        said = json.loads(self._process.stdout.readline())
        return said["ended"], said["passed"]


def copied(log: SealedLog, folder: Path) -> SealedLog:
    name = f"crash_{uuid4().hex}"
    with psycopg.connect(make_conninfo(log.url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(name_of(log))
            )
        )
    shutil.copytree(log.folder, folder)
    made = Database(make_conninfo(log.url, dbname=name), log.database.settings)
    return SealedLog(made, folder, log.key, log.rows)


def dropped(log: SealedLog) -> None:
    name = sql.Identifier(name_of(log))
    with psycopg.connect(make_conninfo(log.url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
    shutil.rmtree(log.folder)


def name_of(log: SealedLog) -> str:
    return str(conninfo_to_dict(log.url)["dbname"])


@contextmanager
def copy(log: SealedLog, folder: Path) -> Iterator[SealedLog]:
    made = copied(log, folder / uuid4().hex)
    try:
        yield made
    finally:
        dropped(made)


def wrong(log: SealedLog, work: str, vault: Vault | None = None) -> list[str]:
    """What must never be, whenever somebody looks."""
    held, expected, is_whole = rows_in_tables(log), leaves(log), is_archived(log, vault)
    state = [None, *steps(log, JANUARY)][-1]
    is_leaving = work != "restore"  # else the table may be back before that is recorded
    rules = {
        f"{len(expected - held)} rows are nowhere": expected <= held or is_whole,
        f"{state}, and the archive is not whole": state in {None, "frozen", "uploaded"} or is_whole,
        "recorded as frozen, and takes rows": state != "frozen" or is_frozen(log),
        "recorded as detached, and is attached": state != "detached"
        or TABLE not in attached(log)
        or not is_leaving,
        "recorded as dropped, and is there": state != "dropped" or TABLE not in tables(log) or not is_leaving,
        "recorded as restored, and is not": state != "restored" or not is_leaving or expected <= held,
        "recorded without its event": set(steps(log, JANUARY)) <= recorded(log),
    }
    return [words for words, holds in rules.items() if not holds]


def recorded(log: SealedLog) -> set[str]:
    return {about["step"] for _, outcome, about in events(log) if outcome == "recorded"}


def leaves(log: SealedLog) -> set[tuple[str, bytes]]:
    with psycopg.connect(log.url) as connection:
        return set(
            connection.execute(
                "SELECT log_id::text, leaf_hash FROM audit_leaves WHERE month = %s", (JANUARY,)
            ).fetchall()
        )


def rows_in_tables(log: SealedLog) -> set[tuple[str, bytes]]:
    if TABLE not in tables(log):
        return set()
    with psycopg.connect(log.url) as connection:
        return set(connection.execute(_HELD.format(TABLE).encode()).fetchall())


def is_frozen(log: SealedLog) -> bool:
    with psycopg.connect(log.url) as connection:
        found = connection.execute("SELECT FROM pg_trigger WHERE tgname = 'audit_logs_frozen'").fetchall()
    return bool(found)


def is_archived(log: SealedLog, vault: Vault | None) -> bool:
    """Whether what a step called verified is, with every box opened."""
    with psycopg.connect(log.url) as connection:
        places = connection.execute(
            "SELECT manifest_key, manifest_version FROM audit_archives WHERE state = 'verified' AND month = %s",
            (JANUARY,),
        ).fetchall()
    if not places:
        return False
    with reading(log.url, ARCHIVER) as connection:
        report = verify_archive(
            vault or log.vault,
            places[-1][0],
            places[-1][1],
            log.keys,
            lambda log_ids: read_row_keys(connection, log_ids),
            quiet,
        )
    return report.verdict is Verdict.VALID and report.checked == 5


async def ended(
    log: SealedLog, work: str, rows: list[dict[str, Any]], vault: Vault | None = None
) -> list[str]:
    """What is wrong when the work was done once more, undisturbed."""
    archiver = archiver_of(log, vault=vault or log.vault)
    if work == "restore":
        outcomes = [await archiver.restore(JANUARY)]
        is_done = outcomes[0].state == "restored" and rows_of(log, JANUARY) == rows
    else:
        is_back = steps(log, JANUARY)[-1:] == ["restored"]
        outcomes = [await archiver.end_restore(JANUARY)] if is_back else await archiver.archive(FEBRUARY)
        is_done = steps(log, JANUARY)[-1] == "dropped" and TABLE not in tables(log)
    troubles = [outcome.words for outcome in outcomes if not outcome.is_well]
    return [*troubles, *wrong(log, work, vault), *([] if is_done else ["the work did not come to its end"])]


async def struck(
    whole: dict[str, SealedLog], dying: Dying, folder: Path, work: str, at: int, delay_s: float
) -> list[str]:
    with copy(whole[work], folder) as log:
        status, _ = dying.do(log, work, at, delay_s)
        found = [] if status in {KILLED, 0} else [f"it ended with {status}"]
        found += wrong(log, work)
        found += await ended(log, work, rows_of(whole["archive"], JANUARY))
    return [f"{work}, point {at} + {delay_s:.4f} s: {words}" for words in found]


def points_of(whole: dict[str, SealedLog], dying: Dying, folder: Path, work: str) -> int:
    with copy(whole[work], folder) as log:
        status, passed = dying.do(log, work, 0)
        assert (status, wrong(log, work)) == (0, [])
    return passed


# Seen red with the last two steps recorded before they are done: 30 violations at 45 points.
@pytest.mark.parametrize("work", WORKS)
async def test_killed_at_any_point_no_row_is_nowhere_and_the_next_run_ends(
    whole: dict[str, SealedLog], dying: Dying, tmp_path: Path, work: str
) -> None:
    passed = points_of(whole, dying, tmp_path, work)
    points = range(1, passed + 1) if ROUNDS else sorted(random.sample(range(1, passed + 1), FEW))
    found = []
    for at in points:
        found += await struck(whole, dying, tmp_path, work, at, 0)
    for _ in range(ROUNDS):
        found += await struck(
            whole, dying, tmp_path, work, random.randint(1, passed), random.uniform(0, LONGEST_STATEMENT_S)
        )
    print(f"{work}: {len(points)} of {passed} points, {ROUNDS} moments between them, {len(found)} violations")
    assert found == []


# Seen red with a vault that believes every "200" and nothing proven before a drop: "5 rows are nowhere".
@pytest.mark.parametrize("kind", ["moto", campaign_only("SeaweedFS")])
async def test_whatever_s3_does_no_row_is_nowhere_and_the_next_run_ends(
    whole: dict[str, SealedLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: s3.Kind
) -> None:
    monkeypatch.setattr("engine.providers.s3.READ_S", 0.5)
    monkeypatch.setattr("engine.providers.s3.ATTEMPTS_MAX", 2)
    found, rows = [], rows_of(whole["archive"], JANUARY)
    with s3.serving(kind) as upstream:
        for name, value in upstream.environment.items():
            monkeypatch.setenv(name, value)
        passed = await asked(whole["archive"], upstream, tmp_path)
        faults = FAULTS if ROUNDS else random.sample(FAULTS, FEW)
        rounds = [
            (fault, random.randint(1, passed), number % 2 == 0)
            for number, fault in enumerate([*faults] * max(1, ROUNDS // 4))
        ]
        for fault, at, for_long in rounds:
            with copy(whole["archive"], tmp_path) as log:
                vault = bucket(upstream, log)
                upstream.judge = failing(fault, at, for_long=for_long)
                await archiver_of(log, vault=vault).archive(FEBRUARY)
                upstream.judge = lambda _method, _path: None
                upstream.wait_until_idle()
                strike = [*wrong(log, "archive", vault), *await ended(log, "archive", rows, vault)]
                times = "from" if for_long else "at"
                found += [f"{fault} {times} request {at} of {passed}: {words}" for words in strike]
    print(f"{len(rounds)} faults of S3 ({kind}), {len(found)} violations")
    assert found == []


def failing(fault: s3.Fault, at: int, *, for_long: bool) -> Callable[[str, str], s3.Fault | None]:
    """The request with this number fails, or it and all after it."""
    numbers = itertools.count(1)

    def judge(_method: str, _path: str) -> s3.Fault | None:
        number = next(numbers)
        return fault if number == at or (for_long and number > at) else None

    return judge


def bucket(upstream: s3.Upstream, log: SealedLog) -> S3Vault:
    """A part of the bucket for each log, with its anchors."""
    vault = S3Vault(upstream.bucket, f"{name_of(log)}/", lock_mode="COMPLIANCE", lock_days=1, clock=now)
    copy_vault(log.vault, vault, log.keys, log.folder, quiet)
    return vault


async def asked(log: SealedLog, upstream: s3.Upstream, folder: Path) -> int:
    with copy(log, folder) as undisturbed:
        vault = bucket(upstream, undisturbed)
        before = len(upstream.requests)
        (outcome,) = await archiver_of(undisturbed, vault=vault).archive(FEBRUARY)
        assert (outcome.state, wrong(undisturbed, "archive", vault)) == ("dropped", [])
    return len(upstream.requests) - before


async def test_postgresql_restarted_in_the_middle_and_no_row_is_nowhere(anyio_backend: str) -> None:
    with tempfile.TemporaryDirectory(prefix="affidavit-restart-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        settings = settings_file.load({}, data_dir=folder / "data")
        found = None
        async with wiring.open_database(settings, lambda _: None) as database:
            (folder / "log").mkdir()
            with contextlib.suppress(psycopg.OperationalError):  # its own connection did not survive either
                async with sealed_log(database, folder / "log") as log:
                    with psycopg.connect(log.url) as connection:
                        make_months(connection, [now().date()])
                    found = await restarted(log, EmbeddedPostgres(settings.data_dir), folder)
    assert found == []


async def restarted(log: SealedLog, server: EmbeddedPostgres, folder: Path) -> list[str]:
    found, rows = [], rows_of(log, JANUARY)
    with copy(log, folder) as whole:
        counting = Points(0, lambda: None)
        await disturbed(whole, counting).archive(FEBRUARY)
    for mode in ["fast", "immediate"] * (ROUNDS // 2) or [random.choice(["fast", "immediate"])]:
        with copy(log, folder) as struck_log:
            at = random.randint(1, counting.passed)
            with contextlib.suppress(psycopg.Error, AffidavitError):
                await disturbed(struck_log, Points(at, partial(restart, server, mode))).archive(FEBRUARY)
            strike = [*wrong(struck_log, "archive"), *await ended(struck_log, "archive", rows)]
            found += [f"{mode} restart at point {at} of {counting.passed}: {words}" for words in strike]
    print(f"{max(1, 2 * (ROUNDS // 2))} restarts of PostgreSQL, {len(found)} violations")
    return found


def restart(server: EmbeddedPostgres, mode: str) -> None:
    server._control("stop", f"--mode={mode}")
    server.start()
