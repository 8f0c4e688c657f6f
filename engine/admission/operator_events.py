"""An audit trail of operators' actions, in the same log as requests, so that they are sealed and proven alike."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from audit.proof.record import Trail
from engine.errors import AuditUnavailableError
from engine.ports import Clock, NewId

_NOT_OPENED = (
    "The action cannot be recorded, so it was not started and nothing was changed. Please try again shortly."
)
_NOT_CLOSED = "The action was started, but its end could not be recorded, so it may not have taken effect. Run it again."


class UnrecordedError(AuditUnavailableError, LedgerUnavailableError):
    """The action cannot be recorded. It is a ledger error too, for callers in `audit`, which does not know requests."""


@dataclass(frozen=True, slots=True)
class OperatorEvents:
    """Writes one row for each action, and allows no action without a row."""

    open_ledger: Callable[[], AbstractAsyncContextManager[Ledger]]
    clock: Clock
    new_id: NewId

    @asynccontextmanager
    async def event(
        self, command: str, *, client_id: str | None = None, key_id: str | None = None, **about: Any
    ) -> AsyncIterator[Trail]:
        """A write-ahead record: the intent is durable before the block begins, and the row when the block has ended.

        The caller commits afterwards, or notes then that the action is done. A block that fails leaves its row too.
        """
        trail = Trail(
            log_id=self.new_id(), query_id=self.new_id(), timestamp=self.clock(),
            endpoint=f"affidavit {command}", client_id=client_id, key_id=key_id, details=about,
        )  # fmt: skip
        is_opened = False
        try:
            async with self.open_ledger() as ledger:
                await ledger.open(trail)
                is_opened = True
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
            raise UnrecordedError(_NOT_CLOSED if is_opened else _NOT_OPENED) from failure
