"""Rows that Spark could not read are missed: what was trained without them does not count."""

from __future__ import annotations

import json

import pytest
from conftest import wait_until
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tfos_ml import TFEstimator
from tfos_ml.agent.task_input import checked_complete
from tfos_ml.errors import InputLostError

ROWS = 60_000


def broken(spark):
    """Rows in one partition, of which the last ones cannot be read."""
    fail = F.raise_error(F.lit("this row cannot be read"))
    return spark.range(0, ROWS, 1, 1).select(F.when(F.col("id") == ROWS - 1, fail).otherwise(F.col("id")).alias("id"))


def count(path, batches):
    """What a Python task sees of its input."""
    import pyarrow as pa

    rows = 0
    try:
        for batch in batches:
            rows += len(batch) if isinstance(batch, pa.RecordBatch) else 1
        is_whole = True
    except InputLostError:
        is_whole = False
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"rows": rows, "whole": is_whole}))
    partial.rename(path)
    yield from ()


def test_spark_ends_a_broken_input_as_if_it_were_whole_and_we_tell_them_apart(spark, tmp_path):
    seen = {}
    for name, guard in {"spark": iter, "ours": checked_complete}.items():
        path = tmp_path / name
        with pytest.raises((PySparkException, Py4JJavaError), match="this row cannot be read"):
            broken(spark).mapInArrow(lambda b, path=path, guard=guard: count(path, guard(b)), "x long").collect()
        if not wait_until(path.exists, 20):
            pytest.skip("this Spark ends a Python task whose input broke off, and does not end its input")
        seen[name] = json.loads(path.read_text())
    assert seen["spark"]["whole"]  # if Spark should ever tell by itself, task_input is no longer needed
    assert 0 < seen["spark"]["rows"] < ROWS
    assert not seen["ours"]["whole"]


@pytest.mark.parametrize("kind", ["DataFrame", "RDD", "RDD after a Python function"])
def test_a_whole_input_is_known_as_such(spark, tmp_path, kind):
    path, rdd = tmp_path / "seen", spark.sparkContext.parallelize(range(1000), 1)

    def see(items):
        return count(path, checked_complete(items))

    if kind == "DataFrame":
        spark.range(1000).repartition(1).mapInArrow(see, "x long").collect()
    else:
        (rdd.map(lambda x: x) if "after" in kind else rdd).mapPartitions(see).collect()
    assert json.loads(path.read_text()) == {"rows": 1000, "whole": True}


def test_a_file_that_spark_cannot_read_is_a_short_typed_error(spark, tmp_path):
    """Red before: a Py4JJavaError of several pages of Java."""
    spark.range(0, 400, 1, 2).select((F.col("id") / 400).alias("features")).write.parquet(f"{tmp_path}/rows")
    df = spark.read.parquet(f"{tmp_path}/rows")
    file = max((tmp_path / "rows").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:200])
    (tmp_path / "rows" / f".{file.name}.crc").unlink()
    estimator = TFEstimator(trainFn=read_all, verbose=0)
    with pytest.raises(InputLostError, match=f"Spark could not read a file .*{file.name[:30]}") as caught:
        estimator.fit(df)
    assert len(str(caught.value)) < 1500


def read_all(args, ctx):
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(100)
