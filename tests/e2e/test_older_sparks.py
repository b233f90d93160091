"""What stands in for what Sparks before 4.1 lack: on the newest, with that taken away; other tests have it as it is."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from elsewhere import run_elsewhere
from pyspark.ml.linalg import SparseVector, Vectors, VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tfos_ml import TFModel
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
    (T.DoubleType(), NAN, "nan"),
    (T.BooleanType(), True, True),
    (T.BinaryType(), b"\0a", b"\0a"),
    (T.DateType(), WHOLE, (WHOLE - datetime.date(1970, 1, 1)).days),
    (T.TimestampNTZType(), MOMENT, MICROS),
    (FLOATS, [0.5, NAN, 101.0], [0.5, "nan", 101.0]),
    (FLOATS, [101.0, SELDOM, None], INSIDE),
    (FLOATS, [101.0, SELDOM], [101.0, SELDOM]),
    (T.ArrayType(T.ByteType()), [-102, 101, None], INSIDE),
    (T.ArrayType(T.ByteType()), [-102, 101], [-102, 101]),
    (T.ArrayType(T.LongType()), [BIG, -BIG], [BIG, -BIG]),
    (T.ArrayType(T.LongType()), [BIG, None], INSIDE),
    (T.ArrayType(T.LongType(), False), [BIG], [BIG]),
    (T.ArrayType(T.StringType()), ["a", None], INSIDE),
    (T.ArrayType(T.DateType()), [WHOLE], [(WHOLE - datetime.date(1970, 1, 1)).days]),
    (T.ArrayType(T.ArrayType(T.DoubleType())), [[1.0, NAN], [None]], INSIDE),
    (T.ArrayType(T.ArrayType(T.StringType())), [["a"], ["b", "c"]], [["a"], ["b", "c"]]),
    (VectorUDT(), Vectors.dense(1.0, 2.0), [1.0, 2.0]),
    (VectorUDT(), SparseVector(3, {1: 2.0}), [0.0, 2.0, 0.0]),
]


@pytest.fixture(autouse=True)
def older(monkeypatch, spark):
    """What Spark 4.0 and 4.1 brought is not there."""
    monkeypatch.delattr(F, "arrow_udf", raising=False)
    for kind in (DataFrame, *DataFrame.__subclasses__()):
        for name in ("repartitionById", "toArrow"):
            monkeypatch.delattr(kind, name, raising=False)


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


@pytest.mark.corner("transform: 2^53 + 1, null elements, null timestamps")
def test_a_function_of_arrow_arrays_gets_every_type_as_it_is(spark):
    schema = T.StructType([T.StructField(f"c{i}", kind) for i, (kind, *_) in enumerate(COLUMNS)])
    rows = [tuple(value for _, value, _ in COLUMNS), (None,) * len(COLUMNS), tuple(value for _, value, _ in COLUMNS)]
    df = spark.createDataFrame(rows, schema).coalesce(1)

    told = df.select(arrow_udf.apply(df, described, T.StringType(), [F.col(name) for name in df.columns])).collect()

    whole = repr([expected for *_, expected in COLUMNS])
    assert [row[0] for row in told] == [whole, repr([None] * len(COLUMNS)), whole]


def test_functions_of_sql_are_exact_or_an_error_and_a_null_is_no_nan_to_the_model(spark, exported):
    """They are not told the types of their arguments."""
    TFModel(exportDir=exported, handleInvalid="keep").registerUDF(spark, "next")
    spark.createDataFrame([(5,), (None,)], "x long").createOrReplaceTempView("small")
    assert [row[0] for row in spark.sql("SELECT next(x) FROM small").collect()] == [6, None]
    spark.createDataFrame([(BIG,), (None,)], "x long").coalesce(1).createOrReplaceTempView("both")
    query = spark.sql("SELECT next(x) FROM both")
    with pytest.raises(Exception, match=r"ColumnTypeError: Argument .* nulls and integers of 2 \*\* 53 or more"):
        query.collect()
    TFModel(exportDir=exported, signatureDefKey="known", handleInvalid="keep").registerUDF(spark, "known")
    rows = spark.createDataFrame([(0, 2.0), (1, None), (2, float("nan"))], "id int, x double").coalesce(1)
    rows.createOrReplaceTempView("floats")
    scores = [row[0] for row in spark.sql("SELECT known(x) FROM floats ORDER BY id").collect()]
    assert scores == [2.0, None, None]


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
    directory = tmp_path_factory.mktemp("next") / "model"
    run_elsewhere(MAKE, str(directory))
    return str(directory)
