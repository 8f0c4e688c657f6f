"""The application in this process, so that a part of it can be broken."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.routing import BaseRoute

from engine.house import House
from engine.http import routes
from engine.http.app import create_app


@asynccontextmanager
async def application(
    house: House, *, key: str | None = None, address: str = "127.0.0.1", **parts: Any
) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """The application with these parts, and a client that has this key and this address."""
    app = create_app(lambda: nullcontext(replace(house, **parts)), add_routes=_add_routes)
    async with app.router.lifespan_context(app) as state:
        assert state is not None

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app(scope | {"state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(with_state, raise_app_exceptions=False, client=(address, 1))
        headers = {"Authorization": f"Bearer {key}"} if key else None
        async with httpx.AsyncClient(transport=transport, base_url="http://house", headers=headers) as client:
            yield app, client


def _add_routes(app: FastAPI) -> None:
    app.router.routes.extend(_routes())


@cache
def _routes() -> list[BaseRoute]:
    """Made once: their schemas take a tenth of a core's second, and they know nothing of a house."""
    made = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    routes.add_routes(made)
    return made.routes
