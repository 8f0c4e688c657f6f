"""Three engines under load, and each part of their house in turn killed, cut off or rolled: no answer without a row, none twice.

`make campaign` takes a round for each of CAMPAIGN_ROUNDS: one of two minutes, twenty of three quarters of an hour. The end prints what share of the
requests each fault refused.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.storage.data_folder import ExclusiveLock
from tests.campaigns.machines.faults import Strike, suffered
from tests.campaigns.machines.house import House, house, needs_machines
from tests.conftest import CAMPAIGN_ROUNDS
from tests.upstreams.s3 import Fault

ROUNDS = CAMPAIGN_ROUNDS or 1

pytestmark = needs_machines


@contextmanager
def engine_killed(house: House) -> Iterator[None]:
    house.engines[1].kill()
    yield
    house.engines[1].start()


@contextmanager
def engines_rolled(house: House) -> Iterator[None]:
    """One after the other, as an upgrade does."""
    for engine in house.engines:
        engine.stop()
        engine.start()
    yield


@contextmanager
def postgres_restarted(house: House) -> Iterator[None]:
    """At once, and nobody can start it meanwhile."""
    with ExclusiveLock(house.postgres._lock):
        house.postgres._control("stop", "--mode=immediate")
        yield
    house.postgres.start()


@contextmanager
def engine_cut_off_from_postgres(house: House) -> Iterator[None]:
    with house.engines[2].cut_off_from_postgres():
        yield


@contextmanager
def postgres_cut_off(house: House) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for engine in house.engines:
            stack.enter_context(engine.cut_off_from_postgres())
        yield


@contextmanager
def redis_master_killed(house: House) -> Iterator[None]:
    master = house.redis.master()
    master.kill()
    yield
    house.redis.wait_for_another_master(master)
    master.start()
    house.redis.wait_for_replicas()


@contextmanager
def redis_master_cut_off(house: House) -> Iterator[None]:
    master = house.redis.master()
    master.freeze()
    yield
    house.redis.wait_for_another_master(master)
    master.thaw()
    house.redis.wait_for_replicas()


@contextmanager
def qdrant_killed(house: House) -> Iterator[None]:
    house.qdrant.kill()
    yield
    house.qdrant.start()


@contextmanager
def qdrant_cut_off(house: House) -> Iterator[None]:
    with house.qdrant_network.cut():
        yield


def bucket(fault: Fault) -> Strike[House]:
    @contextmanager
    def strike(house: House) -> Iterator[None]:
        house.bucket.judge = lambda _method, _path: fault
        yield
        house.bucket.judge = lambda _method, _path: None

    return strike


FAULTS: dict[str, Strike[House]] = {
    "engine killed": engine_killed,
    "engines rolled, one by one": engines_rolled,
    "PostgreSQL restarted": postgres_restarted,
    "PostgreSQL cut off from one engine": engine_cut_off_from_postgres,
    "PostgreSQL cut off from all": postgres_cut_off,
    "Redis master killed": redis_master_killed,
    "Redis master cut off": redis_master_cut_off,
    "Qdrant killed": qdrant_killed,
    "Qdrant cut off": qdrant_cut_off,
    "bucket refuses": bucket("503"),
    "bucket hangs": bucket("hang"),
}


@pytest.fixture(scope="module")
def machines() -> Iterator[House]:
    with house() as made:
        yield made


async def test_whichever_part_fails_no_answer_is_without_its_row_and_none_has_two(machines: House) -> None:
    report = await suffered(machines, FAULTS, ROUNDS)
    for name in (
        "bucket refuses",
        "bucket hangs",
        "PostgreSQL restarted",
        "PostgreSQL cut off from one engine",
    ):
        assert all(one.is_answered for one in report.told[name]), name
