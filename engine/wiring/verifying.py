"""The process that verifies for the console: it takes a database, tells how far it is, and gives what the run's record says."""

import asyncio
import json
import os
import pickle
import signal
import time
from typing import Any

from audit import worker
from audit.checking.evidence import EVER
from audit.coverage.verifications import about
from audit.errors import AuditError
from audit.progress import Progress
from audit.proof.keys import read_public_keys
from engine.errors import AffidavitError
from engine.signing import public_keys_file
from engine.storage.database import Database
from engine.wiring.audit_log import watch_of
from engine.wiring.verification import TOLD_EVERY_S, verified

NICE = 10  # readers get the processor first


async def _verify(database: Database, show: Progress) -> dict[str, Any]:
    began_s = time.monotonic()
    try:
        keys = read_public_keys(public_keys_file(database.settings))
        watch = await watch_of(database.settings, database)
        report = await asyncio.to_thread(verified, database, keys, watch, EVER, show)
    except (AffidavitError, AuditError, OSError) as failure:
        return {"verdict": None, "failed": str(failure)}
    return about(report, None, None, time.monotonic() - began_s)


def _run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(NICE)
    source, sink = worker.channel()
    said_at = 0.0

    def show(what: str, done: int, of: int) -> None:
        nonlocal said_at
        if done == of or time.monotonic() - said_at > TOLD_EVERY_S / 2:
            said_at = time.monotonic()
            worker.send(sink, worker.NOTICE, f"{what} {done} {of}".encode())

    def answer(_: bytes, request: bytes) -> worker.Message:
        database: Database = pickle.loads(request)  # noqa: S301  from the process that serves
        return b"", json.dumps(asyncio.run(_verify(database, show))).encode()

    worker.serve(source, sink, answer)


if __name__ == "__main__":
    _run()
