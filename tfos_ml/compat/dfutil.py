"""DataFrames from and to files of TFRecords, each a ``tf.train.Example``.

Differences: no Hadoop library of TensorFlow's is needed. Tasks import TensorFlow.
"""

from __future__ import annotations

import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.errors import ColumnTypeError, DestinationError, EmptyDataError

if TYPE_CHECKING:
    import tensorflow as tf
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType, StructType

Record = tuple[bytearray, None]
_FLOATS = {"float", "double"}
_INTEGERS = {"boolean", "tinyint", "smallint", "int", "bigint", "long"}
_BYTES = {"binary", "string"}

loadedDF: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # noqa: N816
"""Where the DataFrames of :func:`loadTFRecords` came from."""


def isLoadedDF(df: DataFrame) -> bool:
    """Whether a DataFrame is one that :func:`loadTFRecords` returned."""
    return df in loadedDF


def saveAsTFRecords(df: DataFrame, output_dir: str) -> None:
    """Write a DataFrame as TFRecords, a file for each partition, into a new directory.

    Columns are numbers, booleans, text and binary, and arrays of these, else it raises ``ColumnTypeError``; if there is
    something at `output_dir`, which may be on any filesystem that ``pyarrow.fs`` understands, ``DestinationError``.

    Differences: files appear, with ``_SUCCESS``, when all have been written. Nulls are features without a value.
    """
    convert = toTFExample(df.dtypes)
    uri = _qualified(df.sparkSession.sparkContext, output_dir)
    filesystem, path = filesystems.open_uri(uri)
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        raise DestinationError(f"{uri} exists already. Choose a new directory for the TFRecords.")
    scratch = f"{path}/_temporary"
    filesystem.create_dir(scratch, recursive=True)
    try:
        written = df.rdd.mapPartitionsWithIndex(lambda i, rows: [_write(uri, i, convert(rows))]).collect()
        for i, name in enumerate(written):
            filesystem.move(f"{scratch}/{name}", f"{path}/part-r-{i:05d}")
    except BaseException:
        filesystem.delete_dir(path)
        raise
    filesystem.delete_dir(scratch)
    filesystem.open_output_stream(f"{path}/_SUCCESS").close()


def _qualified(sc: SparkContext, path: str) -> str:
    """A path as a URI, on Spark's default filesystem if it names none."""
    jvm: Any = sc._jvm
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    uri = str(hadoop_path.getFileSystem(sc._jsc.hadoopConfiguration()).makeQualified(hadoop_path).toString())
    return f"file://{uri.removeprefix('file:')}" if uri.startswith("file:/") and "://" not in uri else uri


def _write(uri: str, partition: int, records: Iterable[Record]) -> str:
    """Write a file of records beside its place; returns its name."""
    import tensorflow as tf

    filesystem, path = filesystems.open_uri(uri)
    name = f"part-{partition:05d}-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="tfrecords-") as directory:
        local = os.path.join(directory, name)
        with tf.io.TFRecordWriter(local) as writer:
            for record, _ in records:
                writer.write(bytes(record))
        fs.copy_files(local, f"{path}/_temporary/{name}", fs.LocalFileSystem(), filesystem)
    return name


def loadTFRecords(sc: SparkContext, input_dir: str, binary_features: Collection[str] = ()) -> DataFrame:
    """Files of TFRecords as a DataFrame, whose columns are those of the first record.

    `input_dir` is a directory, file or pattern, as Spark reads files; `binary_features` are those of bytes that are no
    text. Raises ``EmptyDataError`` if there is no record.

    Differences: a task holds a whole file in memory. A feature with one value in one record and several in the first is
    an array in both. Texts of several values are arrays.
    """
    from pyspark.sql import SparkSession

    binary = tuple(binary_features)
    records = sc.binaryFiles(input_dir).flatMap(_read)
    first = records.take(1)
    if not first:
        raise EmptyDataError(f"There are no TFRecords in {input_dir}, from which to tell the columns.")
    schema = infer_schema(_parse(first[0][0]), binary)
    rows = records.mapPartitions(lambda part: map(_in_order(schema), fromTFExample(part, binary)))
    df: DataFrame = SparkSession(sc).createDataFrame(rows, schema)
    loadedDF[df] = input_dir
    return df


def _read(file: tuple[str, bytes]) -> Iterator[Record]:
    """The records of a file, whose checksums TensorFlow verifies."""
    import tensorflow as tf

    logger = logging.getLogger("tensorflow")
    level = logger.level
    with tempfile.NamedTemporaryFile(prefix="tfrecords-") as local:
        local.write(file[1])
        local.flush()
        logger.setLevel(logging.ERROR)  # it advises tf.data, which would take GPUs that are a node's
        records = tf.compat.v1.io.tf_record_iterator(local.name)
        logger.setLevel(level)
        for record in records:
            yield bytearray(record), None


def _parse(record: Any) -> tf.train.Example:
    import tensorflow as tf

    return tf.train.Example.FromString(bytes(record))


def _in_order(schema: StructType) -> Callable[[Row], tuple[Any, ...]]:
    """Which makes a row of a record one of the schema's columns."""
    from pyspark.sql.types import ArrayType

    arrays = {field.name for field in schema if isinstance(field.dataType, ArrayType)}

    def arranged(row: Row) -> tuple[Any, ...]:
        values = row.asDict()
        found = ((name, values.get(name)) for name in schema.names)
        return tuple(
            [value] if name in arrays and value is not None and not isinstance(value, list) else value
            for name, value in found
        )

    return arranged


def toTFExample(dtypes: Iterable[tuple[str, str]]) -> Callable[[Iterable[Any]], Iterator[Record]]:
    """A function for ``rdd.mapPartitions``, of Rows to pairs of a serialised ``tf.train.Example`` and None.

    Takes ``DataFrame.dtypes``; raises ``ColumnTypeError`` if a column is of a type that no feature holds.

    Differences: arrays of text and binary are taken, too; a null is a feature without a value. A type that is not taken
    is an error before a job starts.
    """
    columns = [(name, dtype, _encoder(name, dtype)) for name, dtype in dtypes]

    def to_records(rows: Iterable[Any]) -> Iterator[Record]:
        import tensorflow as tf

        kinds = {"float_list": tf.train.FloatList, "int64_list": tf.train.Int64List, "bytes_list": tf.train.BytesList}
        for row in rows:
            features = {}
            for name, dtype, (kind, encode) in columns:
                value = row[name]
                values = [] if value is None else value if dtype.startswith("array") else [value]
                features[name] = tf.train.Feature(**{kind: kinds[kind](value=map(encode, values))} if values else {})
            example = tf.train.Example(features=tf.train.Features(feature=features))
            yield bytearray(example.SerializeToString()), None

    return to_records


def _encoder(name: str, dtype: str) -> tuple[str, Callable[[Any], Any]]:
    """Which list of a feature holds a column's values, and what makes them such."""
    item = dtype.removeprefix("array<").removesuffix(">") if dtype.startswith("array<") else dtype
    if item in _FLOATS:
        return "float_list", float
    if item in _INTEGERS:
        return "int64_list", int
    if item in _BYTES:
        return "bytes_list", bytes if item == "binary" else str.encode
    known = sorted(_FLOATS | _INTEGERS | _BYTES)
    raise ColumnTypeError(
        f"Column '{name}' is {dtype}; a TFRecord holds {', '.join(known)} and arrays of these. Cast it or leave it out."
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
    """Records as Rows, for ``rdd.mapPartitions``; each record is a tuple of a serialised ``tf.train.Example`` and more.

    A feature with one value is that value, with several a list, with none None; `binary_features` are bytes, no text.
    """
    from pyspark.sql import Row

    found = []
    for record in iter:
        features = sorted(_parse(record[0]).features.feature.items())
        found.append(Row(**{name: _value(feature, name in binary_features) for name, feature in features}))
    return found


def _value(feature: Any, is_binary: bool) -> Any:
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    if kind == "bytes_list":
        values = [bytearray(value) if is_binary else value.decode() for value in values]
    return values if len(values) > 1 else next(iter(values), None)
