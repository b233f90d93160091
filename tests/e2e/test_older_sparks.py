"""What stands in for what Sparks before 4.1 lack: on the newest, too, with that taken away."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import SparseVector, Vectors, VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tfos_ml import TFModel
from tfos_ml.common.spark_api import arrow_table, repartition_by_id, struct_of
from tfos_ml.data.arrow import to_storage
from tfos_ml.inference import arrow_udf

BIG = 2**53 + 1
NAN = float("nan")
WHOLE = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 3, 31, 2, 30, 0, 123456)
MICROS = (MOMENT - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
INSIDE = "a null inside"
SELDOM = float(np.float32(-1_234_567_891))  # by which arrays with nulls are told
FLOATS = T.ArrayType(T.FloatType())
# type, value, and what a function gets of it; a null is a row more
COLUMNS = [
    (T.LongType(), BIG, BIG),
    (T.ByteType(), -128, -128),
    (T.DoubleType(), NAN, "nan"),
    (T.FloatType(), 1.5, 1.5),
    (T.BooleanType(), True, True),
    (T.StringType(), "ä", "ä"),
    (T.BinaryType(), b"\0a", b"\0a"),
    (T.DateType(), WHOLE, (WHOLE - datetime.date(1970, 1, 1)).days),
    (T.TimestampNTZType(), MOMENT, MICROS),
    (FLOATS, [0.5, NAN, 101.0], [0.5, "nan", 101.0]),
    (FLOATS, [0.5, None], INSIDE),
    (FLOATS, [101.0, SELDOM, None], INSIDE),
    (FLOATS, [SELDOM, None], INSIDE),
    (FLOATS, [101.0, SELDOM], [101.0, SELDOM]),
    (T.ArrayType(T.ByteType()), [-102, 101, None], INSIDE),
    (T.ArrayType(T.ByteType()), [-102, 101], [-102, 101]),
    (T.ArrayType(T.ShortType()), [-12345, 101, None], INSIDE),
    (FLOATS, [], []),
    (T.ArrayType(T.LongType()), [BIG, -BIG], [BIG, -BIG]),
    (T.ArrayType(T.LongType()), [BIG, None], INSIDE),
    (T.ArrayType(T.LongType(), False), [BIG], [BIG]),
    (T.ArrayType(T.BooleanType()), [True, False], [True, False]),
    (T.ArrayType(T.BooleanType()), [True, None], INSIDE),
    (T.ArrayType(T.StringType()), ["a", "b"], ["a", "b"]),
    (T.ArrayType(T.StringType()), ["a", None], INSIDE),
    (T.ArrayType(T.DateType()), [WHOLE], [(WHOLE - datetime.date(1970, 1, 1)).days]),
    (T.ArrayType(T.ArrayType(T.LongType())), [[BIG], [1, 2]], [[BIG], [1, 2]]),
    (T.ArrayType(T.ArrayType(T.LongType())), [[1], None], INSIDE),
    (T.ArrayType(T.ArrayType(T.DoubleType())), [[1.0, NAN], [None]], INSIDE),
    (T.ArrayType(T.ArrayType(T.StringType())), [["a"], ["b", "c"]], [["a"], ["b", "c"]]),
    (VectorUDT(), Vectors.dense(1.0, 2.0), [1.0, 2.0]),
    (VectorUDT(), SparseVector(3, {1: 2.0}), [0.0, 2.0, 0.0]),
]


@pytest.fixture
def older(monkeypatch, spark):
    """What Spark 4.0 and 4.1 brought is not there."""
    monkeypatch.delattr(F, "arrow_udf", raising=False)
    for kind in (DataFrame, *DataFrame.__subclasses__()):
        for name in ("repartitionById", "toArrow"):
            monkeypatch.delattr(kind, name, raising=False)


@pytest.fixture(params=["as it is", "older"])
def any_age(request):
    """This Spark, and the same without what 4.1 brought."""
    if request.param == "older":
        request.getfixturevalue("older")


def readable(value):
    """Comparable, and the same wherever a null lies inside."""
    if isinstance(value, list):
        items = [readable(item) for item in value]
        return INSIDE if None in items or INSIDE in items else items
    return "nan" if isinstance(value, float) and np.isnan(value) else value


def described(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """A UDF that tells what it got in each row."""
    for columns in batches:
        columns = columns if isinstance(columns, tuple) else (columns,)
        rows = zip(*(to_storage(column).to_pylist() for column in columns), strict=True)
        yield pa.array([repr([readable(value) for value in row]) for row in rows], pa.string())


@pytest.mark.usefixtures("any_age")
def test_a_function_of_arrow_arrays_gets_every_type_as_it_is(spark):
    schema = T.StructType([T.StructField(f"c{i}", kind) for i, (kind, *_) in enumerate(COLUMNS)])
    rows = [tuple(value for _, value, _ in COLUMNS), (None,) * len(COLUMNS), tuple(value for _, value, _ in COLUMNS)]
    df = spark.createDataFrame(rows, schema).coalesce(1)

    told = df.select(arrow_udf.apply(df, described, T.StringType(), [F.col(name) for name in df.columns])).collect()

    whole = repr([expected for *_, expected in COLUMNS])
    assert [row[0] for row in told] == [whole, repr([None] * len(COLUMNS)), whole]


@pytest.mark.corner("transform: 2^53 + 1, null elements, null timestamps")
@pytest.mark.usefixtures("any_age")
def test_columns_without_nulls(spark):
    schema = T.StructType([T.StructField(f"c{i}", kind, False) for i, (kind, *_) in enumerate(COLUMNS)])
    df = spark.createDataFrame([tuple(value for _, value, _ in COLUMNS)], schema)
    told = df.select(arrow_udf.apply(df, described, T.StringType(), [F.col(name) for name in df.columns]))
    assert told.first()[0] == repr([expected for *_, expected in COLUMNS])


def halves(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """A UDF of a struct with nulls, and an array with nulls."""
    for columns in batches:
        (column,) = columns if isinstance(columns, tuple) else (columns,)
        values = column.to_pylist()
        fields = [
            pa.array([None if v is None else v // 2 for v in values], pa.int64()),
            pa.array([None if v is None else [v, v] for v in values], pa.list_(pa.int64())),
            pa.array([None if v is None else str(v) for v in values], pa.string()),
        ]
        yield pa.StructArray.from_arrays(fields, ["half", "twice", "text"])


@pytest.mark.corner("transform: results with nulls")
@pytest.mark.usefixtures("any_age")
def test_results_have_their_nulls_and_digits(spark):
    df = spark.createDataFrame([(BIG,), (None,)], "x long").coalesce(1)
    result = struct_of("half long, twice array<long>, text string")
    found = df.select(arrow_udf.apply(df, halves, result, [F.col("x")]).alias("s")).select("s.*").collect()
    assert [tuple(row) for row in found] == [(BIG // 2, [BIG, BIG], str(BIG)), (None, None, None)]


@pytest.mark.corner("Rows go to the partition they name")
@pytest.mark.usefixtures("any_age")
@pytest.mark.parametrize("partitions", [1, 7])
def test_rows_go_to_the_partition_they_name(spark, partitions):
    df = spark.range(0, 300, 1, 5).withColumn("number", (F.col("id") % partitions).cast("int"))
    placed = repartition_by_id(df, partitions, F.col("number")).withColumn("placed", F.spark_partition_id())
    assert {row[0] for row in placed.select("placed").distinct().collect()} == set(range(partitions))
    assert placed.where("number <> placed").count() == 0
    assert placed.count() == 300


@pytest.mark.corner("Rows come to the driver as Arrow")
@pytest.mark.usefixtures("any_age")
def test_rows_become_a_table(spark):
    df = spark.range(0, 100, 1, 3).select("id", F.array(F.lit(BIG), "id").alias("numbers"))
    assert arrow_table(df).to_pylist() == [{"id": i, "numbers": [BIG, i]} for i in range(100)]
    assert arrow_table(df.limit(0)).schema.names == ["id", "numbers"]


@pytest.mark.usefixtures("any_age")
class TestSql:
    """Functions of SQL, which are not told the types of their arguments."""

    def test_integers_beside_nulls_are_exact_or_an_error(self, spark, exported):
        TFModel(exportDir=exported, handleInvalid="keep").registerUDF(spark, "next")
        spark.createDataFrame([(5,), (None,)], "x long").createOrReplaceTempView("small")
        assert [row[0] for row in spark.sql("SELECT next(x) FROM small").collect()] == [6, None]
        spark.createDataFrame([(BIG,)], "x long").createOrReplaceTempView("big")
        assert spark.sql("SELECT next(x) FROM big").first()[0] == BIG + 1
        spark.createDataFrame([(BIG,), (None,)], "x long").coalesce(1).createOrReplaceTempView("both")
        query = spark.sql("SELECT next(x) FROM both")
        if hasattr(F, "arrow_udf"):
            assert [row[0] for row in query.collect()] == [BIG + 1, None]
        else:
            with pytest.raises(
                Exception, match=r"ColumnTypeError: Argument .* nulls and integers of 2 \*\* 53 or more"
            ):
                query.collect()

    def test_a_null_among_floats_is_no_nan_to_the_model(self, spark, exported):
        model = TFModel(exportDir=exported, signatureDefKey="known", handleInvalid="keep")
        model.registerUDF(spark, "known")
        rows = spark.createDataFrame([(0, 2.0), (1, None), (2, float("nan"))], "id int, x double").coalesce(1)
        rows.createOrReplaceTempView("floats")
        scores = [row[0] for row in spark.sql("SELECT known(x) FROM floats ORDER BY id").collect()]
        assert scores == [2.0, None, -1.0 if hasattr(F, "arrow_udf") else None]


MAKE = """
import sys
import tensorflow as tf

module = tf.Module()
module.serve = tf.function(lambda x: {"y": x + 1}, input_signature=[tf.TensorSpec([None], tf.int64, "x")])
module.known = tf.function(
    lambda x: {"y": tf.where(tf.math.is_nan(x), -1.0, x)}, input_signature=[tf.TensorSpec([None], tf.float32, "x")]
)
tf.saved_model.save(module, sys.argv[1], signatures={"serving_default": module.serve, "known": module.known})
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A SavedModel that adds one to integers; its signature ``known`` makes -1 of NaN."""
    from elsewhere import run_elsewhere

    directory = tmp_path_factory.mktemp("next") / "model"
    run_elsewhere(MAKE, str(directory))
    return str(directory)
