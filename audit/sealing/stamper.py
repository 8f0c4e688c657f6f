"""The daily time stamp: has an authority sign that the newest head of the log of heads existed (RFC 3161).

It runs beside the sealer and never in its way. A token is verified as an auditor would before it is kept; a lock in the
database spares several sealers to ask for the same one.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from cryptography import x509
from psycopg_pool import AsyncConnectionPool

from audit.errors import AuditError, TimeStampError
from audit.proof.keys import PublicKey
from audit.sealing.log_tables import TRY_LOCK, put_once, take_lock, transaction
from audit.stamps.stored import chain_key, encode_chain, last_stamp, newest_head, stamp_key
from audit.stamps.token import verify_stamp
from audit.vault import Vault

STAMPING = "stamp"
EVERY = timedelta(days=1)
LOOK_S = 60.0  # whether one is due; that takes no time
RETRY_S = 300.0
CLOCKS_DIFFER = timedelta(minutes=5)

log = logging.getLogger(__name__)


class TimeStampAuthority(Protocol):
    """Port: an authority, over any network."""

    async def stamp(self, text: bytes) -> tuple[bytes, int]:
        """Its response over SHA-256 of this text, as it came, and the nonce that must be in it. `AuthorityError` if there is none."""
        ...


@dataclass(slots=True)
class Stamper:
    pool: AsyncConnectionPool
    vault: Vault
    authority: TimeStampAuthority
    pinned: Callable[[], Sequence[x509.Certificate]]
    public_keys: Callable[[], Sequence[PublicKey]]
    clock: Callable[[], datetime]
    look_s: float = LOOK_S
    retry_s: float = RETRY_S
    errors: int = 0
    stamped_at: datetime | None = None  # as far as this process knows
    _trouble: str = ""

    @property
    def age_s(self) -> float:
        """Of the last stamp."""
        return (self.clock() - self.stamped_at).total_seconds() if self.stamped_at else math.inf

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """In the background until the block ends. What is under way then is given up: the next start asks again."""
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def run(self) -> None:
        while True:
            await self.try_once()
            await asyncio.sleep(self.retry_s if self._trouble else self.look_s)

    async def try_once(self) -> bool:
        """Whether a stamp was made. Logs a failure once when it begins and once when it is over."""
        trouble, is_made = "", False
        try:
            is_made = await self.stamp_if_due()
        except AuditError as failure:
            trouble = str(failure)
        except Exception as failure:  # noqa: BLE001  every failure is retried; a driver's message could repeat a row
            trouble = type(failure).__name__
        self.errors += bool(trouble)
        if trouble and trouble != self._trouble:
            log.warning("No time stamp was made: %s. It is tried again.", trouble)
        if self._trouble and not trouble:
            log.warning("Time stamps can be made again.")
        self._trouble = trouble
        return is_made

    async def stamp_if_due(self) -> bool:
        if not self._is_due():
            return False
        async with transaction(self.pool) as connection:
            if not await take_lock(connection, TRY_LOCK, STAMPING):
                return False
            pinned = self.pinned()
            found = await asyncio.to_thread(last_stamp, self.vault, pinned)
            self.stamped_at = found.time if found else None
            head = await asyncio.to_thread(newest_head, self.vault, self.public_keys())
            if head is None or not self._is_due():
                return False
            await self._stamp(*head, pinned)
        return True

    async def _stamp(self, size: int, text: bytes, pinned: Sequence[x509.Certificate]) -> None:
        """The chain first: no stamp may be in the vault that lacks a certificate."""
        asked_at = self.clock()
        response, nonce = await self.authority.stamp(text)
        stamp = verify_stamp(response, text, pinned)
        if stamp.nonce != nonce:
            raise TimeStampError("The authority sent a time stamp that was made for another request")
        if not asked_at - CLOCKS_DIFFER <= stamp.time <= self.clock() + CLOCKS_DIFFER:
            raise TimeStampError(
                f"The authority says that it is {stamp.time:%Y-%m-%d %H:%M:%S} UTC: compare the clocks"
            )
        chain = encode_chain(stamp.chain)
        await put_once(self.vault, chain_key(chain), chain)
        await put_once(self.vault, stamp_key(size, response), response)
        self.stamped_at = stamp.time

    def _is_due(self) -> bool:
        return self.stamped_at is None or self.clock() - self.stamped_at >= EVERY
