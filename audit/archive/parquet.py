"""Parquet reader and writer for the convenience copy of an archived month: typed, sorted by time, in small row groups.

Each row converts back to its exact line of the evidence, so that a verifier finds every cell that differs.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from audit import fast_json
from audit.errors import ArchiveError
from audit.proof.canonical import canonical_text
from audit.proof.record import PERSONAL, UNHASHED, bytes_of

GROUP_ROWS = 1_000  # some 4 MB: little memory, and a query for one day skips most groups

_MOMENT = pa.timestamp("us", tz="UTC")
TYPES = {
    "uuid": pa.string(), "text": pa.string(), "varchar": pa.string(), "jsonb": pa.string(), "int4": pa.int32(),
    "float8": pa.float64(), "bool": pa.bool_(), "bytea": pa.binary(), "timestamptz": _MOMENT,
}  # fmt: skip
_LAST = [
    ("spooled", pa.bool_()), ("leaf_hash", pa.binary()), ("erased_at", _MOMENT), ("commitments", pa.string()),
    ("personal", pa.binary()),
]  # fmt: skip
_SIGNATURE = ("signature", pa.binary())
# No query filters by a range of these.
_WITHOUT_STATISTICS = frozenset({"leaf_hash", "commitments", "personal", "signature"})
_UNIQUE = _WITHOUT_STATISTICS | {"log_id", "query_id", "answer_id", "request_id", "timestamp", "leaf_index"}

Texts = Sequence[str | None]


def plain(columns: Mapping[str, str]) -> dict[str, str]:
    """The columns that the evidence has in plain text, with their types in the database."""
    return {name: kind for name, kind in columns.items() if name not in PERSONAL | UNHASHED}


def schema(columns: Mapping[str, str]) -> pa.Schema:
    """`KeyError` if a column is of a type that no record has."""
    typed = [(name, TYPES[kind]) for name, kind in plain(columns).items()]
    signature = [_SIGNATURE] if has_signatures(columns) else []
    return pa.schema([("leaf_index", pa.int64()), *typed, *_LAST, *signature])


def has_signatures(columns: Mapping[str, str]) -> bool:
    """Archives of versions that did not sign rows have no such column."""
    return _SIGNATURE[0] in columns


def batch(values: Mapping[str, Sequence[Any]], columns: Mapping[str, str]) -> pa.RecordBatch:
    typed = schema(columns)
    return pa.record_batch([_array(values[field.name], field.type) for field in typed], schema=typed)


def cell(kind: str, value: Any) -> Any:
    """A value of the evidence as the typed column has it."""
    if value is None or kind not in _CELLS:
        return value
    return _CELLS[kind](value)


def texts(batch: pa.RecordBatch, columns: Mapping[str, str]) -> dict[str, Texts]:
    """The values of each plain column in canonical JSON; None for null."""
    return {name: _canonical(kind, batch.column(name)) for name, kind in plain(columns).items()}


def lines(batch: pa.RecordBatch, texts_by_column: Mapping[str, Texts]) -> Iterator[str]:
    """The rows as lines of the evidence."""
    names = ("leaf_index", "commitments", "personal", "spooled")
    kept = [batch.column(name).to_pylist() for name in names]
    erased, rows = _moments(batch.column("erased_at")), objects(texts_by_column)
    is_signed = _SIGNATURE[0] in batch.schema.names
    signatures = batch.column("signature").to_pylist() if is_signed else [None] * len(batch)
    for index, commitments, box, spooled, erased_at, row, signature in zip(
        *kept, erased, rows, signatures, strict=True
    ):
        yield (
            f'{{"commitments":{commitments}'
            + (f',"erased_at":{erased_at}' if erased_at else "")
            + f',"leaf_index":{index}'
            + (f',"personal":"{base64.b64encode(box).decode()}"' if box is not None else "")
            + f',"row":{row}'
            + (f',"signature":"{base64.b64encode(signature).decode()}"' if signature is not None else "")
            + (',"spooled":true}' if spooled else "}")
        )


def objects(texts_by_column: Mapping[str, Texts]) -> Iterator[str]:
    """The rows as objects without the members that are null."""
    named = [
        [None if text is None else f'"{name}":{text}' for text in texts_by_column[name]]
        for name in sorted(texts_by_column)
    ]
    return ("{" + ",".join(filter(None, row)) + "}" for row in zip(*named, strict=True))


def read_group(path: Path, number: int, columns: Mapping[str, str], rows: int) -> tuple[pa.Table, int]:
    """A row group of an untrusted file, and the number of groups. `ArchiveError` if the file is not one of ours."""
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            is_expected = file.schema_arrow == schema(columns) and file.metadata.num_rows == rows
            is_small = 0 < file.metadata.row_group(number).num_rows <= GROUP_ROWS
            table = file.read_row_group(number, use_threads=False) if is_expected and is_small else None
            count = file.num_row_groups
    except (OSError, ValueError, KeyError, IndexError, MemoryError, pa.ArrowException) as wrong:
        raise ArchiveError(f"it cannot be read ({type(wrong).__name__})") from None
    if table is None:
        raise ArchiveError("it does not have the signed rows and columns")
    return table.combine_chunks(), count


class SortedWriter:
    """External sort: takes batches in the order of their leaves, and writes them in the order of their times.

    Both orders are almost the same, except for records that came late. So the batches go to a temporary file, and each row
    group gathers its rows from the few batches that contain them.
    """

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._path, self._unsorted = path, path.with_name(f"{path.name}.unsorted")
        self._schema = schema(columns)
        self._stream = pa.ipc.new_file(pa.OSFile(str(self._unsorted), "wb"), self._schema)
        self._places: list[pa.Table] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stream.close()
            if kind is None:
                self._write()
        finally:
            self._unsorted.unlink()

    def add(self, batch: pa.RecordBatch) -> None:
        self._stream.write_batch(batch)
        count = len(batch)
        places = {
            "timestamp": batch.column("timestamp"), "leaf_index": batch.column("leaf_index"),
            "batch": pa.array([len(self._places)] * count, pa.int32()), "row": pa.array(range(count), pa.int32()),
        }  # fmt: skip
        self._places.append(pa.table(places))

    def _write(self) -> None:
        order = [("timestamp", "ascending"), ("leaf_index", "ascending")]
        places = pa.concat_tables(self._places).sort_by(order)
        with (
            pa.OSFile(str(self._unsorted)) as unsorted, pa.ipc.open_file(unsorted) as batches,
            pq.ParquetWriter(
                self._path, self._schema, compression="zstd",
                use_dictionary=[name for name in self._schema.names if name not in _UNIQUE],
                write_statistics=[name for name in self._schema.names if name not in _WITHOUT_STATISTICS],
                sorting_columns=[pq.SortingColumn(self._schema.get_field_index("timestamp"))],
            ) as writer,
        ):  # fmt: skip
            for begin in range(0, len(places), GROUP_ROWS):
                group = _gather(batches, places.slice(begin, GROUP_ROWS))
                writer.write_table(group, row_group_size=GROUP_ROWS)


def _gather(batches: pa.ipc.RecordBatchFileReader, places: pa.Table) -> pa.Table:
    """The rows at these places, in this order."""
    found, order = [], []
    for number in pc.unique(places["batch"]).to_pylist():
        mask = pc.equal(places["batch"], number)
        found.append(batches.get_batch(number).take(places["row"].filter(mask).combine_chunks()))
        order.append(pc.indices_nonzero(mask))
    gathered = pa.Table.from_batches(found)
    return gathered.take(pc.sort_indices(pa.concat_arrays(order)))


def spell_jsonb(value: Any) -> str:
    """The text of a jsonb value as PostgreSQL writes it: shorter keys first, and numbers with all their digits."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
        members = [f"{encode_basestring(name)}: {spell_jsonb(value[name])}" for name in names]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(spell_jsonb, value)) + "]"
    if isinstance(value, str):
        return encode_basestring(value)
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else json.dumps(value)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Times are given as the evidence has them."""
    return pa.array(values).cast(kind) if kind == _MOMENT else pa.array(values, kind)


def _canonical(kind: str, values: pa.Array) -> Texts:
    if kind == "timestamptz":
        return _moments(values)
    write = _CANONICAL.get(kind, encode_basestring)
    return [None if value is None else write(value) for value in values.to_pylist()]


def _moments(values: pa.Array) -> Texts:
    return pc.strftime(values, '"%Y-%m-%dT%H:%M:%SZ"').to_pylist()  # type: ignore[no-any-return]


_CELLS: dict[str, Callable[[Any], Any]] = {"jsonb": spell_jsonb, "float8": float, "bytea": bytes_of}
_CANONICAL: dict[str, Callable[[Any], str]] = {
    # The column keeps PostgreSQL's text, so that it is the same in every tier; the evidence needs canonical JSON.
    "jsonb": fast_json.canonical,
    "int4": canonical_text,
    "float8": canonical_text,
    "bool": canonical_text,
    "bytea": lambda value: f'"\\\\x{value.hex()}"',
}
