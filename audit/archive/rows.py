"""Parser of archived records: lines of evidence back to leaves and typed rows. Pure.

This is the CPU-bound part of the archive. Its inputs and results can be pickled, so that the worker process can run it.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from audit.archive import box, parquet
from audit.errors import ArchiveError, BundleError
from audit.fast_json import read_nested
from audit.proof import archive_format, record
from audit.proof.bundle import COLUMN, are_commitments, month_of
from audit.proof.keys import PublicKey
from audit.proof.record import PERSONAL, SCHEMA_VERSIONS, UNHASHED, Row
from audit.proof.row_signature import is_row_signed, must_be_signed

RowKeys = Callable[[Sequence[str]], Mapping[str, bytes]]  # by log_id; erased records have none

_REQUIRED_MEMBERS = {"commitments", "leaf_index", "row"}
_OPTIONAL_MEMBERS = {"erased_at", "personal", "signature", "spooled"}
_REQUIRED_COLUMNS = {"log_id", "query_id", "timestamp", "schema_version"}
_ELSEWHERE = PERSONAL | UNHASHED
_NEVER_NULL = ("leaf_index", "leaf_hash", "commitments", "spooled", "timestamp")  # in the convenience copy


class EvidenceLine(NamedTuple):
    leaf_index: int
    row: Row
    commitments: Mapping[str, str]
    box: bytes | None
    spooled: bool
    erased_at: str | None
    signature: bytes | None

    @property
    def log_id(self) -> str:
        return str(self.row["log_id"])


class LineResult(NamedTuple):
    """The result of checking a line; `problem` describes a defect."""

    leaf_index: int | None
    log_id: str | None
    leaf: bytes
    digest: bytes
    is_open: bool = False  # its box was opened and compared
    is_erased: bool = False  # it has no box, or its key is gone
    is_known: bool = True  # its schema version can be hashed
    problem: str = ""


class RowGroup(NamedTuple):
    """The rows of a row group: their leaf indexes, the digests of their lines, and their leaves."""

    indexes: list[int]
    digests: list[bytes]
    leaves: list[bytes]
    begin: int  # the first and the last moment, in microseconds
    end: int
    is_sorted: bool
    group_count: int


class Signing(NamedTuple):
    """The keys that may have signed a month's rows, and from which leaf on each row must be signed."""

    public_keys: Sequence[PublicKey]
    signed_from: int | None


def check_lines(
    month: date, signing: Signing, batch: tuple[Sequence[bytes], Mapping[str, bytes] | None]
) -> list[LineResult]:
    """Check lines of a month's evidence, given with the keys of their boxes; None if no keys were given."""
    lines, keys = batch
    return [_check_line(line, month, signing, keys) for line in lines]


def parse_line(line: bytes) -> tuple[EvidenceLine, bytes]:
    """Parse a line and compute its leaf. `ArchiveError` if it is not in canonical form."""
    try:
        text = line.decode()
        body, others, texts = read_nested(text, "row")
        _check_members(body)
        is_canonical = record.joined(others | {"row": record.joined(texts)}) == text
    except ArchiveError:
        raise
    except (ValueError, TypeError, RecursionError):
        raise ArchiveError("The line is not valid JSON") from None
    if not is_canonical:
        raise ArchiveError("The line is not canonical JSON")
    return _line(body), record.leaf_of(texts, body["commitments"])


def _line(body: Mapping[str, Any]) -> EvidenceLine:
    index, boxed, erased_at = body["leaf_index"], body.get("personal"), body.get("erased_at")
    if type(index) is not int or index < 0 or body.get("spooled", True) is not True:
        raise ArchiveError("The line has no valid leaf index")
    if isinstance(boxed, str) == isinstance(erased_at, str):
        raise ArchiveError("A record must have either a box or a time of erasure")
    content = archive_format.bytes_of(boxed) if isinstance(boxed, str) else None
    signature = archive_format.bytes_of(str(body["signature"])) if "signature" in body else None
    return EvidenceLine(
        index, body["row"], body["commitments"], content, body.get("spooled", False), erased_at, signature
    )


def _check_members(body: object) -> None:
    allowed = _REQUIRED_MEMBERS | _OPTIONAL_MEMBERS
    if not isinstance(body, dict) or not _REQUIRED_MEMBERS <= body.keys() <= allowed:
        raise ArchiveError("The line does not have exactly the members of a line")
    row = body["row"]
    if not isinstance(row, dict) or not row.keys() >= _REQUIRED_COLUMNS or None in row.values():
        raise ArchiveError("The line has no complete record")
    if row.keys() & (PERSONAL | UNHASHED) or not all(map(COLUMN.fullmatch, row)):
        raise ArchiveError("The line has a column that is not allowed there")
    if not are_commitments(body["commitments"]):
        raise ArchiveError("Its commitments are not those of personal columns")


def _check_line(line: bytes, month: date, signing: Signing, keys: Mapping[str, bytes] | None) -> LineResult:
    digest = sha256(line).digest()
    try:
        found, leaf = parse_line(line)
    except ArchiveError as wrong:
        return LineResult(None, None, b"", digest, problem=str(wrong))
    place = LineResult(found.leaf_index, found.log_id, leaf, digest)
    if (version := found.row["schema_version"]) not in SCHEMA_VERSIONS:
        problem = f"The record has schema version {version}, which this program cannot hash"
        return place._replace(is_known=False, problem=problem)
    try:
        if month_of(found.row) != month:
            return place._replace(problem="The record belongs to another month")
        is_open = _open_box(found, keys)
    except (ArchiveError, BundleError) as wrong:
        return place._replace(problem=str(wrong))
    is_erased = found.box is None or (keys is not None and not is_open)
    place = place._replace(is_open=is_open, is_erased=is_erased)
    if not _is_vouched_for(found, leaf, signing):
        return place._replace(problem="The engine did not sign this record")
    return place


def _is_vouched_for(line: EvidenceLine, leaf: bytes, signing: Signing) -> bool:
    if line.signature is None:
        return not must_be_signed(line.row["schema_version"], line.leaf_index, signing.signed_from)
    at = datetime.fromisoformat(line.row["timestamp"])
    return is_row_signed(line.signature, line.log_id, leaf, at, signing.public_keys)


def _open_box(line: EvidenceLine, keys: Mapping[str, bytes] | None) -> bool:
    key = keys.get(line.log_id) if keys else None
    if line.box is None or key is None:
        return False
    if box.commitments_in(line.box, key, line.log_id) != line.commitments:
        raise ArchiveError("The content of the record's box differs from what was sealed")
    return True


def read_row_group(path: Path, columns: Mapping[str, str], rows: int, number: int) -> RowGroup:
    """Read and hash one row group. `ArchiveError` if its rows cannot be lines of the evidence."""
    table, of = parquet.read_group(path, number, columns, rows)
    if any(table.column(name).null_count for name in _NEVER_NULL):
        raise ArchiveError("it has a row without its leaf index, leaf, commitments or time")
    try:
        (batch,) = table.to_batches()
        lines = parquet.lines(batch, parquet.texts(batch, columns))
        digests = [sha256(line.encode()).digest() for line in lines]
    except ArchiveError:
        raise
    except (ValueError, TypeError, RecursionError, MemoryError, pa.ArrowException) as wrong:
        raise ArchiveError(f"its rows cannot be converted ({type(wrong).__name__})") from None
    moments = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return RowGroup(
        batch.column("leaf_index").to_pylist(), digests, batch.column("leaf_hash").to_pylist(), moments[0], moments[-1],
        moments == sorted(moments), of,
    )  # fmt: skip


def batch_of(columns: Mapping[str, str], lines: Sequence[bytes]) -> pa.RecordBatch:
    """Lines of the evidence as typed rows. `ArchiveError` if they are none."""
    found = [parse_line(line) for line in lines]
    rows = [line.row for line, _ in found]
    values: dict[str, list[Any]] = {
        name: [parquet.cell(kind, row.get(name)) for row in rows]
        for name, kind in parquet.plain(columns).items()
    }
    values |= {
        "leaf_index": [line.leaf_index for line, _ in found],
        "spooled": [line.spooled for line, _ in found],
        "leaf_hash": [leaf for _, leaf in found],
        "erased_at": [line.erased_at for line, _ in found],
        "commitments": [record.joined({name: f'"{value}"' for name, value in line.commitments.items()}) for line, _ in found],
        "personal": [line.box for line, _ in found],
        "signature": [line.signature for line, _ in found],
    }  # fmt: skip
    try:
        return parquet.batch(values, columns)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as wrong:
        raise ArchiveError(
            f"a record's columns are not of the manifest's types ({type(wrong).__name__})"
        ) from None
