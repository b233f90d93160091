"""The data source ``tfrecord``, with the Python data source API of Spark 4.0 and later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tfos_ml.tfrecord.commit import APPEND, OVERWRITE, abandon, commit, prepare
from tfos_ml.tfrecord.options import parsed, paths_of
from tfos_ml.tfrecord.plan import ReadPlan, plan_read, plan_write
from tfos_ml.tfrecord.writing import Destination, Written, write_rows


class TFRecordDataSource(DataSource):
    """``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")``.

    Spark runs it in Python processes without a SparkContext.
    """

    stores: Mapping[str, str] = MappingProxyType({})
    """Hadoop's settings for S3 of the session in which the format is registered."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tfrecord"

    def schema(self) -> StructType:
        """The columns, from the schema file or a sample of records."""
        return plan_read(paths_of(self.options), parsed(self.options), None, self.stores).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of all files."""
        return TFRecordReader(plan_read(paths_of(self.options), parsed(self.options), schema, self.stores))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer for a directory; raises ``DestinationError`` if that cannot be written to."""
        (path,) = paths_of(self.options)
        destination = plan_write(path, schema, parsed(self.options), overwrite=overwrite, stores=self.stores)
        prepare(destination, OVERWRITE if overwrite else APPEND)
        return TFRecordWriter(destination)


def with_stores(settings: Mapping[str, str]) -> type[TFRecordDataSource]:
    """A data source class with Hadoop's settings for S3, which are pickled with it."""

    class TFRecordDataSourceOfSession(TFRecordDataSource):
        stores = MappingProxyType(dict(settings))

    return TFRecordDataSourceOfSession


class TFRecordReader(DataSourceReader):
    """Reads files as record batches."""

    def __init__(self, plan: ReadPlan):
        self._plan = plan

    def __getstate__(self) -> dict[str, Any]:
        """The state for tasks: without the files, because each partition has its own."""
        return {"_plan": replace(self._plan, tasks=())}

    def partitions(self) -> Sequence[InputPartition]:
        """The files of each task."""
        return [InputPartition(files) for files in self._plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        return self._plan.read_files(partition.value or ())


@dataclass
class CommitMessage(WriterCommitMessage):
    """What a task has written."""

    written: Written


class TFRecordWriter(DataSourceArrowWriter):
    """Writes the rows of each task, then moves the files of all tasks into place."""

    def __init__(self, destination: Destination):
        self._destination = destination

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task to temporary files."""
        context = TaskContext.get()
        return CommitMessage(write_rows(iterator, self._destination, context.partitionId() if context else 0))

    def commit(self, messages: Sequence[Any]) -> None:
        """Move all files into place."""
        commit(self._destination, [message.written for message in messages])

    def abort(self, messages: Sequence[Any]) -> None:
        """Delete all files."""
        abandon(self._destination)
