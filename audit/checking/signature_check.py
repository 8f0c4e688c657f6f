"""Checks the signatures of rows in a second process, while the rows before are hashed in the first one.

A thread would not do: it waits for the interpreter's lock after each signature.
"""

import contextlib
import pickle
from collections.abc import Callable, Sequence
from typing import Self

from audit import worker
from audit.errors import WorkerEndedError
from audit.proof.keys import PublicKey
from audit.proof.row_signature import is_row_signed
from audit.worker import Message, Worker

CHECK_S = 600.0  # a batch takes less than a second
SMALL = 500  # signatures, 30 ms

Claim = tuple[str, bytes, bytes | None]  # log_id, leaf and signature of a row
SignedRows = frozenset[tuple[str, bytes | None]]  # log_id and signature of each row whose signature is valid
SignatureCheck = Callable[[Sequence[Claim], Sequence[PublicKey]], SignedRows]


def check_here(claims: Sequence[Claim], keys: Sequence[PublicKey]) -> SignedRows:
    return frozenset(
        (log_id, signature)
        for log_id, leaf, signature in claims
        if is_row_signed(signature, log_id, leaf, keys)
    )


class SignatureProcess:
    """A `SignatureCheck`. A small batch is not worth a process; if the process is killed, this one does its work."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker:
            self._worker.end()

    def check(self, claims: Sequence[Claim], keys: Sequence[PublicKey]) -> SignedRows:
        if len(claims) < SMALL:
            return check_here(claims, keys)
        try:
            self._worker = self._worker or Worker(worker.command(__name__))
            _, reply = self._worker.request(b"", _pickled((claims, keys)), deadline_s=CHECK_S)
        except (WorkerEndedError, OSError):
            return check_here(claims, keys)
        places: list[int] = pickle.loads(reply)  # noqa: S301  from the process that we started
        return frozenset((claims[place][0], claims[place][2]) for place in places)


# In the second process


def _perform(_: bytes, request: bytes) -> Message:
    claims, keys = pickle.loads(request)  # noqa: S301  from the process that started this one
    signed = check_here(claims, keys)
    return b"", _pickled([place for place, claim in enumerate(claims) if (claim[0], claim[2]) in signed])


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        worker.serve(*worker.channel(), _perform)
