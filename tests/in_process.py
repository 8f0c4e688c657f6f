"""The application in this process, so that a part of it can be broken."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import httpx
from fastapi import FastAPI

from engine.house import House
from engine.http.app import create_app


@asynccontextmanager
async def application(house: House, **parts: Any) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """In this process, so that a part can be broken."""
    app = create_app(lambda: nullcontext(replace(house, **parts)))
    async with app.router.lifespan_context(app) as state:
        assert state is not None

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app(scope | {"state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(with_state, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://house") as client:
            yield app, client
