"""DataFrames from and to files of TFRecords, each a ``tf.train.Example``.

Differences: no Hadoop library of TensorFlow's is needed. Tasks do not import TensorFlow.
"""

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
from tfos_ml.tfrecord.inference import Seen, add_records, infer, schema_of
from tfos_ml.tfrecord.options import Options
from tfos_ml.tfrecord.plan import plan_read
from tfos_ml.tfrecord.writing import Destination

if TYPE_CHECKING:
    import tensorflow as tf
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType, StructType

Record = tuple[bytearray, None]
_ROWS = 1000  # that are serialized at once
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
    """Write a DataFrame as TFRecords, a file for each partition that has rows, into a new directory.

    Columns are numbers, booleans, text and binary, and arrays of these, else it raises ``ColumnTypeError``; if there is
    something at `output_dir`, which may be on any filesystem that ``pyarrow.fs`` understands, ``DestinationError``.

    Differences: files appear, with ``_SUCCESS``, when all have been written. Nulls are features that are not there.
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

    `input_dir` is a directory, file or pattern; `binary_features` are those of bytes that are no text. Raises
    ``EmptyDataError`` if there is no record.

    Differences: a feature with one value in one record and several in another is an array in both. Texts of several
    values are arrays; bytes that are no UTF-8 are binary.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema

    options = Options(record_type=EXAMPLE, binary_features=tuple(binary_features))
    uri = _qualified(sc, input_dir)
    columns = infer(find([uri]).files, options)
    schema = from_arrow_schema(pa.schema([(field.name, _doubles(field.type)) for field in columns]))
    df = read(SparkSession(sc), plan_read([uri], options, schema))
    loadedDF[df] = input_dir
    return df


def _doubles(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_list(arrow_type):
        return pa.list_(_doubles(arrow_type.value_type))
    return pa.float64() if pa.types.is_float32(arrow_type) else arrow_type


def toTFExample(dtypes: Iterable[tuple[str, str]]) -> Callable[[Iterable[Any]], Iterator[Record]]:
    """A function for ``rdd.mapPartitions``, of Rows to pairs of a serialized ``tf.train.Example`` and None.

    Takes ``DataFrame.dtypes``; raises ``ColumnTypeError`` if a column is of a type that no feature holds.

    Differences: arrays of text and binary are taken, too; a null is a feature that is not there. A type that is not
    taken is an error before a job starts.
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
    """The columns that hold the features of an example, by name; one without a value becomes text.

    `binary_features` are those of bytes that are no text.
    """
    from pyspark.sql.types import StructField, StructType

    features = sorted(example.features.feature.items())
    return StructType([StructField(name, _type(f, name in binary_features), True) for name, f in features])


def _type(feature: Any, is_binary: bool) -> DataType:
    from pyspark.sql.types import ArrayType, BinaryType, DoubleType, LongType, StringType

    kind = feature.WhichOneof("kind")
    of_values: dict[Any, type[DataType]] = {"int64_list": LongType, "float_list": DoubleType}
    item = BinaryType() if is_binary else of_values.get(kind, StringType)()
    return ArrayType(item) if kind and len(getattr(feature, kind).value) > 1 else item


def fromTFExample(iter: Iterable[Any], binary_features: Collection[str] = ()) -> list[Row]:
    """Records as Rows, for ``rdd.mapPartitions``; each record is a tuple of a serialized ``tf.train.Example`` and more.

    A feature with one value is that value, with several a list, with none, or that is not there, None;
    `binary_features` are bytes, no text. Raises ``CorruptRecordError`` if a record is no Example.
    """
    from pyspark.sql import Row

    records = [bytes(record[0]) for record in iter]
    seen: dict[str, Seen] = {}
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
