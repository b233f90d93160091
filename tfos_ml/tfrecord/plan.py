"""What is decided on the driver before files are read or written: columns, tasks, places."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tfos_ml.common.spark_api import arrow_schema_of
from tfos_ml.errors import ColumnTypeError, ParamError
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, EXAMPLE, columns_of
from tfos_ml.tfrecord.files import DataFile, DataSet, find, located, partition_type, schema_text
from tfos_ml.tfrecord.inference import infer
from tfos_ml.tfrecord.options import PERMISSIVE, Options
from tfos_ml.tfrecord.reading import read
from tfos_ml.tfrecord.writing import Destination, check_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BYTE_ARRAY_COLUMN = "byteArray"
_LEAST_BYTES, _TASKS = 4 << 20, 64  # of files that a task reads; tasks that there are at least, with that


@dataclass(frozen=True)
class ReadPlan:
    """Which files each task reads, and as what."""

    tasks: tuple[tuple[DataFile, ...], ...]
    schema_json: str
    options: Options

    @property
    def schema(self) -> StructType:
        """The columns of the DataFrame."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.schema_json))

    def read_files(self, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
        """The rows of files, one file after another."""
        schema = arrow_schema_of(self.schema)
        for file in files:
            constants = {k: _constant(k, v, schema.field(k).type, file) for k, v in file.partition if k in schema.names}
            aside = {*constants, *([self.options.corrupt_column] if self.options.mode == PERMISSIVE else [])}
            columns = columns_of(pa.schema([f for f in schema if f.name not in aside]), self.options.record_type)
            yield from read(file, schema, columns, self.options, constants)


def _constant(name: str, value: str | None, arrow_type: pa.DataType, file: DataFile) -> pa.Scalar:
    try:
        return pa.scalar(value, pa.string()).cast(arrow_type)
    except pa.ArrowException as error:
        raise ColumnTypeError(
            f"Column '{name}' is {arrow_type}, and the directory of {file.shown} says '{value}'. "
            "Give a schema in which it is a string."
        ) from error


def plan_read(
    paths: Sequence[str], options: Options, schema: StructType | None, stores: Mapping[str, str] | None = None
) -> ReadPlan:
    """Find the files at paths, and their columns, which `schema` tells, the file of the schema, or a sample of records.

    Raises ``EmptyDataError`` if there is nothing, ``ColumnTypeError`` if columns are of types that no record holds,
    ``DataError`` if files cannot be read. `stores` as for :func:`tfos_ml.tfrecord.files.located`.
    """
    data_set = find(paths, stores)
    kept = _kept(data_set)
    options = replace(options, record_type=options.record_type or (kept or {}).get("recordType", EXAMPLE))
    if schema is None:
        schema = _told(data_set, options, kept)
    partitions = data_set.partition_names
    arrow = arrow_schema_of(schema)
    if options.mode == PERMISSIVE:
        _check_corrupt_column(arrow, options)
    aside = {*partitions, *([options.corrupt_column] if options.mode == PERMISSIVE else [])}
    columns = columns_of(pa.schema([f for f in arrow if f.name not in aside]), options.record_type)
    if options.record_type == BYTE_ARRAY and [column.element for column in columns] != [pa.binary()]:
        raise ColumnTypeError(
            f"With option recordType='{BYTE_ARRAY}' there is one column of type binary, and the schema has: "
            f"{', '.join(column.name for column in columns)}."
        )
    return ReadPlan(_dealt(data_set.files, options.max_partition_bytes), schema.json(), options)


def _kept(data_set: DataSet) -> dict[str, Any] | None:
    """What the files of the schema say, where all paths have one."""
    distinct = {json.dumps(schema, sort_keys=True): schema for schema in data_set.schemas if schema is not None}
    if len(distinct) > 1:
        raise ColumnTypeError("The directories hold different columns, by the schemas beside them. Read them apart.")
    return None if None in data_set.schemas else next(iter(distinct.values()), None)


def _told(data_set: DataSet, options: Options, kept: dict[str, Any] | None) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import BinaryType, StructField, StructType

    partitions = data_set.partition_names
    if kept is not None and kept["recordType"] == options.record_type:
        fields = [StructField(f.name, f.dataType, True) for f in StructType.fromJson(kept["schema"])]
    elif options.record_type == BYTE_ARRAY:
        fields = [StructField(BYTE_ARRAY_COLUMN, BinaryType())]
    else:
        inferred: StructType = from_arrow_schema(infer(data_set.files, options))
        fields = [f for f in inferred if f.name not in partitions]
    names = {f.name for f in fields}
    for name in partitions:
        if name not in names:
            arrow_type = partition_type(dict(file.partition)[name] for file in data_set.files)
            fields.append(StructField(name, _simple(arrow_type)))
    if options.mode == PERMISSIVE:
        fields.append(StructField(options.corrupt_column, BinaryType()))
    return StructType(fields)


def _simple(name: str) -> Any:
    from pyspark.sql import types

    return {
        "integer": types.IntegerType(),
        "long": types.LongType(),
        "double": types.DoubleType(),
        "string": types.StringType(),
    }[name]


def _check_corrupt_column(schema: pa.Schema, options: Options) -> None:
    name = options.corrupt_column
    if name not in schema.names or schema.field(name).type != pa.binary():
        raise ParamError(
            f"With mode='{PERMISSIVE}' a schema has a column '{name}' of type binary for records that cannot be read; "
            f"got: {', '.join(schema.names)}. Add it, or set option columnNameOfCorruptRecord."
        )


def _dealt(files: Sequence[DataFile], most: int) -> tuple[tuple[DataFile, ...], ...]:
    """Files in order, in runs of limited size."""
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
    path: str,
    schema: StructType,
    options: Options,
    *,
    overwrite: bool,
    stores: Mapping[str, str] | None = None,
) -> Destination:
    """Where rows are written; raises an ``InvalidInputError`` if their columns cannot be."""
    options = replace(options, record_type=options.record_type or EXAMPLE)
    check_columns(arrow_schema_of(schema), options)
    kept = schema_text(schema.json(), options.record_type, options.partition_by)
    return Destination(located(path, stores), options, overwrite=overwrite, schema=kept)
