"""Three engines on stores that are clusters themselves: PostgreSQL under Patroni with a synchronous standby, three Qdrant peers with
two replicas behind HAProxy, Redis with Sentinel, SeaweedFS. Each part fails in turn under load: no answer without a row, none twice.

A round takes about five minutes, so CI leaves it out: `make campaign CAMPAIGN_ROUNDS=12` is the hour.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.campaigns.machines.faults import Strike, suffered
from tests.campaigns.machines.house import ENGINES, QUICK, Engine, Machines, needs_machines, serving
from tests.conftest import CAMPAIGN_ROUNDS, free_port
from tests.upstreams import qdrant_server, s3
from tests.upstreams.patroni import Cluster, Node, patroni, wait_until
from tests.upstreams.qdrant_server import RealQdrant
from tests.upstreams.redis_sentinel import redis_sentinel

pytestmark = [
    needs_machines,
    pytest.mark.skipif(CAMPAIGN_ROUNDS == 1, reason="minutes long: make campaign CAMPAIGN_ROUNDS=2"),
]
REPLICATED = {"AFFIDAVIT_QDRANT__SHARDS": "3", "AFFIDAVIT_QDRANT__REPLICAS": "2"}


@dataclass(slots=True, kw_only=True)
class ReplicatedHouse(Machines):
    postgres: Cluster
    peers: list[RealQdrant]


@pytest.fixture(scope="module")
def house() -> Iterator[ReplicatedHouse]:
    with ExitStack() as stack:
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="affidavit-house-", ignore_cleanup_errors=True)
        )
        peers = stack.enter_context(qdrant_server.cluster())
        index = stack.enter_context(qdrant_server.balanced(peers))
        redis = stack.enter_context(redis_sentinel())
        bucket = stack.enter_context(s3.serving("SeaweedFS"))
        postgres = stack.enter_context(patroni(is_synchronous=True))
        given = bucket.environment | REPLICATED | QUICK | {
            "DATABASE_URL": postgres.url, "QDRANT_URL": index, "AFFIDAVIT_PROVIDERS__INDEX": "qdrant", "REDIS_URL": redis.url,
        }  # fmt: skip
        engines = [
            Engine(Path(name) / f"engine-{number}", free_port(), os.environ | given)
            for number in range(ENGINES)
        ]
        made = ReplicatedHouse(postgres=postgres, peers=peers, redis=redis, bucket=bucket, engines=engines)
        stack.enter_context(serving(made))
        yield made


@contextmanager
def leader_killed(house: ReplicatedHouse) -> Iterator[None]:
    leader = house.postgres.leader()
    leader.kill()
    yield
    wait_until(house.postgres.other(leader).leads)
    leader.start()
    _wait_for_standby(leader)


@contextmanager
def leader_cut_off(house: ReplicatedHouse) -> Iterator[None]:
    leader = house.postgres.leader()
    with leader.cut_off():
        yield
        wait_until(house.postgres.other(leader).leads)
    _wait_for_standby(leader)


@contextmanager
def standby_killed(house: ReplicatedHouse) -> Iterator[None]:
    standby = house.postgres.other(house.postgres.leader())
    standby.kill()
    yield
    standby.start()
    _wait_for_standby(standby)


@contextmanager
def peer_killed(house: ReplicatedHouse) -> Iterator[None]:
    house.peers[1].kill()
    yield
    house.peers[1].start()
    house.peers[1].wait_until_ready()


@contextmanager
def peer_hangs(house: ReplicatedHouse) -> Iterator[None]:
    with house.peers[2].hanging():
        yield
    house.peers[2].wait_until_ready()


@contextmanager
def peers_restarted(house: ReplicatedHouse) -> Iterator[None]:
    """One after the other, as an upgrade does."""
    for peer in house.peers:
        peer.kill()
        peer.start()
        peer.wait_until_ready()
    yield


@contextmanager
def master_killed(house: ReplicatedHouse) -> Iterator[None]:
    master = house.redis.master()
    master.kill()
    yield
    house.redis.wait_for_another_master(master)
    master.start()
    house.redis.wait_for_replicas()


@contextmanager
def engine_killed(house: ReplicatedHouse) -> Iterator[None]:
    house.engines[1].kill()
    yield
    house.engines[1].start()


@contextmanager
def engines_rolled(house: ReplicatedHouse) -> Iterator[None]:
    for engine in house.engines:
        engine.stop()
        engine.start()
    yield


@contextmanager
def bucket_hangs(house: ReplicatedHouse) -> Iterator[None]:
    house.bucket.judge = lambda _method, _path: "hang"
    yield
    house.bucket.judge = lambda _method, _path: None


FAULTS: dict[str, Strike[ReplicatedHouse]] = {
    "PostgreSQL: leader killed": leader_killed,
    "PostgreSQL: leader cut off": leader_cut_off,
    "PostgreSQL: standby killed": standby_killed,
    "Qdrant: a peer killed": peer_killed,
    "Qdrant: a peer hangs": peer_hangs,
    "Qdrant: peers restarted, one by one": peers_restarted,
    "Redis: master killed": master_killed,
    "engine killed": engine_killed,
    "engines rolled, one by one": engines_rolled,
    "bucket hangs": bucket_hangs,
}


async def test_whichever_replica_fails_no_answer_is_without_its_row_and_none_has_two(
    house: ReplicatedHouse,
) -> None:
    await suffered(house, FAULTS, CAMPAIGN_ROUNDS)


def _wait_for_standby(node: Node) -> None:
    wait_until(node.follows)
    wait_until(node.is_synchronous)
