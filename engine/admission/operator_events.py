"""Where what the operator does is recorded: in the log of the requests, so that it is sealed and proven like them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from audit.proof.record import Trail
from engine.errors import AuditUnavailableError
from engine.ports import Clock, NewId

_UNRECORDED = "The change cannot be recorded, so nothing was changed. Please try again shortly."
_UNENDED = (
    "What was begun could not be recorded to its end, so perhaps nothing was changed: run the command again."
)


class UnrecordedError(AuditUnavailableError, LedgerUnavailableError):
    """Also the ledger's own error, for those who know nothing of requests."""


@dataclass(frozen=True, slots=True)
class OperatorEvents:
    """A row for each event, and none without one."""

    open_ledger: Callable[[], AbstractAsyncContextManager[Ledger]]
    clock: Clock
    new_id: NewId

    @asynccontextmanager
    async def event(
        self, command: str, *, client_id: str | None = None, key_id: str | None = None, **about: Any
    ) -> AsyncIterator[Trail]:
        """What is going to be done is durable before it begins, and its row when the block has ended: whoever commits, or
        notes down that it is done, does so afterwards. What fails in between leaves its row too."""
        trail = Trail(
            log_id=self.new_id(), query_id=self.new_id(), timestamp=self.clock(),
            endpoint=f"affidavit {command}", client_id=client_id, key_id=key_id, filters=about,
        )  # fmt: skip
        is_begun = False
        try:
            async with self.open_ledger() as ledger:
                await ledger.open(trail)
                is_begun = True
                try:
                    yield trail
                    trail.outcome, trail.success = "recorded", True
                except BaseException as failure:
                    trail.outcome, trail.success = "failed", False
                    trail.error_message = f"It was not done [{type(failure).__name__}]"
                    raise
                finally:
                    await ledger.close(trail, self.clock())
        except (LedgerUnavailableError, TimeoutError) as failure:
            raise UnrecordedError(_UNENDED if is_begun else _UNRECORDED) from failure
