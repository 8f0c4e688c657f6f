"""The event loop of a server: libuv's. It reads and writes a small message in half of the time of Python's own, and refusals
under load are little else."""

import asyncio


def of_server() -> asyncio.AbstractEventLoop:
    import uvloop  # noqa: PLC0415  commands need none

    return uvloop.new_event_loop()
