"""PostgreSQL under Patroni fails over while readers ask: every answer has its row, once, within five seconds.

Two real nodes and an engine that knows both by DATABASE_URL. With a synchronous standby nothing is lost, whether the leader is
killed or cut off; with an asynchronous one the loss is found, named, and proven by receipts.
"""

import asyncio
import contextlib
import itertools
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from audit.auditor import check
from audit.proof.keys import SigningKey, public_file, read_public_keys
from audit.proof.verdict import Verdict
from engine import wiring
from tests.campaigns.load import heard_out
from tests.campaigns.test_outage import PROMISE_S, Load, Told, cited_passage, loaded, reader
from tests.command_line import affidavit, affidavit_within
from tests.conftest import Records, Running, running
from tests.upstreams.patroni import Cluster, Node, patroni, wait_until

pytestmark = pytest.mark.campaign

READERS = 3  # two cores serve them and two database servers
QUESTION = {"query": "What does an IMU measure?"}
LOST = 12
INSTALL_S = 600
OUT_OF_TIME = "OutOfTime"  # what a machine says that is too slow for its readers, whatever the database does


@dataclass(frozen=True, slots=True)
class House:
    """An engine beside its cluster, and its data folder."""

    cluster: Cluster
    folder: Path
    engine: Running

    def run(self, *command: object) -> str:
        done = affidavit(*command, data_dir=self.folder, DATABASE_URL=self.cluster.url)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def verify(self) -> str:
        done = affidavit("audit", "verify", data_dir=self.folder, DATABASE_URL=self.cluster.url)
        return done.stdout or done.stderr


@contextmanager
def house(*, is_synchronous: bool) -> Iterator[House]:
    with (
        patroni(is_synchronous=is_synchronous) as cluster,
        tempfile.TemporaryDirectory(prefix="affidavit-house-", ignore_cleanup_errors=True) as made,
    ):
        folder, address = Path(made), cluster.url
        SigningKey.create(folder / "signing.key")
        for command in (("migrate",), ("ingest", wiring.SAMPLE_BOOK, "--book", "physical-ai")):
            done = affidavit_within(INSTALL_S, *command, data_dir=folder, DATABASE_URL=address)
            assert done.returncode == 0, done.stderr
        key = affidavit(
            "keys", "create", "--client", "site", data_dir=folder, DATABASE_URL=address
        ).stdout.split()[-1]
        settings = {"DATABASE_URL": address, "AFFIDAVIT_LIMITS__PER_KEY": "1000000/minute"}
        with running(folder, command="serve", **settings, AFFIDAVIT_AUDIT__ANCHOR_EVERY_S="1") as engine:
            engine.key = key
            with heard_out(engine):
                yield House(cluster, folder, engine)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a fault did to readers and to the log."""

    asked: int
    refused: Counter[str]  # by the problem's name
    worst_s: float
    without_row: int
    twice: int
    spooled: int
    without_writes_s: float  # the longest time in which the database took no record

    def __str__(self) -> str:
        refused = sum(self.refused.values())
        return (
            f"{self.asked} requests, {refused} refused ({refused / self.asked:.1%}, {dict(self.refused)}), worst {self.worst_s:.2f} s;"
            f" answers without a row {self.without_row}, rows twice {self.twice}; {self.spooled} through the spool;"
            f" {self.without_writes_s:.1f} s without writes"
        )


@pytest.mark.parametrize("fault", ["killed", "cut off"])
async def test_a_failover_to_a_synchronous_standby_loses_nothing_and_refuses_nobody(fault: str) -> None:
    with house(is_synchronous=True) as at:
        leader = at.cluster.leader()
        successor = at.cluster.other(leader)
        async with loaded(at.engine, await cited_passage(at.engine), READERS) as load:
            await load.answers(READERS * 20)
            with leader.cut_off() if fault == "cut off" else contextlib.nullcontext():
                if fault == "killed":
                    leader.kill()
                await until(successor.leads)
                await load.answers(READERS * 20)
            if fault == "killed":
                leader.start()
            await until(leader.follows)  # what it wrote alone is gone
            await load.answers(READERS * 20)
        figures = await settled(at, load)
        print(f"the leader was {fault}: {figures}")
        assert (figures.without_row, figures.twice) == (0, 0)
        assert not figures.refused.keys() - {OUT_OF_TIME}
        assert figures.worst_s <= PROMISE_S
        assert figures.spooled
        at.run("audit", "seal", "--once")
        assert at.verify().startswith("VALID")


async def test_what_an_asynchronous_failover_loses_is_named_stated_and_proven() -> None:
    with house(is_synchronous=False) as at:
        leader = at.cluster.leader()
        successor = at.cluster.other(leader)
        async with reader(at.engine) as http:
            for _ in range(5):
                assert (await http.post("/v1/query", json=QUESTION)).status_code == 200
            await anchored(at)
            cut_replication(leader)
            lost = [(await http.post("/v1/query", json=QUESTION)).json() for _ in range(LOST)]
            await anchored(at)
            leader.kill()
            await until(successor.leads)
            assert (await http.post("/v1/query", json=QUESTION)).status_code == 200
        await until(lambda: is_settled(at))
        said = at.verify()
        print(said)
        assert said.startswith("MISSING")
        assert "The database is an older copy of what the vault holds" in said
        assert "PostgreSQL is on timeline 2" in said
        month = f"{wiring.now():%Y-%m}"
        print(at.run("audit", "break", "--month", month, "--basis", "failover of the test"))
        stated = at.verify()
        print(stated)
        assert stated.startswith("LOST_BY_FAILOVER")
        assert "MISSING" not in stated
        keys = read_public_keys(public_file(at.folder / "signing.key"))
        for answer in lost:
            receipt = json.dumps(answer["receipt"]).encode()
            assert check(receipt, keys).verdict is Verdict.UNSEALED  # signed: such a record must exist


def cut_replication(leader: Node) -> None:
    """The standby hears no more, and can come back only by what it has not heard."""
    with psycopg.connect(
        f"postgresql://postgres@127.0.0.1:{leader.port}/postgres", autocommit=True
    ) as inside:
        inside.execute("ALTER ROLE replicator NOLOGIN")
        inside.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        wait_until(lambda: inside.execute("SELECT count(*) FROM pg_stat_replication").fetchone() == (0,))


async def anchored(at: House) -> None:
    """All records that are closed now are sealed, and their head is in the vault."""
    at.run("audit", "seal", "--once")
    await until(
        lambda: (
            "ok       sealing" in affidavit("doctor", data_dir=at.folder, DATABASE_URL=at.cluster.url).stdout
        )
    )


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


async def settled(at: House, load: Load) -> Figures:
    """Once nothing is open and nothing waits in the spool."""
    await until(lambda: is_settled(at))
    names = [told.request_id for told in load.told]
    rows = Records(at.cluster.url).where("request_id = ANY(%s)", names)
    found = Counter(str(row["request_id"]) for row in rows)
    written = sorted(row["timestamp"] for row in rows if not row["spooled"])
    return Figures(
        asked=len(load.told),
        refused=Counter(problem(told) for told in load.told if problem(told)),
        worst_s=max(told.told_at - told.asked_at for told in load.told),
        without_row=sum(told.status == 200 and not found[told.request_id] for told in load.told),
        twice=sum(count > 1 for count in found.values()),
        spooled=sum(row["spooled"] for row in rows),
        without_writes_s=max(
            (after - before).total_seconds() for before, after in itertools.pairwise(written)
        ),
    )


def problem(told: Told) -> str:
    found = re.search(r"urn:affidavit:problem:(\w+)", told.text)
    return found[1] if found else "" if told.status == 200 else str(told.status)


def is_settled(at: House) -> bool:
    if any(path.stat().st_size for path in (at.folder / "spool").glob("*.spool")):
        return False
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(at.cluster.url) as connection:
        return connection.execute("SELECT NOT EXISTS (SELECT FROM audit_open)").fetchone() == (True,)
    return False
