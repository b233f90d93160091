"""The driver's plan for reading or writing: columns, tasks and paths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tfos_ml.common.spark_api import arrow_schema_of
from tfos_ml.errors import ColumnTypeError
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, EXAMPLE, Column, columns_of
from tfos_ml.tfrecord.files import DataFile, DataSet, find, located, partition_type
from tfos_ml.tfrecord.options import Options
from tfos_ml.tfrecord.reading import Reader
from tfos_ml.tfrecord.schema_inference import infer
from tfos_ml.tfrecord.writing import Destination, check_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BYTE_ARRAY_COLUMN = "byteArray"
_LEAST_BYTES, _TASKS = 4 << 20, 64  # least bytes per task, as long as there are fewer than 64 tasks


@dataclass(frozen=True)
class ReadPlan:
    """Which files each task reads, and which columns it makes of them."""

    tasks: tuple[tuple[DataFile, ...], ...]
    schema: StructType  # of the DataFrame
    columns: list[Column]  # those stored in records
    options: Options

    def read_files(self, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
        """Read files one after another."""
        schema = arrow_schema_of(self.schema)
        for file in files:
            yield from Reader(file, schema, self.columns, self.options).batches()


def plan_read(
    paths: Sequence[str], options: Options, schema: StructType | None, stores: Mapping[str, str] | None = None
) -> ReadPlan:
    """Find files, and determine their columns: from `schema`, the schema file, or a sample of records.

    Raises ``EmptyDataError`` if there are no files, ``ColumnTypeError`` if a record cannot hold a column, and
    ``DataError`` if files cannot be read. `stores` as for :func:`tfos_ml.tfrecord.files.located`.
    """
    data_set = find(paths, stores)
    saved = _saved_schema(data_set)
    options = replace(options, record_type=options.record_type or saved.get("recordType", EXAMPLE))
    if schema is None:
        schema = _schema(data_set, options, saved)
    arrow = arrow_schema_of(schema)
    in_records = [f for f in arrow if f.name not in data_set.partition_names]
    columns = columns_of(pa.schema(in_records), options.record_type)
    return ReadPlan(_tasks(data_set.files, options.max_partition_bytes), schema, columns, options)


def _saved_schema(data_set: DataSet) -> dict[str, Any]:
    """The content of the schema files; empty unless each path has one."""
    saved = [schema for schema in data_set.schemas if schema is not None]
    if any(schema != saved[0] for schema in saved):
        raise ColumnTypeError(
            "The directories have different columns, according to their schema files. Read them separately."
        )
    return saved[0] if saved and len(saved) == len(data_set.schemas) else {}


def _schema(data_set: DataSet, options: Options, saved: dict[str, Any]) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    partitions = data_set.partition_names
    if saved and saved["recordType"] == options.record_type:
        fields = [StructField(f.name, f.dataType, True) for f in StructType.fromJson(saved["schema"])]
    elif options.record_type == BYTE_ARRAY:
        fields = list(from_arrow_schema(pa.schema([(BYTE_ARRAY_COLUMN, pa.binary())])))
    else:
        fields = [f for f in from_arrow_schema(infer(data_set.files, options)) if f.name not in partitions]
    names = {f.name for f in fields}
    types = {n: partition_type(dict(f.partition)[n] for f in data_set.files) for n in partitions if n not in names}
    return StructType([*fields, *from_arrow_schema(pa.schema(types.items()))])


def _tasks(files: Sequence[DataFile], most: int) -> tuple[tuple[DataFile, ...], ...]:
    """Group files, in order, into tasks of limited size."""
    most = min(most, max(_LEAST_BYTES, sum(file.size for file in files) // _TASKS))
    tasks: list[list[DataFile]] = []
    size = 0
    for file in files:
        if not tasks or size + file.size > most:
            tasks.append([])
            size = 0
        tasks[-1].append(file)
        size += file.size
    return tuple(map(tuple, tasks))


def plan_write(
    path: str, schema: StructType, options: Options, *, overwrite: bool, stores: Mapping[str, str] | None = None
) -> Destination:
    """Where and how rows are written; raises an ``InvalidInputError`` if their columns cannot be written."""
    options = replace(options, record_type=options.record_type or EXAMPLE)
    check_columns(arrow_schema_of(schema), options)
    saved = {
        "version": 1,
        "recordType": options.record_type,
        "partitionBy": list(options.partition_by),
        "schema": json.loads(schema.json()),
    }
    return Destination(located(path, stores), options, overwrite=overwrite, schema=saved)
