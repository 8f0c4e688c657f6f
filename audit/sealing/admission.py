"""Which unsealed rows may become leaves: those that the engine signed.

Rows of a version that did not sign are admitted once, before the first tree of the log says from where on its rows are
signed. The others stay where they are, for an auditor to see: they are counted here, and `affidavit audit verify` names each.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from uuid import UUID

from audit.proof.keys import PublicKey
from audit.proof.record import SIGNED_FROM
from audit.proof.row_signature import is_row_signed
from audit.sealing.log_tables import UnsealedRow

REMEMBERED_MAX = 200_000  # rejected signatures, some 20 MB: checking one again takes 60 µs

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RowAdmission:
    """`refused` has the rows that were not signed, as far as this process has met them."""

    public_keys: Callable[[], Sequence[PublicKey]]
    refused: set[tuple[datetime, UUID]] = field(default_factory=set)
    _met: set[tuple[datetime, UUID]] = field(default_factory=set)
    _rejected: set[bytes] = field(default_factory=set)
    _judged_by: Sequence[PublicKey] = ()

    async def signed(self, rows: Sequence[UnsealedRow]) -> list[UnsealedRow]:
        """Those with a valid signature. Checked in a thread, so that no request waits."""
        admitted = await asyncio.to_thread(self._signed, rows)
        if len(admitted) < len(rows):
            self._refuse({row.place for row in rows} - {row.place for row in admitted})
        return admitted

    def end_pass(self, *, is_full: bool) -> None:
        """A full search has met all that there are."""
        self.refused = self._met if is_full else self.refused | self._met
        self._met = set()

    def _refuse(self, places: set[tuple[datetime, UUID]]) -> None:
        if not self.refused and not self._met:
            log.error(
                "%s rows are not sealed, because the engine did not sign them; the first is %s. Run `affidavit audit verify`.",
                len(places), min(places)[1],
            )  # fmt: skip
        self._met |= places

    def _signed(self, rows: Sequence[UnsealedRow]) -> list[UnsealedRow]:
        keys = self.public_keys()
        if keys != self._judged_by:  # another engine had its new key before we had the public one
            self._rejected.clear()
            self._judged_by = keys
        return [row for row in rows if self._is_signed(row, keys)]

    def _is_signed(self, row: UnsealedRow, keys: Sequence[PublicKey]) -> bool:
        if row.signature is None:
            return False
        name = sha256(row.log_id.bytes + row.leaf_hash + row.signature).digest()[:16]
        if name in self._rejected:
            return False
        is_signed = is_row_signed(row.signature, str(row.log_id), row.leaf_hash, row.timestamp, keys)
        if not is_signed and len(self._rejected) < REMEMBERED_MAX:
            self._rejected.add(name)
        return is_signed


def of_older_versions(rows: Sequence[UnsealedRow]) -> list[UnsealedRow]:
    return [row for row in rows if row.signature is None and row.schema_version < SIGNED_FROM]
