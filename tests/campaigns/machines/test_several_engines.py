"""Three engines on machines of their own are one house: what one of them is told holds for all."""

import asyncio
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from audit.proof.keys import read_public_keys
from tests.campaigns.machines.house import Engine, House, house, needs_machines, share_keys
from tests.campaigns.machines.readers import crowd, wrong_in
from tests.command_line import affidavit

ASK = {"query": "What does an IMU measure?"}
SOON_S = 60
PROMISED_S = 1.0  # so soon each engine knows what another was told
PARTS = ("gearbox", "gyroscope", "gripper")

pytestmark = needs_machines


@pytest.fixture(scope="module")
def machines() -> Iterator[House]:
    with house() as made:
        yield made


def asking(engine: Engine, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.url, headers={"Authorization": f"Bearer {key}"}, timeout=30)


async def statuses(house: House, key: str) -> list[int]:
    """Of one question to each engine, at the same moment."""

    async def ask(engine: Engine) -> int:
        async with asking(engine, key) as client:
            return (await client.post("/v1/query", json=ASK)).status_code

    return list(await asyncio.gather(*map(ask, house.engines)))


# Seen red with FRESH_S = 5 in `engine/outage/stale_cache.py`.
async def test_a_key_that_is_revoked_through_one_engine_is_refused_by_all_within_a_second(
    machines: House,
) -> None:
    key = machines.make_key(client="revoked")
    assert await statuses(machines, key) == [200] * 3
    revoked = await asyncio.to_thread(machines.engines[2].command, "keys", "revoke", key.split("_")[1])
    assert revoked.returncode == 0, revoked.stderr
    await asyncio.sleep(PROMISED_S)
    assert await statuses(machines, key) == [401] * 3


def write_edition(folder: Path, mark: str) -> Path:
    folder.mkdir(exist_ok=True)
    about = (
        f"The {part} of the Zorblat walker is painted {mark} and weighs {number} kilograms."
        for number, part in enumerate(PARTS, 3)
    )
    text = "\n\n".join(f"## The {part}\n\n{said}" for part, said in zip(PARTS, about, strict=True))
    (folder / "zorblat.md").write_text(f"# The Zorblat walker\n\n{text}\n")
    return folder


# Seen red with FRESH_S = 60 in `engine/outage/stale_cache.py`: one answered from the old edition.
async def test_a_new_edition_is_answered_by_all_and_no_answer_mixes_two(
    machines: House, tmp_path: Path
) -> None:
    def publish(number: int, mark: str) -> None:
        folder = write_edition(tmp_path / "book", mark)
        done = machines.engines[number].command("ingest", folder, "--book", "zorblat")
        assert done.returncode == 0, done.stdout + done.stderr

    over, seen = asyncio.Event(), list[tuple[float, dict[str, Any]]]()

    async def ask(engine: Engine) -> None:
        async with asking(engine, machines.key) as client:
            while not over.is_set():
                asked_at = time.monotonic()
                response = await client.post(
                    "/v1/books/zorblat/query",
                    json={
                        "query": "What colour are the gearbox, the gyroscope and the gripper of the Zorblat walker painted?"
                    },
                )
                seen.append((asked_at, response.json()))

    await asyncio.to_thread(publish, 0, "crimson")
    async with asyncio.TaskGroup() as group:
        for engine in machines.engines:
            group.create_task(ask(engine))
        await asyncio.to_thread(publish, 1, "turquoise")
        published_at = time.monotonic() + PROMISED_S
        async with asyncio.timeout(SOON_S):
            while sum(asked_at > published_at for asked_at, _ in seen) < 3 * len(machines.engines):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        over.set()
    marks = [set(re.findall("crimson|turquoise", json.dumps(body))) for _, body in seen]
    assert max(map(len, marks)) == 1
    assert {frozenset(found) for found in marks} == {frozenset({"crimson"}), frozenset({"turquoise"})}
    late = [found for (asked_at, _), found in zip(seen, marks, strict=True) if asked_at > published_at]
    assert all(found == {"turquoise"} for found in late)


# Seen red with limits in memory: all sixty got through.
async def test_a_limit_counts_over_all_engines(machines: House) -> None:
    key = machines.make_key("--limit", "30/hour", client="limited")

    async def ask(engine: Engine) -> list[int]:
        async with asking(engine, key) as client:
            return [(await client.post("/v1/query", json=ASK)).status_code for _ in range(20)]

    told = await asyncio.gather(*map(ask, machines.engines))
    assert Counter(status for each in told for status in each) == {200: 30, 429: 30}


async def test_the_signing_key_is_rotated_while_all_write(machines: House, tmp_path: Path) -> None:
    first, *others = machines.engines

    def rotate() -> None:
        assert first.command("audit", "key", "--new").returncode == 0
        share_keys(first, others, ["signing.key.pub"])  # before anybody signs with it
        for engine in machines.engines:
            share_keys(first, [each for each in others if each is engine])
            engine.stop()
            engine.start()

    async with crowd(machines) as readers:
        await asyncio.sleep(1)
        await asyncio.to_thread(rotate)
    await asyncio.to_thread(machines.settle)
    assert list(wrong_in(machines, readers.told)) == []
    keys = {row["key_id"] for row in machines.fetch("SELECT key_id FROM audit_keys")}
    assert len(keys) >= 2
    assert (await asyncio.to_thread(machines.verify))["verdict"] == "VALID"
    newest = read_public_keys(first.data / "signing.key.pub")[-1]
    for engine in machines.engines:
        async with asking(engine, machines.key) as client:
            body = (await client.post("/v1/query", json=ASK)).json()
        assert body["receipt"]["key_id"] == newest.key_id
        answer = tmp_path / "answer.json"
        answer.write_text(json.dumps(body))
        checked = affidavit("audit", "check", answer, "--public-key", first.data / "signing.key.pub")
        assert "The receipt is genuine" in checked.stdout


# Seen red with a `_take_over` in the ledger that finds no file: the answers stayed on the disk.
async def test_the_spool_of_an_engine_that_is_lost_for_good_is_drained_by_another(
    machines: House, tmp_path: Path
) -> None:
    first, *_, lost = machines.engines
    async with crowd(machines) as readers:
        await readers.wait_for_answers(3, engine=2)  # it knows the key and the edition by then
        with lost.cut_off_from_postgres():
            await readers.wait_for_answers(10, engine=2)
            await asyncio.to_thread(lost.kill)
    spool = tmp_path / "disk" / "spool"
    shutil.copytree(lost.data / "spool", spool)
    shutil.rmtree(lost.data / "spool")
    waiting = sum(file.stat().st_size for file in spool.glob("*.spool"))
    assert waiting and any("answers without" in wrong for wrong in wrong_in(machines, readers.told))
    drained = await asyncio.to_thread(first.command, "audit", "drain", spool)
    assert drained.returncode == 0, drained.stdout + drained.stderr
    print(drained.stdout)
    assert list(wrong_in(machines, readers.told)) == []
    again = await asyncio.to_thread(first.command, "audit", "drain", spool)
    assert "no spool file" in again.stderr
    lost.start()
    await asyncio.to_thread(machines.settle)
    assert (await asyncio.to_thread(machines.verify))["verdict"] == "VALID"


@pytest.mark.parametrize("off_s", [420.0, -420.0])
async def test_a_clock_that_is_minutes_off_leaves_no_row_unsealed(machines: House, off_s: float) -> None:
    wrong = machines.engines[1]
    wrong.stop()
    wrong.start(clock_off_s=off_s)
    async with crowd(machines) as readers:
        await readers.wait_for_answers(5, engine=1)
    await asyncio.to_thread(machines.settle)
    assert list(wrong_in(machines, readers.told)) == []
    assert (await asyncio.to_thread(machines.verify))["verdict"] == "VALID"
    off = machines.fetch(
        "SELECT count(*) AS rows FROM audit_logs WHERE abs(extract(epoch FROM timestamp - now())) > 300 AND request_id = ANY(%s)",
        [told.request_id for told in readers.told if told.engine == 1],
    )
    assert off[0]["rows"] > 0
    wrong.stop()
    wrong.start()
