"""Arrow dataset of the archived months for DuckDB, with predicate pushdown: months and row groups that cannot match are skipped.

DuckDB names the columns and the condition that it needs; a month is fetched from the vault and opened only then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from audit.archive import parquet
from audit.archive.reader import read_batches
from audit.checking.evidence import EVER
from audit.checking.month_tiers import read_manifest
from audit.errors import ArchiveError, UnansweredError, VaultError, WorkerEndedError
from audit.ledger.partitions import month_start, next_month
from audit.proof.archive_format import PARQUET
from audit.vault import Vault


@dataclass(frozen=True, slots=True)
class ArchivedMonth:
    month: date
    manifest: tuple[str, str, str]  # its key in the vault, version and digest


class ArchivedRows(ds.InMemoryDataset):  # type: ignore[misc]
    """The dataset that is registered with DuckDB. Opens a month lazily, when a query reads it.

    Arrow's own scanner reads in threads, which deadlocks with a Python file object. So Arrow only selects the months and
    row groups that can match, and they are read in DuckDB's thread.
    """

    def __init__(self, columns: Mapping[str, str], vault: Vault, archived: Sequence[ArchivedMonth]) -> None:
        super().__init__(parquet.schema(columns).empty_table())
        self._vault = vault
        self._archived = archived
        self.opened: set[date] = set()
        self.failure: UnansweredError | None = None

    def scanner(self, *, columns: Sequence[str], filter: ds.Expression | None = None, **_: Any) -> "_Scanner":  # noqa: A002
        return _Scanner(self, columns, filter)

    def batches(self, columns: Sequence[str], condition: ds.Expression | None) -> Iterator[pa.RecordBatch]:
        whole = [(month_start(item.month), month_start(next_month(item.month))) for item in self._archived]
        wanted = pa.schema([self.schema.field(name) for name in columns])
        for number in _matching(whole, condition, self.schema):
            for batch in self._read(self._archived[number], condition, columns):
                yield from _chosen(batch, wanted, condition)

    def _read(
        self, item: ArchivedMonth, condition: ds.Expression | None, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The month's rows: of its typed copy the row groups and columns that matter, else the whole evidence."""
        try:
            manifest = read_manifest(self._vault, *item.manifest)
            if PARQUET in manifest.files:
                place = manifest.files[PARQUET]
                source = self._vault.open(place.key, place.version)
        except (OSError, VaultError, ArchiveError) as failure:
            raise self._failed(item, failure) from failure
        self.opened.add(item.month)
        if PARQUET in manifest.files:
            with source:
                yield from _read_groups(pq.ParquetFile(source), self.schema, columns, condition)
            return
        try:
            yield from read_batches(self._vault, manifest)
        except (OSError, VaultError, ArchiveError, WorkerEndedError) as failure:
            raise self._failed(item, failure) from failure

    def _failed(self, item: ArchivedMonth, failure: Exception) -> UnansweredError:
        self.failure = UnansweredError(f"The archive of {item.month:%Y-%m} cannot be read: {failure}")
        return self.failure


@dataclass(frozen=True, slots=True)
class _Scanner:
    """Adapter: DuckDB's projection and filter as an Arrow record batch reader."""

    rows: ArchivedRows
    columns: Sequence[str]
    condition: ds.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        schema = pa.schema([self.rows.schema.field(name) for name in self.columns])
        return pa.RecordBatchReader.from_batches(schema, self.rows.batches(self.columns, self.condition))


def _read_groups(
    file: pq.ParquetFile, schema: pa.Schema, columns: Sequence[str], condition: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    present = [name for name in columns if name in file.schema_arrow.names]
    times = [_time_range_of(file.metadata.row_group(number)) for number in range(file.num_row_groups)]
    groups = _matching(times, condition, schema)
    yield from file.iter_batches(row_groups=groups, columns=present, use_threads=False)


def _chosen(
    batch: pa.RecordBatch, wanted: pa.Schema, condition: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    """The wanted columns of the rows that match. A column that an older month does not have is read as null."""
    present = batch.schema.names
    cells = [
        batch.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(len(batch), field.type)
        for field in wanted
    ]
    table = pa.Table.from_arrays(cells, schema=wanted) if cells else pa.Table.from_batches([batch])
    yield from (table if condition is None else table.filter(condition)).to_batches()


def _time_range_of(group: pq.RowGroupMetaData) -> tuple[datetime, datetime]:
    """The time range of a row group, from its statistics; the end is exclusive."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "timestamp" and column.statistics is not None:
            return column.statistics.min, column.statistics.max + timedelta(microseconds=1)
    return EVER.since, EVER.until


def _matching(
    times: Sequence[tuple[datetime, datetime]], condition: ds.Expression | None, schema: pa.Schema
) -> list[int]:
    """The indexes of the time ranges that can match the condition, by Arrow's partition pruning. Opens no file."""
    kind, time = ds.ParquetFileFormat(), ds.field("timestamp")
    fragments = []
    for number, period in enumerate(times):
        begin, end = (pa.scalar(moment, pa.timestamp("us", tz="UTC")) for moment in period)
        within = (time >= begin) & (time < end)
        fragments.append(kind.make_fragment(str(number), LocalFileSystem(), partition_expression=within))
    found = ds.FileSystemDataset(fragments, schema, kind, LocalFileSystem())
    return [int(fragment.path) for fragment in found.get_fragments(filter=condition)]
