"""Writes the ZIP of a package as a stream; its headers are filled in when a file's size and checksum are known."""

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from audit.errors import UnmadeError
from audit.package.container import DEFLATE, FILES_MAX, ZipEntry, directory, local_header
from audit.package.manifest import ListedFile
from audit.packing.pieces import ENDED, LEVEL, PackedPiece, packed_pieces
from audit.proof.canonical import canonical_text

_MARGIN = 2**16  # packed data may be a little larger than its content


class ZipWriting:
    """A draft. The caller moves it to its name once it is whole."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b", opener=_private)  # noqa: SIM115  closed in `__exit__`
        self._entries: list[ZipEntry] = []
        self.listed: dict[str, ListedFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is None:
            if len(self._entries) > FILES_MAX:
                raise UnmadeError("The period has too many months for one package.")
            self._file.write(directory(self._entries, self._file.tell()))
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()

    def add(self, name: str, content: bytes) -> None:
        self._add(name, len(content), _packed([content]))

    def add_lines(self, name: str, values: Iterable[Any]) -> int:
        """Each as a line of canonical JSON; how many there were. They are not in memory together."""
        count = 0

        def lines() -> Iterator[bytes]:
            nonlocal count
            for value in values:
                count += 1
                yield f"{canonical_text(value)}\n".encode()

        self._add(name, 0, _packed(lines()))
        return count

    def add_packed(
        self, name: str, parts: Sequence[tuple[Path, PackedPiece, str]], first: bytes = b""
    ) -> None:
        """Finished pieces one after the other, as they are packed already."""
        size = sum(piece.files[kind].size for _, piece, kind in parts)
        packing = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        begin = packing.compress(first) + packing.flush(zlib.Z_FULL_FLUSH)

        def joined() -> Iterator[tuple[bytes, bytes]]:
            yield begin, first
            for folder, piece, kind in parts:
                yield from packed_pieces(folder, piece, kind)
            yield ENDED, b""

        self._add(name, size, joined())

    def _add(self, name: str, size: int, parts: Iterable[tuple[bytes, bytes]]) -> None:
        """`size` is what is known of it before: it decides whether the header needs room for a large file."""
        offset, digest = self._file.tell(), sha256()
        expected = ZipEntry(name, DEFLATE, 0, size + _MARGIN, size, offset)
        self._file.write(local_header(expected))
        found, packed, crc = 0, 0, 0
        for part, content in parts:
            digest.update(content)
            found, packed, crc = found + len(content), packed + len(part), zlib.crc32(content, crc)
            self._file.write(part)
        entry = ZipEntry(name, DEFLATE, crc, packed, found, offset)
        if entry.is_large != expected.is_large:
            raise UnmadeError(f"{name} has a size that this program cannot write. Choose a shorter period.")
        end = self._file.tell()
        self._file.seek(offset)
        self._file.write(local_header(entry))
        self._file.seek(end)
        self._entries.append(entry)
        self.listed[name] = ListedFile(digest.hexdigest(), found)


def _packed(contents: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    packing = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    for content in contents:
        yield packing.compress(content), content
    yield packing.flush(), b""


def _private(path: str, flags: int) -> int:
    """Records are personal data."""
    return os.open(path, flags, 0o600)
