"""Reads the rows of one node from a snapshot, as Spark would feed them to its task."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from tfos_ml.agent.feeder import VALIDATION_COLUMN
from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact, secrets_of_uri
from tfos_ml.data.arrow import to_storage
from tfos_ml.data.packed_lists import unpack
from tfos_ml.data.row_order import PARTITION_SHIFT
from tfos_ml.data.schema import ROW_COLUMN, FeedSchema
from tfos_ml.data.snapshot_layout import SnapshotRows
from tfos_ml.errors import FileReadError
from tfos_ml.protocol.cluster_template import ClusterTemplate

BATCH_BYTES = 8 << 20
"""Approximate size of one batch of decoded rows."""


@dataclass(frozen=True)
class _RowGroup:
    first_row: int  # smallest row id
    bucket: int
    path: str
    footer: Any
    number: int


class SnapshotReader:
    """Reads the rows of a node; iterate over it once.

    Row groups are ordered by their smallest row id, which is roughly the order of the DataFrame. All files are checked
    before the first row is read. Raises ``FileReadError`` if a file is missing, unreadable or incomplete.
    """

    def __init__(self, rows: SnapshotRows, schema: FeedSchema, template: ClusterTemplate, rank: int):
        self._rows, self._snapshot = rows, rows.snapshot
        self._types = [_fed_type(spec.dtype, spec.ndim) for spec in schema.columns]
        self._train = _buckets(template.feed_ranks, rank, self._snapshot.buckets)
        self._validation = _buckets(template.validation_ranks, rank, self._snapshot.buckets)
        if rows.validation is None:
            self._validation = set()
        self._row_bytes = 1.0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        buckets = sorted(self._train | self._validation)
        with self._errors():
            filesystem, root = filesystems.open_uri(self._snapshot.directory)
            groups = [group for bucket in buckets for group in self._groups(filesystem, root, bucket)]
            for group in sorted(groups, key=lambda group: (group.first_row, group.bucket)):
                for batch in self._batches(filesystem, group):
                    fed = self._fed(batch, group.bucket)
                    if fed.num_rows:
                        yield fed

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            uri = self._snapshot.directory
            raise self._failure(" ".join(redact(error, secrets=secrets_of_uri(uri)).split())) from error

    def _failure(self, why: object) -> FileReadError:
        return FileReadError(
            f"the snapshot in {redact(self._snapshot.directory)} cannot be read: {why}. Make sure that all nodes can "
            "reach cacheDir. If they can, delete it: the next fit writes it again"
        )

    def _groups(self, filesystem: fs.FileSystem, root: str, bucket: int) -> list[_RowGroup]:
        groups, rows = [], 0
        for name, size in self._snapshot.files_of(bucket).items():
            path = f"{root.rstrip('/')}/{name}"
            info = filesystem.get_file_info(path)
            if info.type != fs.FileType.File or info.size != size:
                state = "is missing" if info.type != fs.FileType.File else f"has {info.size:,} of {size:,} bytes"
                raise self._failure(f"{name} {state}")
            with filesystem.open_input_file(path) as file:
                footer = pq.read_metadata(file)
            rows += footer.num_rows
            ids = footer.schema.names.index(ROW_COLUMN)
            for number in range(footer.num_row_groups):
                first = footer.row_group(number).column(ids).statistics.min
                groups.append(_RowGroup(first, bucket, path, footer, number))
        expected = int(self._snapshot.bucket_rows[bucket])
        if rows != expected:
            raise self._failure(f"bucket {bucket} has {rows:,} of {expected:,} rows")
        if any(
            sum(divmod(group.first_row, 1 << PARTITION_SHIFT)) % self._snapshot.buckets != bucket for group in groups
        ):
            raise self._failure(f"bucket {bucket} has rows of another bucket")
        return groups

    def _batches(self, filesystem: fs.FileSystem, group: _RowGroup) -> Iterator[pa.RecordBatch]:
        marks = [self._rows.validation] if isinstance(self._rows.validation, int) else []
        names = [*dict.fromkeys(f"c{i}" for i in (*self._rows.columns, *marks)), ROW_COLUMN]
        size = group.footer.row_group(group.number)
        self._row_bytes = max(self._row_bytes, size.total_byte_size / max(1, size.num_rows))
        with filesystem.open_input_file(group.path) as file:
            reader = pq.ParquetFile(file, metadata=group.footer, coerce_int96_timestamp_unit="us", pre_buffer=True)
            rows = max(1, int(BATCH_BYTES / self._row_bytes))
            for batch in reader.iter_batches(rows, row_groups=[group.number], columns=names, use_threads=False):
                self._row_bytes = max(self._row_bytes, batch.nbytes / max(1, batch.num_rows))
                yield batch

    def _stored(self, batch: pa.RecordBatch, position: int) -> pa.Array:
        column, stored = batch.column(f"c{position}"), self._snapshot.columns[position]
        return unpack(column, stored.dtype) if stored.is_packed else column

    def _fed(self, batch: pa.RecordBatch, bucket: int) -> pa.RecordBatch:
        columns = [_cast(self._stored(batch, i), kind) for i, kind in zip(self._rows.columns, self._types, strict=True)]
        columns.append(batch.column(ROW_COLUMN))
        names = [*(f"c{i}" for i in range(len(self._types))), ROW_COLUMN]
        validation = self._rows.validation
        if validation is None:
            return pa.RecordBatch.from_arrays(columns, names)
        if isinstance(validation, int):
            marked = pc.fill_null(batch.column(f"c{validation}"), False)
        else:
            marked = pa.array(validation.of(batch.column(ROW_COLUMN).to_numpy()))
        fed = pa.RecordBatch.from_arrays([*columns, marked], [*names, VALIDATION_COLUMN])
        if bucket not in self._validation:
            return fed.filter(pc.invert(marked))
        return fed if bucket in self._train else fed.filter(marked)


def _buckets(ranks: Sequence[int], rank: int, buckets: int) -> set[int]:
    """The buckets that a node reads, if `ranks` share all of them."""
    return set(range(ranks.index(rank), buckets, len(ranks))) if rank in ranks else set()


def _fed_type(dtype: str, ndim: int) -> pa.DataType:
    arrow_type = pa.type_for_alias(dtype)
    for _ in range(ndim):
        arrow_type = pa.list_(arrow_type)
    return arrow_type


def _cast(column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """A column as Spark feeds it. Doubles of vectors become floats as in Java: rounded, or infinite."""
    column = to_storage(column)
    return column if column.type == arrow_type else column.cast(arrow_type, safe=False)
