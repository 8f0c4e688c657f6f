"""Servers that speak a vendor's interface over real HTTP, for the vendor's own SDK."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

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


class _BriefServer(_Server):
    """Ends at once. uvicorn itself looks ten times a second whether it is to end, and then gives its connections another
    tenth: hundreds of tests end a server or four."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ending = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.is_ending.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while state.connections or state.tasks:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.001)
        await self.lifespan.shutdown()


@contextlib.asynccontextmanager
async def http(*routes: Route) -> AsyncIterator[str]:
    """These routes at an address of this machine, until the end of the block."""
    async with listening(Starlette(routes=routes), lifespan="off") as url:
        yield url


@contextlib.asynccontextmanager
async def listening(application: Starlette, *, lifespan: Literal["on", "off"]) -> AsyncIterator[str]:
    """The application at an address of this machine, in this process."""
    port = free_port()
    server = _BriefServer(uvicorn.Config(application, port=port, log_level="warning", lifespan=lifespan))
    serving = asyncio.create_task(server.serve())
    await server.is_listening.wait()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.is_ending.set()
        await serving
