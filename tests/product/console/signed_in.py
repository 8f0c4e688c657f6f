"""Browsers without a screen that are signed in to the console."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from engine import wiring
from engine.house import House
from engine.storage.database import Database
from tests.in_process import application

HERE = "http://127.0.0.1"
ELSEWHERE = "https://console.example"
RATE = "100000/minute"


async def key_of(database: Database, *scopes: str, client: str = "an auditor") -> str:
    async with wiring.open_keys(database) as keys:
        return await keys.create(client, scopes or ["audit"], RATE)


@asynccontextmanager
async def browser_at(house: House, base: str = HERE, **parts: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Its forms come from the console's own pages."""
    async with application(house, **parts) as (_, client):
        client.base_url = httpx.URL(base)
        client.headers["Origin"] = base
        yield client


async def sign_in(client: httpx.AsyncClient, key: str, **fields: str) -> httpx.Response:
    return await client.post("/console/sign-in", data={"key": key} | fields)


@asynccontextmanager
async def signed_in(house: House, key: str, **parts: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser_at(house, **parts) as client:
        assert (await sign_in(client, key)).status_code == 303
        yield client


def form_token_in(html: str) -> str:
    return html.partition('name="form_token" value="')[2].partition('"')[0]
