"""A file, which gets each row exactly once, or standard output."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from audit.errors import DeliveryError
from audit.export.following import moved
from audit.export.formats import Form, SealedRow
from audit.export.position import Position, PositionFile
from audit.export.sealed_rows import SealedRows


@dataclass(slots=True)
class FileSink:
    """Rows first, then the position: what a kill leaves behind the confirmed bytes is cut off at the next start."""

    path: Path
    positions: PositionFile
    form: Form
    _position: Position | None = None

    def begin(self) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size and not self.positions.path.exists():
            raise DeliveryError(f"{self.path} exists already, and no export wrote it. Give another file.")
        known = self.positions.load(self.form)
        if size < known.bytes:
            raise DeliveryError(
                f"{self.path} has {size} bytes, but {known.bytes} were written. Restore it, or begin with another file."
            )
        self.positions.save(known)  # from here on the file is this export's
        with self.path.open("ab") as file:
            file.truncate(known.bytes)
        if not known.bytes:
            known = replace(known, bytes=self._append(self.form.header()))
            self.positions.save(known)
        self._position = known

    def unfinished(self, _: SealedRows) -> Position:
        """Nothing: `begin` has cut it off."""
        assert self._position
        return self._position

    def deliver(self, batch: Sequence[SealedRow]) -> Position:
        assert self._position
        size = self._append(self.form.encode(batch))
        self._position = replace(moved(self._position, batch), bytes=size)
        self.positions.save(self._position)
        return self._position

    def _append(self, content: bytes) -> int:
        with self.path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()


@dataclass(slots=True)
class StreamSink:
    """Standard output. A kill between a batch and its position delivers that batch again: the reader knows rows by their leaf."""

    stream: BinaryIO
    positions: PositionFile | None
    form: Form
    _position: Position = field(init=False)

    def begin(self) -> None:
        self._position = self.positions.load(self.form) if self.positions else Position(self.form)
        if not self._position.months:
            self._write(self.form.header())

    def unfinished(self, _: SealedRows) -> Position:
        """Nothing: nobody can say what the reader got."""
        return self._position

    def deliver(self, batch: Sequence[SealedRow]) -> Position:
        self._write(self.form.encode(batch))
        self._position = moved(self._position, batch)
        if self.positions:
            self.positions.save(self._position)
        return self._position

    def _write(self, content: bytes) -> None:
        self.stream.write(content)
        self.stream.flush()
