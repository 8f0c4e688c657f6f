"""Witnesses of a test's own: the real program in threads, and the policy that names them."""

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import psycopg

from audit.heads.head import log_keys
from audit.heads.policy import parse_policy
from audit.proof.keys import PublicKey
from audit.sealing.publication import Witnessing
from audit.witness.__main__ import opened
from audit.witness.server import WitnessServer
from engine.providers.witnesses import HttpWitnesses
from tests.logs.sealed_log import SealedLog


def origin_of(log: SealedLog) -> str:
    with psycopg.connect(log.url) as connection:
        ((origin,),) = connection.execute("SELECT origin FROM audit_origin").fetchall()
    return str(origin)


@contextmanager
def running(
    log: SealedLog, folder: Path, count: int = 1, keys: Sequence[PublicKey] = ()
) -> Iterator[list[WitnessServer]]:
    """That know the log's keys, or these."""
    texts = [str(key) for key in log_keys(origin_of(log), keys or log.keys)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(_served(texts, folder / f"w{n}", f"witness.example/w{n}"))
            for n in range(count)
        ]


@contextmanager
def _served(keys: Sequence[str], folder: Path, name: str) -> Iterator[WitnessServer]:
    server = opened(keys, folder, name, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def address(server: WitnessServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def policy_text(servers: Sequence[WitnessServer], threshold: str = "all") -> str:
    lines = [f"witness w{n} {server.witness.public} {address(server)}/" for n, server in enumerate(servers)]
    members = " ".join(f"w{n}" for n in range(len(servers)))
    return "\n".join([*lines, f"group us {threshold} {members}", "quorum us", ""])


@asynccontextmanager
async def witnessing(
    policy: str, *, is_required: bool = False, timeout_s: float = 5
) -> AsyncIterator[Witnessing]:
    network = HttpWitnesses(timeout_s)
    try:
        yield Witnessing(parse_policy(policy), network, is_required)
    finally:
        await network.close()


async def seal(log: SealedLog, policy: str, *, is_required: bool = False, timeout_s: float = 5) -> str:
    """As a process that begins anew; returns why sealing stopped."""
    async with witnessing(policy, is_required=is_required, timeout_s=timeout_s) as asked:
        async with log.sealer(witnessing=asked) as sealer:
            await sealer.seal_once()
            assert sealer.failures == {}
            return sealer.stopped
