"""Servers that speak a vendor's interface over real HTTP, for the vendor's own SDK."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from tests.conftest import free_port


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals to the test."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


@contextlib.asynccontextmanager
async def http(*routes: Route) -> AsyncIterator[str]:
    """These routes at an address of this machine, until the end of the block."""
    port = free_port()
    server = _Server(uvicorn.Config(Starlette(routes=routes), port=port, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await server.is_listening.wait()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving
