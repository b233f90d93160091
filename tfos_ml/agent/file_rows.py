"""Rows that a node reads itself from Parquet files: the same Arrow batches as Spark would hand to its task.

Spark deals rows one by one, so that every step has rows of every node: what a node reads has rows of all. It sends them
theirs (``agent/row_exchange.py``); a node that shares nothing with others reads all, and keeps its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from tfos_ml import errors
from tfos_ml.agent.feeder import VALIDATION_COLUMN
from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.data.arrow import plain, take_rows
from tfos_ml.data.file_plan import FilePiece, FilePlan, FileUnit, PlannedFile
from tfos_ml.data.order import PARTITION_SHIFT, Int64s, dealt_ranks
from tfos_ml.data.parquet_types import fed_type
from tfos_ml.data.row_condition import Condition, columns_of, evaluate
from tfos_ml.data.schema import ROW_COLUMN, FeedSchema
from tfos_ml.protocol.template import ClusterTemplate

BATCH_BYTES = 16 << 20
"""Of decoded rows of all nodes, about, in one batch."""
GROUP_BYTES = 192 << 20
"""Of a row group that is decoded at once, about; more is decoded batch by batch."""


def read_share(plan: FilePlan, schema: FeedSchema, template: ClusterTemplate, rank: int) -> Iterator[pa.RecordBatch]:
    """The rows of one node out of all, with their ids, as :class:`~tfos_ml.agent.feeder.Feeder` takes them.

    Raises ``FilesChangedError`` if a file is not as it was planned, ``FileReadError`` if it cannot be read.
    """
    if rank not in (*template.feed_ranks, *template.validation_ranks):
        return
    dealer = RowDealer(plan, schema, template)
    with contextlib.closing(FileReader(plan)) as reader:
        for unit in plan.units(1):
            for ids, batch in reader.read(unit):
                mine = dealer.rows_of(rank, ids, batch)
                if mine.num_rows:
                    yield mine


class RowDealer:
    """Deals rows to the nodes, and brings their columns into the form of rows that are fed."""

    def __init__(self, plan: FilePlan, schema: FeedSchema, template: ClusterTemplate):
        self._plan = plan
        self._types = [fed_type(spec) for spec in schema.columns]
        self._template = template

    def rows_of(self, rank: int, ids: Int64s, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one node in a batch of rows with some ids."""
        validates = self._validates(batch, ids)
        mine = np.flatnonzero(self._ranks(ids, validates) == rank)
        if len(mine) < batch.num_rows:
            batch, ids = batch.take(pa.array(mine)), ids[mine]
            validates = None if validates is None else validates[mine]
        return self._fed(ids, batch, validates)

    def rows_by_node(self, ids: Int64s, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The same for each node that has some of them."""
        if not len(ids):
            return
        validates = self._validates(batch, ids)
        ranks = self._ranks(ids, validates)
        fed = self._fed(ids, batch, validates)
        order = np.argsort(ranks, kind="stable")
        found, starts = np.unique(ranks[order], return_index=True)
        by_rank = pa.RecordBatch.from_arrays([take_rows(column, order) for column in fed.columns], fed.schema.names)
        for rank, start, end in zip(found.tolist(), starts, [*starts[1:], len(ranks)], strict=True):
            yield rank, by_rank.slice(start, end - start)

    def _fed(self, ids: Int64s, batch: pa.RecordBatch, validates: Any) -> pa.RecordBatch:
        columns = [_fed(batch.column(n), kind) for n, kind in zip(self._plan.columns, self._types, strict=True)]
        names = [f"c{i}" for i in range(len(columns))] + [ROW_COLUMN]
        columns.append(pa.array(ids))
        if validates is not None:
            columns.append(pa.array(validates))
            names.append(VALIDATION_COLUMN)
        return pa.RecordBatch.from_arrays(columns, names)

    def _validates(self, batch: pa.RecordBatch, ids: Int64s) -> Any:
        """Which rows are for validation; None if none are."""
        rule = self._plan.validation
        if isinstance(rule, str):
            return pc.fill_null(batch.column(rule), False).to_numpy(zero_copy_only=False)
        return None if rule is None else rule.of(ids)

    def _ranks(self, ids: Int64s, validates: Any) -> Int64s:
        ranks = dealt_ranks(ids, self._template.feed_ranks)
        if validates is not None:
            ranks = np.where(validates, dealt_ranks(ids, self._template.validation_ranks), ranks)
        return ranks


def _fed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as Spark feeds it; doubles of vectors become floats as they do in Java, rounded or infinite."""
    column = plain(_decoded(column))
    return column if column.type == kind else column.cast(kind, safe=False)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _kept(batch: pa.RecordBatch, condition: Condition | None) -> pa.RecordBatch:
    """The rows that a filter keeps."""
    if condition is None:
        return batch
    columns = {name: _decoded(batch.column(name)) for name in columns_of(condition)}
    mask = evaluate(condition, {name: _small(column) for name, column in columns.items()})
    return batch.filter(mask)


def _small(column: pa.Array) -> pa.Array:
    """Strings with offsets as Spark has them, so that they are compared with such."""
    is_string = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return column.cast(pa.string()) if is_string else column


class FileReader:
    """Reads units of a plan; the file that was read last stays open, since row groups of a large one are in several."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._file: PlannedFile | None = None
        self._parquet: pq.ParquetFile | None = None
        self._source: pa.NativeFile | None = None

    def read(self, unit: FileUnit) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """The rows of a unit that are kept, and their ids, of some megabytes at a time.

        Raises ``FilesChangedError`` if a file is not as it was planned, ``FileReadError`` if it cannot be read.
        """
        row = (unit.partition << PARTITION_SHIFT) + unit.first
        for number, piece in enumerate(unit.pieces):
            for batch in self._batches(piece):
                ids = row + np.arange(batch.num_rows)
                row += batch.num_rows
                yield ids if self._plan.row_ids is None else batch.column(self._plan.row_ids).to_numpy(), batch
            if number + 1 == len(unit.pieces) or unit.pieces[number + 1].file != piece.file:
                _check_unchanged(self._plan.files[piece.file])

    def _batches(self, piece: FilePiece) -> Iterator[pa.RecordBatch]:
        file = self._plan.files[piece.file]
        columns = self._plan.read_columns
        rows = 0
        try:
            parquet = self._open(file)
            for group in piece.row_groups:
                for batch in _group_batches(parquet, group, columns):
                    rows += batch.num_rows
                    yield _kept(_with_constants(batch, self._plan, file), self._plan.condition)
        except (OSError, pa.ArrowException) as error:
            _check_unchanged(file)
            raise errors.FileReadError(f"{redact(file.uri)} cannot be read: {redact(error)}") from error
        if rows != piece.rows:
            raise errors.FilesChangedError(_changed(file, f"row groups of {rows} rows instead of {piece.rows}"))

    def _open(self, file: PlannedFile) -> pq.ParquetFile:
        if file is not self._file:
            self.close()
            _check_unchanged(file)
            filesystem, path = filesystems.open_uri(file.uri)
            self._source = filesystem.open_input_file(path)
            self._parquet = pq.ParquetFile(self._source, pre_buffer=not isinstance(filesystem, fs.LocalFileSystem))
            self._file = file
        return self._parquet

    def close(self) -> None:
        """Close the file that is open."""
        if self._source is not None:
            self._source.close()
        self._file = self._parquet = self._source = None


def _with_constants(batch: pa.RecordBatch, plan: FilePlan, file: PlannedFile) -> pa.RecordBatch:
    """A batch with the columns that directories tell."""
    told = zip(plan.constants, file.constants, strict=True)
    constants = {name: pa.repeat(pa.scalar(value, kind), batch.num_rows) for (name, kind), value in told}
    columns = dict(zip(batch.schema.names, batch.columns, strict=True)) | constants
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _group_batches(parquet: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """A row group as batches of about ``BATCH_BYTES``; one that is not large is decoded at once, which is faster."""
    metadata = parquet.metadata.row_group(group)
    size = _decoded_bytes(metadata, columns)
    rows = max(1, min(metadata.num_rows, BATCH_BYTES * metadata.num_rows // max(1, size)))
    if columns and size <= GROUP_BYTES:
        yield from parquet.read_row_group(group, columns).to_batches(rows)
    else:
        yield from parquet.iter_batches(rows, row_groups=[group], columns=columns)


def _decoded_bytes(group: Any, columns: list[str]) -> int:
    """Bytes of some columns of a row group when they are decoded, about."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    wanted = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns]
    return sum(max(chunk.total_uncompressed_size, 8 * chunk.num_values) for chunk in wanted)


def _check_unchanged(file: PlannedFile) -> None:
    """Raise ``FilesChangedError`` if a file has another size or modification time than planned, or is gone."""
    try:
        info = filesystems.request(file.uri, lambda filesystem, path: filesystem.get_file_info(path))
    except filesystems.StorageError as error:
        raise errors.FileReadError(f"{redact(file.uri)} cannot be reached: {error}") from error
    if info.type == fs.FileType.NotFound:
        raise errors.FilesChangedError(_changed(file, "is gone"))
    if (info.size, info.mtime_ns) != (file.size, file.mtime_ns):
        raise errors.FilesChangedError(_changed(file, f"has {info.size:,} bytes of {info.mtime}"))


def _changed(file: PlannedFile, found: str) -> str:
    return (
        f"{redact(file.uri)} had {file.size:,} bytes when the fit was planned, and has changed since: {found}. Leave "
        "files alone while they are read, and read the DataFrame anew (spark.read.parquet)"
    )
