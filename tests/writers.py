"""Ledgers for tests: with a key of their own, and with a spool where one is named."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg_pool import AsyncConnectionPool

from audit.keys import SigningKey
from audit.ledger import Ledger, Spooling
from engine.wiring import now

KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
MEBIBYTE = 1024 * 1024


def ledger_on(
    pool: AsyncConnectionPool, folder: Path | None = None, *, bytes_max: int = MEBIBYTE, within_s: float = 5.0
) -> Ledger:
    return Ledger(pool, KEY, now, within_s=within_s, spooling=Spooling(folder, bytes_max) if folder else None)
