"""A task that writes its rows to a Parquet file, for nodes to read in this and in later fits."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact, secrets_of_uri
from tfos_ml.data.arrow import plain
from tfos_ml.data.parquet_types import fed_type
from tfos_ml.data.row_cache import WrittenFile
from tfos_ml.data.schema import FeedSchema

ROW_GROUP_BYTES = 16 << 20
RESULT = "partition bigint, name string, size bigint, row_groups bigint, rows bigint, problem string"


@dataclass(frozen=True)
class CacheWriter:
    """Writes the rows of a Spark task as they would be fed, with their ids.

    Each attempt of a task writes a file of its own; the driver takes those that it is told of by the attempts that
    counted.
    """

    directory: str = field(repr=False)  # a URI that all executors reach
    schema: FeedSchema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of what was written, by ``RESULT``; none if there are no rows."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        groups = self._row_groups(batches)
        first = next(groups, None)
        if first is None:
            return
        name = f"part-{partition:05}-{uuid.uuid4().hex[:12]}.parquet"
        row: dict[str, object] = {"partition": partition, "name": name, "size": 0, "row_groups": 0, "rows": 0}
        try:
            row |= {**asdict(self._write(partition, name, first, groups)), "problem": None}
        except (OSError, pa.ArrowException) as error:
            uri = filesystems.child_uri(self.directory, name)
            row["problem"] = redact(error, secrets=secrets_of_uri(uri))
        yield pa.RecordBatch.from_pylist([row], _result_schema())

    def _write(self, partition: int, name: str, first: pa.Table, groups: Iterator[pa.Table]) -> WrittenFile:
        filesystem, path = filesystems.open_uri(filesystems.child_uri(self.directory, name))
        texts = [field.name for field in first.schema if pa.types.is_string(field.type)]
        count = rows = 0
        with (
            filesystem.open_output_stream(path) as sink,
            pq.ParquetWriter(sink, first.schema, use_dictionary=texts) as writer,
        ):
            group: pa.Table | None = first
            while group is not None:
                writer.write_table(group, row_group_size=group.num_rows)
                count, rows = count + 1, rows + group.num_rows
                group = next(groups, None)
        return WrittenFile(partition, name, filesystem.get_file_info(path).size, count, rows)

    def _row_groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The rows, as much at a time as is one row group."""
        kept: list[pa.RecordBatch] = []
        for batch in batches:
            if batch.num_rows:
                kept.append(self._as_fed(batch))
            if sum(part.nbytes for part in kept) >= ROW_GROUP_BYTES:
                yield pa.Table.from_batches(kept)
                kept = []
        if kept:
            yield pa.Table.from_batches(kept)

    def _as_fed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = list(batch.columns)
        for i, spec in enumerate(self.schema.columns):
            columns[i] = plain(columns[i])
            kind = fed_type(spec)
            if columns[i].type != kind and not spec.is_vector:  # whose elements are floats or doubles, as they came
                columns[i] = columns[i].cast(kind)
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _result_schema() -> pa.Schema:
    kinds = {"bigint": pa.int64(), "string": pa.string()}
    return pa.schema([(name, kinds[kind]) for name, kind in (part.split() for part in RESULT.split(", "))])
