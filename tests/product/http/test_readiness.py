"""Who asks whether questions are answered needs no key, so it must cost nothing to be asked often."""

import asyncio
from dataclasses import replace
from typing import Any

from engine.errors import EmbedderUnavailableError
from engine.house import House
from engine.models import Vector
from tests.in_process import application

ADDRESSES = ("/readyz", "/health", "/api/health")


class Counting:
    """An embedder that counts what it is asked, and may fail."""

    def __init__(self, embedder: Any) -> None:
        self._embedder = embedder
        self.asked, self.is_gone = 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    async def embed_query(self, text: str) -> Vector:
        self.asked += 1
        if self.is_gone:
            raise EmbedderUnavailableError
        found: Vector = await self._embedder.embed_query(text)
        return found


# Seen red with a look for each request: an embedding, which a vendor charges for, for whoever asked.
async def test_however_many_ask_without_a_key_all_is_looked_at_once(house: House) -> None:
    embedder = Counting(house.engine.retriever.embedder)
    engine = replace(house.engine, retriever=replace(house.engine.retriever, embedder=embedder))
    async with application(house, engine=engine) as (_, client):
        told = await asyncio.gather(*(client.get(address) for address in ADDRESSES * 10))
        told += [await client.get(address) for address in ADDRESSES]
        assert {response.status_code for response in told} == {200}
        assert embedder.asked == 1


# Seen red with bad news kept as well.
async def test_the_end_of_an_outage_is_told_at_once(house: House) -> None:
    embedder = Counting(house.engine.retriever.embedder)
    engine = replace(house.engine, retriever=replace(house.engine.retriever, embedder=embedder))
    async with application(house, engine=engine) as (_, client):
        embedder.is_gone = True
        assert [(await client.get(address)).status_code for address in ADDRESSES] == [503] * 3
        embedder.is_gone = False
        assert [(await client.get(address)).status_code for address in ADDRESSES] == [200] * 3
