"""A real Qdrant server is killed, hangs, and loses or changes what it holds: readers get the right answer, or a refusal in words.

The truth is what the embedded index answers from the same edition. Over REST and over gRPC.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from shutil import copy
from typing import Any

import httpx
import pytest

from engine import wiring
from engine.errors import IndexDamagedError, IndexUnavailableError
from engine.house import House
from engine.providers import qdrant
from engine.providers.qdrant import QdrantIndex
from engine.settings import Settings
from engine.storage.database import Database
from ingest import watched_index
from tests.campaigns.same_answers import (
    BOOK,
    Said,
    loaded,
    published_in_edge,
    rebuilds,
    truth_of,
    with_qdrant,
)
from tests.command_line import affidavit
from tests.labelled import SAMPLE_BOOK, sample_questions
from tests.upstreams import qdrant_server
from tests.upstreams.qdrant_server import RealQdrant

SOON_S = 60.0
CHAPTER = "03-sensors-and-state-estimation.md"


@pytest.fixture(scope="module")
async def shelf(anyio_backend: str, database: Database) -> AsyncIterator[Database]:
    async with published_in_edge(database, SAMPLE_BOOK) as opened:
        yield opened


@pytest.fixture(scope="module")
async def truth(shelf: Database) -> dict[str, Said]:
    return await truth_of(shelf, [row["question"] for row in sample_questions()])


@pytest.fixture(scope="module")
def server() -> Iterator[RealQdrant]:
    with pytest.MonkeyPatch.context() as patch, qdrant_server.single() as started:
        patch.setattr(qdrant, "GRPC_PORT", started.grpc_port)
        patch.setattr(watched_index, "LOOK_S", 0.5)
        yield started


@pytest.fixture(params=["rest", "grpc"])
def chosen(shelf: Database, server: RealQdrant, request: pytest.FixtureRequest) -> Settings:
    prefer_grpc = str(request.param == "grpc").lower()
    return with_qdrant(shelf, server.url, AFFIDAVIT_QDRANT__PREFER_GRPC=prefer_grpc)


@pytest.fixture
async def house(chosen: Settings, shelf: Database) -> AsyncIterator[House]:
    async with wiring.open_house(chosen, shelf) as opened:
        await opened.watched_index.wait_until_searchable()
        yield opened


async def until_searchable(house: House) -> None:
    async with asyncio.timeout(SOON_S):
        await house.watched_index.wait_until_searchable()


async def until_ready(server: RealQdrant) -> None:
    server.start()
    await asyncio.to_thread(server.wait_until_ready)


async def ingest(chosen: Settings, shelf: Database, pages: Path, book: str) -> int:
    async with wiring.open_ingest(chosen, shelf, lambda *_: None) as opened:
        return (await opened.run([pages], book, "Another")).exit_code


# Seen red with a search that failed taken for one that found nothing, and with a server that is down taken for a damaged index.
async def test_a_server_that_is_killed_and_restarted_while_an_ingest_and_questions_run(
    chosen: Settings, shelf: Database, house: House, server: RealQdrant, truth: dict[str, Said],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    copy(SAMPLE_BOOK / CHAPTER, tmp_path)
    book, upserted, upsert = (
        f"another-{chosen.qdrant.prefer_grpc}".lower(),
        asyncio.Event(),
        QdrantIndex.upsert,
    )

    async def noticed(self: QdrantIndex, *arguments: Any) -> None:
        await upsert(self, *arguments)
        server.kill()
        upserted.set()

    with rebuilds() as rebuilt:
        async with loaded(house, truth, f"killed in an ingest, {request.node.name}") as load:
            monkeypatch.setattr(QdrantIndex, "upsert", noticed)
            with pytest.raises(IndexUnavailableError):
                await ingest(chosen, shelf, tmp_path, book)
            assert upserted.is_set()
            monkeypatch.undo()
            await load.answers(20)
            await until_ready(server)
            await load.answers(20)
            assert await ingest(chosen, shelf, tmp_path, book) == 0
            await until_searchable(house)
        assert load.refused_by_index == {IndexUnavailableError.__name__}
        assert rebuilt == []
    async with wiring.open_repair(chosen, shelf) as repair:
        for live in await repair.registry.live_indexes():
            assert await repair.examine(live) == ""


# Seen red with a search that failed taken for one that found nothing.
async def test_a_server_that_hangs_and_wakes_again(
    house: House, server: RealQdrant, truth: dict[str, Said], request: pytest.FixtureRequest
) -> None:
    async with loaded(house, truth, request.node.name) as load:
        with server.hanging():
            await load.answers(20)
        await load.answers(20)
        await until_searchable(house)
    assert load.refused_by_index == {IndexUnavailableError.__name__}


# Seen red with a search that failed taken for one that found nothing, and with a server that is down taken for a damaged index.
async def test_a_server_that_refuses_connections_is_noticed_at_once(
    house: House, server: RealQdrant, truth: dict[str, Said], request: pytest.FixtureRequest
) -> None:
    try:
        async with loaded(house, truth, request.node.name) as load:
            server.kill()
            await load.answers(50)
            assert (await house.parts())["book"] == "unavailable"
    finally:
        await until_ready(server)
    await until_searchable(house)
    assert load.refused_by_index == {IndexUnavailableError.__name__}


async def test_a_collection_that_is_deleted_while_it_serves_is_rebuilt(
    house: House, server: RealQdrant, truth: dict[str, Said], request: pytest.FixtureRequest
) -> None:
    with rebuilds() as rebuilt:
        async with loaded(house, truth, request.node.name) as load:
            delete_all(server)
            async with asyncio.timeout(SOON_S):
                while BOOK not in rebuilt:
                    await load.answers(1)
            await until_searchable(house)
            await load.answers(20)
    assert load.refused_by_index <= {IndexDamagedError.__name__, IndexUnavailableError.__name__}


def delete_all(server: RealQdrant) -> None:
    for collection in httpx.get(f"{server.url}/collections").json()["result"]["collections"]:
        change(server, "DELETE", collection["name"])


def lose_points(server: RealQdrant, collection: str, points: list[Any]) -> None:
    change(server, "POST", f"{collection}/points/delete", {"points": points})


def alter_payload(server: RealQdrant, collection: str, points: list[Any]) -> None:
    change(server, "POST", f"{collection}/points/payload", {"payload": {"position": 7777}, "points": points})


def alter_words(server: RealQdrant, collection: str, points: list[Any]) -> None:
    vectors = {"bm25": {"indices": [1], "values": [0.5]}}
    given = [{"id": point, "vector": vectors} for point in points]
    change(server, "PUT", f"{collection}/points/vectors", {"points": given})


def change(server: RealQdrant, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    url = f"{server.url}/collections/{path}"
    httpx.request(
        method, url, params={"wait": "true"} if body else {}, json=body, timeout=SOON_S
    ).raise_for_status()


Damage = Callable[[RealQdrant, str, list[Any]], None]
DAMAGES: dict[Damage, str] = {
    lose_points: r"it holds \d+ of \d+ passages",
    alter_payload: "0 passages are missing, 2 are altered, 0 are not of the book",
    alter_words: "0 passages are missing, 2 are altered, 0 are not of the book",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_an_operator_finds_and_mends_what_somebody_changed_in_the_server(
    shelf: Database, server: RealQdrant, damage: Damage
) -> None:
    environment = {
        "DATABASE_URL": shelf.url, "QDRANT_URL": server.url, "AFFIDAVIT_PROVIDERS__INDEX": "qdrant",
        "AFFIDAVIT_BOOKS__DEFAULT": BOOK,
    }  # fmt: skip

    def index(command: str) -> Any:
        return affidavit("index", command, "--book", BOOK, data_dir=shelf.settings.data_dir, **environment)

    assert index("rebuild").returncode == 0
    collection = f"affidavit-{BOOK}"
    listed = httpx.post(f"{server.url}/collections/{collection}/points/scroll", json={"limit": 2}).json()
    damage(server, collection, [point["id"] for point in listed["result"]["points"]])
    found = index("check")
    assert (found.returncode, bool(re.search(DAMAGES[damage], found.stdout + found.stderr))) == (1, True), (
        found
    )
    began = time.monotonic()
    assert index("rebuild").returncode == 0
    print(f"rebuilt in {time.monotonic() - began:.1f} s")
    assert index("check").returncode == 0
