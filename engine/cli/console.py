"""Serves the console's pages alone, on this machine."""

import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext

import uvicorn

from engine import wiring
from engine.connections import listening
from engine.http.app import create_app
from engine.http.console.serving import add_console
from engine.settings import Settings
from engine.storage.database import Database
from engine.terminal import browser

HOST = "127.0.0.1"


async def serve(settings: Settings, database: Database, port: int, *, opens: bool) -> None:
    """Until it is interrupted."""
    bound = listening.listen(HOST, port)
    async with wiring.open_console(settings, database) as (house, code):
        address = f"http://{HOST}:{bound.getsockname()[1]}/console"

        def say_ready() -> None:
            print(f"The console is at {address}\nCode to sign in: {code}")
            if settings.oidc.issuer:
                print(
                    "(Single sign-on is for the console of `affidavit serve`: who reads here is the database's login.)"
                )
            print("(It only reads. Press Ctrl-C to stop.)", flush=True)
            if opens:
                browser.open_for_person(address, sys.stdout)

        app = create_app(lambda: nullcontext(house), add_routes=add_console)
        config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, lifespan="on")
        await _ConsoleServer(config, say_ready).serve(sockets=[bound])


class _ConsoleServer(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, say_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_ready = say_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._say_ready()
