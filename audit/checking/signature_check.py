"""Checks the signatures of a batch's rows in a second thread, while the batch before is being hashed. Pure.

The check of an Ed25519 signature lets another thread work meanwhile, so with two cores it costs no time by the clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

from audit.proof.keys import PublicKey
from audit.proof.row_signature import is_row_signed


class LogRow(NamedTuple):
    """A row of audit_logs as JSON, and its signature."""

    text: str
    signature: bytes | None


class SealedRows(Protocol):
    @property
    def rows(self) -> Mapping[str, Sequence[LogRow]]: ...

    @property
    def sealed(self) -> Mapping[str, bytes]:
        """The leaves that these rows must have, by log_id."""
        ...


Rows = TypeVar("Rows", bound=SealedRows)
SignedRows = frozenset[tuple[str, bytes | None]]  # log_id and signature of each row whose signature is valid


def with_signatures(batches: Iterable[Rows], keys: Sequence[PublicKey]) -> Iterator[tuple[Rows, SignedRows]]:
    waiting: tuple[Rows, Future[SignedRows]] | None = None
    with ThreadPoolExecutor(1) as checker:
        for batch in batches:
            ready, waiting = waiting, (batch, checker.submit(_signed, batch, keys))
            if ready:
                yield ready[0], ready[1].result()
        if waiting:
            yield waiting[0], waiting[1].result()


def _signed(batch: SealedRows, keys: Sequence[PublicKey]) -> SignedRows:
    sealed = batch.sealed
    return frozenset(
        (log_id, row.signature)
        for log_id, rows in batch.rows.items()
        for row in rows
        if log_id in sealed and is_row_signed(row.signature, log_id, sealed[log_id], keys)
    )
