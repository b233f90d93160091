"""TFRecords through Spark: the data source, and the plain functions, which also serve Sparks without one."""

from __future__ import annotations

import random
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyspark
import pytest
import tensorflow as tf
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import Row
from pyspark.sql import functions as F

from tfos_ml import errors, tfrecord
from tfos_ml.common.spark_api import struct_of

HAS_SOURCES = int(pyspark.__version__.split(".")[0]) >= 4
SCALARS = (
    "i8 tinyint, i16 smallint, i int, l bigint, f float, d double, flag boolean, t string, b binary, p decimal(12,3)"
)
ARRAYS = ", ".join(f"{n}s array<{kind}>" for n, kind in (part.split() for part in SCALARS.split(", ")))
ROWS = [
    (1, -2, 3, 2**40, 0.5, 0.25, True, "ü 汉", bytearray(b"\xff\x00"), Decimal("1.250")),
    (-128, 2**15 - 1, -(2**31), 2**63 - 1, -0.0, float("inf"), False, "", bytearray(), Decimal("-123456789.001")),
]


def wide(spark):
    """Rows of all types, with nulls and empty arrays."""
    pick = random.Random(3)
    columns = list(zip(*ROWS, strict=True))

    def row(number):
        scalars = [None if pick.random() < 0.2 else pick.choice(values) for values in columns]
        arrays = [
            None if pick.random() < 0.2 else [pick.choice(values) for _ in range(pick.choice([0, 1, 2, 5]))]
            for values in columns
        ]
        vector = pick.choice([None, DenseVector([1.0, number]), SparseVector(4, [1, 3], [2.5, -1.0]), DenseVector([])])
        return (number, *scalars, *arrays, vector)

    schema = struct_of(f"id bigint, {SCALARS}, {ARRAYS}").add("v", VectorUDT())
    return spark.createDataFrame([row(n) for n in range(200)], schema).repartition(3, "id")


def plain(value):
    """A value that can be compared: vectors by what they hold, bytearrays as bytes."""
    if isinstance(value, SparseVector):
        value = DenseVector(value.toArray())
    if isinstance(value, DenseVector):
        return ("vector", *value.values.tolist())
    if isinstance(value, list):
        return [plain(v) for v in value]
    return bytes(value) if isinstance(value, bytearray) else value


def by_id(df):
    return [{k: plain(v) for k, v in row.asDict().items()} for row in sorted(df.collect(), key=lambda row: row.id)]


@pytest.fixture
def save_and_load(spark):
    """Writes and reads a DataFrame, through the data source or, on Spark 3.5, the functions."""
    if not HAS_SOURCES:
        return tfrecord.save_as_tfrecords, partial(tfrecord.load_tfrecords, spark)
    tfrecord.register(spark)

    def save(df, path, mode="append", partition_by=(), **options):
        options["partitionBy"] = ",".join([partition_by] if isinstance(partition_by, str) else partition_by)
        df.write.format("tfrecord").mode(mode).options(**options).save(path)

    return save, lambda path, **options: spark.read.format("tfrecord").options(**options).load(path)


@pytest.mark.corner("TFRecords: all types, nulls and empty arrays, exact")
def test_a_wide_table_comes_back_as_it_was(spark, tmp_path, save_and_load):
    """What the data source writes, the functions read."""
    save, _ = save_and_load
    df = wide(spark)
    save(df, f"{tmp_path}/out", codec="gzip")
    found = tfrecord.load_tfrecords(spark, f"{tmp_path}/out")
    assert found.schema == df.schema
    assert by_id(found) == by_id(df)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"_SUCCESS", "_tfrecord_schema.json"} < names
    assert not (tmp_path / "out" / "_temporary").exists()
    assert {"".join(Path(n).suffixes) for n in names if n.startswith("part-")} == {".tfrecord.gz"}


def write_by_tensorflow(path, records, compression=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for record in records:
            writer.write(record)


def example(**lists):
    kinds = {int: ("int64_list", tf.train.Int64List), float: ("float_list", tf.train.FloatList)}
    features = {}
    for name, values in lists.items():
        field, kind = kinds.get(type(values[0]), ("bytes_list", tf.train.BytesList))
        features[name] = tf.train.Feature(**{field: kind(value=values)})
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.mark.corner("TFRecords that TensorFlow has written")
def test_what_tensorflow_and_spark_tfrecord_write_is_read(spark, tmp_path):
    """The layout of spark-tfrecord: part files by partition, some compressed, ``_SUCCESS``, and no schema."""
    load = partial(tfrecord.load_tfrecords, spark)
    for day in (1, 2):
        records = [
            example(n=[day * 10 + i], x=[0.5], t=[b"a"], raw=[b"\xff"], many=list(range(i))) for i in range(1, 4)
        ]
        write_by_tensorflow(tmp_path / "in" / f"day={day}" / "part-00000-1-c000.tfrecord.gz", records, "GZIP")
        write_by_tensorflow(tmp_path / "in" / f"day={day}" / "part-00001-1-c000.tfrecord", [example(n=[day])])
    (tmp_path / "in" / "_SUCCESS").touch()
    df = load(f"{tmp_path}/in")
    types = {"many": "array<bigint>", "n": "bigint", "raw": "binary", "t": "string", "x": "float", "day": "int"}
    assert dict(df.dtypes) == types
    assert sorted((r.day, r.n) for r in df.collect()) == [
        (d, n) for d in (1, 2) for n in (d, *range(d * 10 + 1, d * 10 + 4))
    ]
    assert df.where("day = 2 and t is null").select("n", "many").collect() == [Row(n=2, many=None)]
    only = load(f"{tmp_path}/in/day=*/*.gz", schema="x double, n int")
    assert sorted(only.collect()) == [(0.5, d * 10 + i) for d in (1, 2) for i in (1, 2, 3)]


def test_partitions_append_and_overwrite(spark, tmp_path, save_and_load):
    save, load = save_and_load
    df = spark.createDataFrame([(1, "a/b", 1), (2, None, 1), (3, "c", 2)], "id bigint, name string, day int")
    save(df, f"{tmp_path}/out", mode="overwrite", partition_by=["day", "name"])
    assert by_id(load(f"{tmp_path}/out")) == by_id(df)
    folders = {path.name for path in (tmp_path / "out").glob("day=*/*")}
    assert folders == {"name=a%2Fb", "name=c", "name=__HIVE_DEFAULT_PARTITION__"}
    save(df.withColumn("id", F.col("id") + 10), f"{tmp_path}/out", mode="append", partition_by=["day", "name"])
    assert [row["id"] for row in by_id(load(f"{tmp_path}/out"))] == [1, 2, 3, 11, 12, 13]
    again = load(f"{tmp_path}/out")  # what reads itself is not deleted before
    save(again.where("id = 2").drop("name"), f"{tmp_path}/out", mode="overwrite")
    assert load(f"{tmp_path}/out").collect() == [Row(id=2, day=1)]


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(spark, tmp_path, save_and_load):
    with pytest.raises(errors.ColumnTypeError, match="Column 'x' is date32"):
        tfrecord.save_as_tfrecords(spark.range(10).selectExpr("current_date() as x"), f"{tmp_path}/out")
    save, _ = save_and_load
    with pytest.raises(Exception, match="array_compact"):
        save(spark.range(10).selectExpr("array(id, null) as x"), f"{tmp_path}/out")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    tfrecord.save_as_tfrecords(spark.range(1), f"{tmp_path}/out")
    with pytest.raises(errors.DestinationError, match="exists already"):
        tfrecord.save_as_tfrecords(spark.range(1), f"{tmp_path}/out")
    with pytest.raises(
        errors.ParamError, match="option 'recordTyp' of the data source tfrecord. Did you mean recordType"
    ):
        tfrecord.load_tfrecords(spark, f"{tmp_path}/out", recordTyp="Example")
    with pytest.raises(errors.ParamError, match="Unknown option 'mode'"):
        tfrecord.load_tfrecords(spark, f"{tmp_path}/out", mode="PERMISSIVE")
    with pytest.raises(errors.ColumnNotFoundError, match="Column 'day' of partitionBy"):
        tfrecord.save_as_tfrecords(spark.range(1), f"{tmp_path}/new", partition_by="day")


@pytest.mark.corner("TFRecords: functions where Spark has no Python data sources")
def test_many_files_are_read_by_few_tasks_in_order(spark, tmp_path):
    for number in range(40):
        write_by_tensorflow(tmp_path / "in" / f"part-{number:03d}", [example(n=[number * 10 + i]) for i in range(10)])
    df = tfrecord.load_tfrecords(spark, f"{tmp_path}/in", maxPartitionBytes=4000)
    assert 2 < df.rdd.getNumPartitions() < 20
    assert [row.n for row in df.collect()] == list(range(400))


@pytest.mark.skipif(HAS_SOURCES, reason="Spark 4.0 has Python data sources")
def test_register_says_what_to_use_instead(spark):
    with pytest.raises(errors.ClusterConfigError, match="load_tfrecords and save_as_tfrecords"):
        tfrecord.register(spark)
