"""Rows that a node reads itself from files: the same Arrow batches as Spark would hand to its task.

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

from tfos_ml.agent.feeder import VALIDATION_COLUMN
from tfos_ml.agent.file_reader import FileReader, decoded
from tfos_ml.agent.parquet_reader import ParquetReader
from tfos_ml.agent.text_reader import TextReader
from tfos_ml.agent.tfrecord_reader import TFRecordReader
from tfos_ml.agent.whole_file_reader import WholeFileReader
from tfos_ml.data.arrow import plain, take_rows
from tfos_ml.data.file_plan import BINARY_FILE, CSV, JSON, PARQUET, TFRECORD, FilePlan
from tfos_ml.data.order import Int64s, dealt_ranks
from tfos_ml.data.parquet_types import fed_type
from tfos_ml.data.schema import ROW_COLUMN, FeedSchema
from tfos_ml.protocol.template import ClusterTemplate

_READERS: dict[str, type[FileReader]] = {
    PARQUET: ParquetReader,
    BINARY_FILE: WholeFileReader,
    TFRECORD: TFRecordReader,
    CSV: TextReader,
    JSON: TextReader,
}


def reader_of(plan: FilePlan) -> FileReader:
    """A reader of the files of a plan, to be closed."""
    return _READERS[plan.format](plan)


def read_share(plan: FilePlan, schema: FeedSchema, template: ClusterTemplate, rank: int) -> Iterator[pa.RecordBatch]:
    """The rows of one node out of all, with their ids, as :class:`~tfos_ml.agent.feeder.Feeder` takes them.

    Raises what :meth:`FileReader.read` raises.
    """
    if rank not in (*template.feed_ranks, *template.validation_ranks):
        return
    dealer = RowDealer(plan, schema, template)
    with contextlib.closing(reader_of(plan)) as reader:
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
    column = plain(decoded(column))
    return column if column.type == kind else column.cast(kind, safe=False)
