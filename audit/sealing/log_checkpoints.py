"""Signs and opens the checkpoints of one log: an opened one must be of the expected month and size of this very log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from psycopg_pool import AsyncConnectionPool

from audit.errors import NoteError, TreeMismatchError, UnfamiliarKeyError, UnknownKeyError
from audit.proof.checkpoint import Checkpoint, Link, open_note, sign_note
from audit.proof.keys import PublicKey, SigningKey
from audit.sealing.log_tables import fetch, transaction

_INSERT_KEY = (
    "INSERT INTO audit_keys (key_id, public_key, created_at) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
)


@dataclass(slots=True)
class LogCheckpoints:
    key: SigningKey
    public_keys: Callable[
        [], Sequence[PublicKey]
    ]  # read each time: another sealer may have a newer key already
    _origin: str = ""

    async def register(self, pool: AsyncConnectionPool, now: datetime) -> None:
        """Read the log's identity, and store the public key beside the log; once for each process."""
        if self._origin:
            return
        async with transaction(pool) as connection:
            key = self.key.public
            await connection.execute(_INSERT_KEY, (key.key_id, str(key), now))
            ((self._origin,),) = await fetch(connection, "SELECT origin FROM audit_origin")

    def sign(self, tree: Link, issued_at: datetime, previous: Link | None) -> str:
        checkpoint = Checkpoint(self._origin, tree.month, tree.size, tree.root, issued_at, previous)
        return sign_note(checkpoint, self.key)

    def open(self, month: date, size: int, note: str) -> Checkpoint:
        try:
            checkpoint = open_note(note, self.public_keys())
        except UnknownKeyError as wrong:
            raise UnfamiliarKeyError(f"{month:%Y-%m}: its checkpoint of size {size}: {wrong}") from None
        except NoteError as wrong:
            raise TreeMismatchError(f"{month:%Y-%m}: its checkpoint of size {size}: {wrong}") from None
        if (checkpoint.origin, checkpoint.month, checkpoint.size) != (self._origin, month, size):
            raise TreeMismatchError(f"{month:%Y-%m}: its checkpoint of size {size} is one of another tree")
        return checkpoint
