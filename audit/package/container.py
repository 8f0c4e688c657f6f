"""The ZIP of a package, written in one way only. Pure.

A usual ZIP has room for bytes that nobody reads: comments, gaps, two headers that disagree, two files of one name. Here the
headers follow from names, sizes and checksums, so a reader writes them again and compares.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from audit.errors import PackageError

DEFLATE, STORED = 8, 0
FILES_MAX = 60_000
PIECE_BYTES = 2**20
DIRECTORY_BYTES_MAX = 16 * 2**20

_LARGE = 0xFFFFFFFF  # this and more does not fit into 32 bits
_USUAL_VERSION, _LARGE_VERSION = 20, 45
_DATE = 0x21  # 1980-01-01, the first that there is
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_LARGE_END, _LOCATOR = b"PK\x06\x06", b"PK\x06\x07"
_END_FORM = struct.Struct("<4s4H2IH")
_CENTRAL_FORM = struct.Struct("<4s6H3I5H2I")
_LARGE_END_FORM = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_FORM = struct.Struct("<4sIQI")
_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class ZipEntry(NamedTuple):
    """A file of the ZIP, and where its data begin."""

    name: str
    method: int
    crc: int
    packed: int
    size: int
    offset: int  # of its header

    @property
    def is_large(self) -> bool:
        return max(self.packed, self.size, self.offset) >= _LARGE

    @property
    def data_at(self) -> int:
        return self.offset + len(local_header(self))


def local_header(entry: ZipEntry) -> bytes:
    name, version = entry.name.encode(), _LARGE_VERSION if entry.is_large else _USUAL_VERSION
    sizes, extra = (entry.packed, entry.size), b""
    if entry.is_large:
        sizes, extra = (_LARGE, _LARGE), struct.pack("<2H2Q", 1, 16, entry.size, entry.packed)
    head = (version, 0, entry.method, 0, _DATE, entry.crc, *sizes, len(name), len(extra))
    return _LOCAL + struct.pack("<5H3I2H", *head) + name + extra


def directory(entries: Sequence[ZipEntry], offset: int) -> bytes:
    """All that follows the last file's data."""
    listed = b"".join(map(_central_header, entries))
    numbers = (len(entries), len(entries), len(listed))
    if not any(entry.is_large for entry in entries) and offset < _LARGE:
        return listed + _END_FORM.pack(_END, 0, 0, *numbers, offset, 0)
    end = offset + len(listed)
    large = _LARGE_END_FORM.pack(_LARGE_END, 44, _LARGE_VERSION, _LARGE_VERSION, 0, 0, *numbers, offset)
    locator = _LOCATOR_FORM.pack(_LOCATOR, 0, end, 1)
    return listed + large + locator + _END_FORM.pack(_END, 0, 0, *numbers, _LARGE, 0)


def is_package(file: BinaryIO) -> bool:
    """Whether it is a ZIP at all, and so no other kind of proof."""
    return _read_at(file, 0, len(_LOCAL)) == _LOCAL


def read_directory(file: BinaryIO) -> list[ZipEntry]:
    """The files, if every byte outside of their data is as it must be; otherwise a `PackageError`."""
    length = file.seek(0, 2)
    offset, tail = _tail(file, length)
    entries = list(_entries(tail))
    if len(entries) > FILES_MAX or len({entry.name for entry in entries}) < len(entries):
        raise PackageError("The ZIP has two files of one name, or too many")
    if directory(entries, offset) != tail:
        raise PackageError("The ZIP's directory is not in the form of a package")
    at = 0
    for entry in entries:
        if entry.offset != at:
            raise PackageError(f"The ZIP has bytes that belong to no file, before {entry.name}")
        header = local_header(entry)
        file.seek(at)
        if file.read(len(header)) != header:
            raise PackageError(f"The ZIP has two different headers of {entry.name}")
        at += len(header) + entry.packed
    if at != offset:
        raise PackageError("The ZIP has bytes that belong to no file, before its directory")
    return entries


def read_pieces(file: BinaryIO, entry: ZipEntry) -> Iterator[bytes]:
    """A file's content, piece by piece: never much more than it says, and in the end exactly that."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == DEFLATE else None
    size, crc = 0, 0
    try:
        for piece in (
            _inflated(inflate, _packed_pieces(file, entry)) if inflate else _packed_pieces(file, entry)
        ):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
            if size > entry.size:
                break
            yield piece
    except zlib.error:
        raise PackageError(f"{entry.name} cannot be inflated") from None
    is_ended = inflate is None or (inflate.eof and not inflate.unused_data)
    if size != entry.size or crc != entry.crc or not is_ended:
        raise PackageError(
            f"{entry.name} is not as the ZIP's directory says: its size or its checksum differs"
        )


def _packed_pieces(file: BinaryIO, entry: ZipEntry) -> Iterator[bytes]:
    at, end = entry.data_at, entry.data_at + entry.packed
    while at < end:
        file.seek(at)  # others may read other files in between
        piece = file.read(min(PIECE_BYTES, end - at))
        if not piece:
            return
        at += len(piece)
        yield piece


def _inflated(inflate: "zlib._Decompress", pieces: Iterable[bytes]) -> Iterator[bytes]:
    for packed in pieces:
        waiting = packed
        while piece := inflate.decompress(waiting, PIECE_BYTES):
            yield piece
            waiting = inflate.unconsumed_tail


def _central_header(entry: ZipEntry) -> bytes:
    name, version = entry.name.encode(), _LARGE_VERSION if entry.is_large else _USUAL_VERSION
    numbers, extra = (entry.packed, entry.size, entry.offset), b""
    if entry.is_large:
        numbers, extra = (_LARGE,) * 3, struct.pack("<2H3Q", 1, 24, entry.size, entry.packed, entry.offset)
    fixed = (_CENTRAL, version, version, 0, entry.method, 0, _DATE, entry.crc, *numbers[:2])
    return _CENTRAL_FORM.pack(*fixed, len(name), len(extra), 0, 0, 0, 0, numbers[2]) + name + extra


def _tail(file: BinaryIO, length: int) -> tuple[int, bytes]:
    """Where the directory begins, and all bytes from there on. What they say is compared afterwards."""
    end = _read_at(file, length - _END_FORM.size, _END_FORM.size)
    if len(end) != _END_FORM.size or not end.startswith(_END):
        raise PackageError("The file does not end as a ZIP: it is cut off, or something else")
    *_, offset, _ = _END_FORM.unpack(end)
    if offset == _LARGE:
        at = length - _END_FORM.size - _LOCATOR_FORM.size - _LARGE_END_FORM.size
        large = _read_at(file, at, _LARGE_END_FORM.size)
        if len(large) != _LARGE_END_FORM.size:
            raise PackageError("The ZIP is cut off")
        *_, offset = _LARGE_END_FORM.unpack(large)
    if not 0 <= offset <= length or length - offset > DIRECTORY_BYTES_MAX:
        raise PackageError("The ZIP's directory is not where it says, or larger than any of ours")
    return offset, _read_at(file, offset, length - offset)


def _entries(tail: bytes) -> Iterator[ZipEntry]:
    at = 0
    while tail[at : at + 4] == _CENTRAL:
        fixed = tail[at : at + _CENTRAL_FORM.size]
        if len(fixed) < _CENTRAL_FORM.size:
            raise PackageError("The ZIP's directory is cut off")
        (_, _, _, _, method, _, _, crc, packed, size, names, extras, *_, offset) = _CENTRAL_FORM.unpack(fixed)
        at += len(fixed)
        name, extra = tail[at : at + names], tail[at + names : at + names + extras]
        at += names + extras
        if len(extra) == struct.calcsize("<2H3Q"):
            *_, size, packed, offset = struct.unpack("<2H3Q", extra)
        if method not in {DEFLATE, STORED} or not _NAME.fullmatch(name):
            raise PackageError("The ZIP has a file with a name or a compression that no package has")
        yield ZipEntry(name.decode(), method, crc, packed, size, offset)


def _read_at(file: BinaryIO, at: int, size: int) -> bytes:
    if at < 0:
        return b""
    file.seek(at)
    return file.read(size)
