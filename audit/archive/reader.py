"""Streaming reader of archive files: fetches them from a vault or a folder, and parses the evidence line by line.

Every read has a size limit, because the files may be damaged or hostile.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa

from audit.archive.box import open_box
from audit.archive.rows import RowKeys, batch_of, parse_line
from audit.errors import ArchiveError
from audit.progress import Progress
from audit.proof.archive_format import EVIDENCE, ROW_BYTES_MAX, Manifest, StoredFile
from audit.proof.record import Row

LINES = 250  # in one batch
LINES_BYTES = 2**23  # a batch of large records has fewer lines
PIECE_BYTES = 2**20
EXPANSION_MAX = 100  # a line has at least 48 random bytes, so no honest evidence compresses to a hundredth
_LOG_ID = re.compile(rb'"log_id":"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')


class ArchiveSource(Protocol):
    """Port: the part of a vault that a verifier needs, for archives and anchors."""

    def open(self, key: str, version: str | None = None) -> BinaryIO: ...

    def keys(self, prefix: str = "") -> list[str]: ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Adapter: an archive's files in a local folder, downloaded from a vault."""

    folder: Path

    def open(self, key: str, version: str | None = None) -> BinaryIO:  # noqa: ARG002  it has no versions
        return (self.folder / Path(key).name).open("rb")

    def keys(self, prefix: str = "") -> list[str]:  # noqa: ARG002  it has no anchors
        return []


def read_rows(
    vault: ArchiveSource, manifest: Manifest, row_keys: RowKeys, progress: Progress
) -> Iterator[list[tuple[Row, Mapping[str, str]]]]:
    """The records as they were in the log, with their commitments. Personal columns need the record's key.

    `ArchiveError` if the evidence differs from the manifest: verify the archive first.
    """
    with _fetched(vault, manifest) as path:
        done = 0
        for lines in batch_lines(read_lines(path)):
            keys = row_keys(log_ids_in(lines))
            yield [_decrypt_row(line, keys) for line in lines]
            done += len(lines)
            progress(f"{manifest.month:%Y-%m}", done, manifest.rows)


def read_batches(vault: ArchiveSource, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """The records as typed rows, without opening a box. `ArchiveError` if the evidence differs from the manifest."""
    with _fetched(vault, manifest) as path:
        for lines in batch_lines(read_lines(path)):
            yield batch_of(manifest.columns, lines)


@contextmanager
def _fetched(vault: ArchiveSource, manifest: Manifest) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="affidavit-archive-") as folder:
        path = Path(folder) / EVIDENCE
        if wrong := fetch_file(vault, EVIDENCE, manifest.files[EVIDENCE], path):
            raise ArchiveError(wrong)
        yield path


def _decrypt_row(line: bytes, keys: Mapping[str, bytes]) -> tuple[Row, Mapping[str, str]]:
    found, leaf = parse_line(line)
    row = found.row | {"spooled": found.spooled, "leaf_hash": f"\\x{leaf.hex()}"}
    if found.erased_at:
        row["erased_at"] = found.erased_at
    if found.signature:
        row["signature"] = f"\\x{found.signature.hex()}"
    key = keys.get(found.log_id)
    if found.box and key:
        row |= open_box(found.box, key, found.log_id)
    return row, found.commitments


def fetch_file(vault: ArchiveSource, name: str, file: StoredFile, path: Path | None) -> str:
    """Read the file, at most up to its signed size, and copy it if a path is given. Returns a description of the defect, or ""."""
    digest, size = sha256(), 0
    with (
        vault.open(file.key, file.version or None) as source,
        path.open("xb") if path else nullcontext() as copy,
    ):
        while size <= file.size and (piece := source.read(PIECE_BYTES)):
            digest.update(piece)
            if copy:
                copy.write(piece)
            size += len(piece)
    if size != file.size:
        return f"{name} has {'more' if size > file.size else size} bytes instead of the signed {file.size}"
    if digest.hexdigest() != file.sha256:
        return f"{name} differs from what was signed: its digest does not match"
    return ""


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of the evidence, decompressed within limits: on one record's size, and on the total expansion."""
    left = max(ROW_BYTES_MAX, EXPANSION_MAX * path.stat().st_size)
    rest = b""
    try:
        with pa.input_stream(str(path), compression="zstd") as stream:
            while piece := stream.read(PIECE_BYTES):
                left -= len(piece)
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
                if left < 0 or len(rest) > ROW_BYTES_MAX:
                    raise ArchiveError("it is larger than records can be")
    except OSError:
        raise ArchiveError("it cannot be decompressed") from None
    if rest:
        raise ArchiveError("it ends in the middle of a line")


def batch_lines(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Batches of lines. If a line cannot be read, the lines before it are still returned."""
    some: list[bytes] = []
    size_bytes = 0
    try:
        for line in lines:
            some.append(line)
            size_bytes += len(line)
            if len(some) == LINES or size_bytes > LINES_BYTES:
                yield some
                some, size_bytes = [], 0
    except ArchiveError:
        yield some
        raise
    if some:
        yield some


def log_ids_in(lines: Sequence[bytes]) -> list[str]:
    return [log_id.decode() for line in lines for log_id in _LOG_ID.findall(line)]
