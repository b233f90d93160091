"""DataFrames from and to files of TFRecords, each a ``tf.train.Example``, without a Hadoop library for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from tfos_ml.errors import ColumnTypeError, CorruptRecordError
from tfos_ml.tfrecord.commit import ERROR, prepare
from tfos_ml.tfrecord.decoding import decode_records
from tfos_ml.tfrecord.encoding import encode
from tfos_ml.tfrecord.feature_types import EXAMPLE, columns_of
from tfos_ml.tfrecord.files import find
from tfos_ml.tfrecord.functions import read, write
from tfos_ml.tfrecord.options import Options
from tfos_ml.tfrecord.plan import plan_read
from tfos_ml.tfrecord.schema_inference import SeenFeature, add_records, infer, schema_of
from tfos_ml.tfrecord.writing import Destination

if TYPE_CHECKING:
    import tensorflow as tf
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

Record = tuple[bytearray, None]
_ROWS = 1000  # serialized at once
_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}

loadedDF: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # noqa: N816
"""Where the DataFrames of :func:`loadTFRecords` came from."""


def isLoadedDF(df: DataFrame) -> bool:
    """Whether a DataFrame is one that :func:`loadTFRecords` returned."""
    return df in loadedDF


def saveAsTFRecords(df: DataFrame, output_dir: str) -> None:
    """Write a DataFrame as TFRecords into a new directory, a file for each partition that has rows.

    Columns are numbers, booleans, text and binary, and arrays of these; others raise ``ColumnTypeError``. A null is a
    missing feature. `output_dir` is on any filesystem that ``pyarrow.fs`` understands; if something is there, it raises
    ``DestinationError``. Files appear, with ``_SUCCESS``, when all are written.
    """
    _schema(df.dtypes)
    uri = _qualified(df.sparkSession.sparkContext, output_dir)
    destination = Destination(uri, Options(record_type=EXAMPLE), name="part-r-{:05d}")
    prepare(destination, ERROR)
    write(df, destination)


def _qualified(sc: SparkContext, path: str) -> str:
    """A path as a URI, on Spark's default filesystem if it names none."""
    jvm: Any = sc._jvm
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    return str(hadoop_path.getFileSystem(sc._jsc.hadoopConfiguration()).makeQualified(hadoop_path).toString())


def loadTFRecords(sc: SparkContext, input_dir: str, binary_features: Collection[str] = ()) -> DataFrame:
    """Files of TFRecords as a DataFrame, whose columns are those of a sample of the records of all files.

    `input_dir` is a directory, file or pattern; `binary_features` are bytes, not text. A feature with one value in one
    record and several in another is an array in both. Raises ``EmptyDataError`` if there is no record.
    """
    from pyspark.sql import SparkSession

    options = Options(record_type=EXAMPLE, binary_features=tuple(binary_features))
    uri = _qualified(sc, input_dir)
    df = read(SparkSession(sc), plan_read([uri], options, _spark_schema(infer(find([uri]).files, options))))
    loadedDF[df] = input_dir
    return df


def _spark_schema(schema: pa.Schema) -> StructType:
    """Columns as Spark's types, floats as double."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema([(field.name, _with_doubles(field.type)) for field in schema]))


def _with_doubles(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_list(arrow_type):
        return pa.list_(_with_doubles(arrow_type.value_type))
    return pa.float64() if pa.types.is_float32(arrow_type) else arrow_type


def toTFExample(dtypes: Iterable[tuple[str, str]]) -> Callable[[Iterable[Any]], Iterator[Record]]:
    """A function for ``rdd.mapPartitions``, of Rows to pairs of a serialized ``tf.train.Example`` and None.

    `dtypes` are those of a DataFrame. Raises ``ColumnTypeError`` if a column is of a type that no feature holds. A null
    is a missing feature.
    """
    schema = _schema(dtypes)

    def to_records(rows: Iterable[Any]) -> Iterator[Record]:
        columns = columns_of(schema, EXAMPLE)
        rest = iter(rows)
        while group := list(islice(rest, _ROWS)):
            arrays = [pa.array([row[f.name] for row in group], f.type) for f in schema]
            for record in encode(arrays, columns, EXAMPLE).to_pylist():
                yield bytearray(record), None

    return to_records


def _schema(dtypes: Iterable[tuple[str, str]]) -> pa.Schema:
    return pa.schema([(name, _arrow_type(name, dtype)) for name, dtype in dtypes])


def _arrow_type(name: str, dtype: str) -> pa.DataType:
    array = re.fullmatch("array<(.*)>", dtype)
    item = array[1] if array else dtype
    if item in _TYPES:
        return pa.list_(_TYPES[item]) if array else _TYPES[item]
    raise ColumnTypeError(
        f"Column '{name}' is {dtype}; a TFRecord holds {', '.join(sorted(_TYPES))} and arrays of these. Cast it or "
        "leave it out."
    )


def infer_schema(example: tf.train.Example, binary_features: Collection[str] = ()) -> StructType:
    """The columns that hold the features of an example, by name; a feature without a value becomes text.

    `binary_features` are bytes, not text.
    """
    seen: dict[str, SeenFeature] = {}
    add_records(seen, [example.SerializeToString()], EXAMPLE, "the example")
    return _spark_schema(schema_of(seen, binary_features))


def fromTFExample(iter: Iterable[Any], binary_features: Collection[str] = ()) -> list[Row]:
    """Records as Rows, for ``rdd.mapPartitions``; each record is a tuple that begins with a serialized Example.

    A feature with one value is that value, one with several a list, and one without a value, or a missing one, None.
    `binary_features` are bytes, not text. Raises ``CorruptRecordError`` if a record is no Example.
    """
    from pyspark.sql import Row

    records = [bytes(record[0]) for record in iter]
    seen: dict[str, SeenFeature] = {}
    add_records(seen, records, EXAMPLE, "the records")
    for feature in seen.values():
        feature.is_array = True
    schema = schema_of(seen, binary_features)
    decoded = decode_records(pa.array(records, pa.large_binary()), columns_of(schema, EXAMPLE), EXAMPLE)
    for number, reason in sorted(decoded.problems.items()):
        raise CorruptRecordError(f"Record {number} of {len(records)}: {reason}.")
    lists = [column.to_pylist() for column in decoded.columns]
    return [Row(**dict(zip(schema.names, map(_value, values), strict=True))) for values in zip(*lists, strict=True)]


def _value(values: list[Any] | None) -> Any:
    values = [bytearray(v) if isinstance(v, bytes) else v for v in values or ()]
    return values if len(values) > 1 else next(iter(values), None)
