"""A spill file: records that may be more than memory holds, written once and read in order as often as needed.

It has no name on the disk, so nothing is left of it when the process ends, however that ends.
"""

import os
import pickle
import struct
import tempfile
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Generic, Self, TypeVar

BLOCK = 128  # records that are packed together

Record = TypeVar("Record")

_LENGTH = struct.Struct("!I")


class Spill(Generic[Record]):
    """Use it in a `with`."""

    def __init__(self, block: int = BLOCK) -> None:
        self._file = tempfile.TemporaryFile(prefix="affidavit-ingest-", buffering=0)  # noqa: SIM115  closed by __exit__
        self._block = block
        self._open: list[Record] = []
        self._end = 0
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def add(self, record: Record) -> None:
        self._open.append(record)
        self._count += 1
        if len(self._open) == self._block:
            self._write()

    def clear(self) -> None:
        self._open, self._end, self._count = [], 0, 0

    def __iter__(self) -> Iterator[Record]:
        """Several may read at once; what is added meanwhile is read too."""
        place = 0
        while place < self._end or self._open:
            if place == self._end:
                self._write()
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size, place))
            packed = self._read(length, place + _LENGTH.size)
            place += _LENGTH.size + length
            yield from pickle.loads(zlib.decompress(packed))  # noqa: S301  written by this process, to a file without a name

    def batches(self, size: int) -> Iterator[list[Record]]:
        records = iter(self)
        while batch := list(islice(records, size)):
            yield batch

    def _write(self) -> None:
        packed = zlib.compress(pickle.dumps(self._open, pickle.HIGHEST_PROTOCOL), level=1)
        self._file.seek(self._end)
        for part in (_LENGTH.pack(len(packed)), packed):
            rest = memoryview(part)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._end += len(part)
        self._open = []

    def _read(self, length: int, place: int) -> bytes:
        parts = []
        while length:
            part = os.pread(self._file.fileno(), length, place)
            if not part:
                raise EOFError("The spill file of an ingest was cut off")
            parts.append(part)
            length, place = length - len(part), place + len(part)
        return b"".join(parts)
