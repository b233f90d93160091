"""Filters, and columns that directories tell, where nodes read Parquet files themselves: the rows that Spark has."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from direct_rows import estimator_of, partition_bytes, passes_of, rows_both_ways, table

from tfos_ml import errors
from tfos_ml.driver.file_scan import NotDirectError

ROWS, GROUP = 240, 24
FLOATS = [None, math.nan, -0.0, 0.0, math.inf, -math.inf, 0.1, 2.5, -7.25, 1e30]


def mixed(first: int) -> pa.Table:
    """Rows with nulls, NaN and both zeros; some row groups hold one value only, one has a NaN beside it."""
    ids = range(first, first + ROWS)
    floats = [2.5 if i % ROWS < 2 * GROUP else FLOATS[i % len(FLOATS)] for i in ids]
    floats[GROUP] = math.nan
    names = [None, "", "a", "é", "\U0001f600", "z\uffff", "b"]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "tiny": pa.array([None if i % 7 == 0 else i % 5 for i in ids], pa.int8()),
        "x": pa.array(floats, pa.float64()),
        "f": pa.array(floats, pa.float32()),
        "b": pa.array([None if i % 11 == 0 else i % 2 == 0 for i in ids]),
        "s": pa.array([names[i % len(names)] for i in ids]).dictionary_encode(),
        "list": pa.array([None if i % 4 == 0 else [1.5, None] for i in ids]),
        "day": pa.array([None if i % 9 == 0 else datetime.date(2024, 1, 1 + i % 20) for i in ids]),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("filters")
    for number in range(2):
        pq.write_table(mixed(number * ROWS), directory / f"{number}.parquet", row_group_size=GROUP)
    return directory


@pytest.fixture(scope="module")
def partitioned(tmp_path_factory):
    """Directories whose names are numbers, texts that must be quoted, and no value."""
    root = tmp_path_factory.mktemp("partitioned")
    for number, (k, s) in enumerate([("1", "a%20b"), ("2", "x"), ("__HIVE_DEFAULT_PARTITION__", "é"), ("2", "null")]):
        directory = root / f"k={k}" / f"s={s}" / "day=2024-01-02"
        directory.mkdir(parents=True)
        pq.write_table(table(number * 40, 40), directory / "rows.parquet", row_group_size=9)
    return root


KEPT = [
    "id > 3 and x < 0.1",
    "x <= 2.5 or id = 17",
    "x = 2.5 and not b",
    "f <= -7.25 or f in (2.5, 0.5)",
    "x < 0.0",
    "x > 0.1 and not isnan(x)",
    "x != 2.5 and id < 300 and not isnan(x)",
    "not (x < 2.5 or b) and not isnan(x)",
    "isnan(x) or id = 3",
    "not b or not (id between 30 and 70)",
    "tiny > 1 and b",
    "tiny in (1, 3) or tiny is null",
    "not (tiny in (1, 3))",
    "tiny <=> 4 or not (tiny <=> 2)",
    "5 <= id and 400 > id",
    "id in (1,2,3,4,5,6,7,8,9,10,11,12,13,241)",
    "not (id in (1,2,3,4,5,6,7,8,9,10,11,12,13)) and b",
    "s = 'é' or s = ''",
    "s > 'b'",
    "s >= '\U0001f600' or s < 'a'",
    "s in ('a','b','c','d','e','f','g','h','i','j','k','é')",
    "s != 'a'",
    "list is not null and day is null",
    "not (b or tiny = 2)",
    "id > 10000",
]


@pytest.mark.parametrize("condition", KEPT)
def test_a_filter_keeps_the_rows_that_spark_keeps_in_the_same_places(spark, files, condition):
    with partition_bytes(spark, 9000):
        expected, found = rows_both_ways(spark.read.parquet(str(files)).filter(condition).select("s", "id"), ["id"])
    assert found == expected
    assert bool(found) == (condition != "id > 10000")


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("x > 2.5", r"what Spark keeps of NaN depends on statistics of Parquet; add 'NOT isnan\(x\)'"),
        ("x != 2.5", "what Spark keeps of NaN depends"),
        ("not (f <=> 2.5)", "what Spark keeps of NaN depends"),
        ("x = 0.0", "what Spark keeps of NaN, 0.0 and -0.0 depends"),
        ("x < double('NaN')", "what Spark keeps of NaN, 0.0 and -0.0 depends"),
        ("id in (1, null)", "nodes do not know this condition"),
        ("day > date'2024-01-05'", "nodes do not know this condition"),
        ("id + 1 > 4", r"\(id \+ 1L\).*nodes do not know this condition"),
        ("s like 'a%'", "nodes do not know this condition"),
        ("id = tiny", "nodes do not know this condition"),
        ("size(list) > 1", "nodes do not know this condition"),
        ("rand(1) > 0.5", "nodes do not know this condition"),
        ("upper(s) = 'A'", "nodes do not know this condition"),
    ],
)
def test_a_filter_that_might_keep_other_rows_goes_through_spark(spark, files, condition, reason):
    df = spark.read.parquet(str(files)).filter(condition)
    with pytest.raises(NotDirectError, match=reason):
        rows_both_ways(df, ["id"])
    text = estimator_of(featuresCol="id").explainInput(df)
    assert text.startswith("spark: the DataFrame is filtered by "), text


PRUNED = [
    "k = 2",
    "k is null",
    "day > date'2024-01-01' and id > 7",
    "s like 'x%' or k = 1",
    "k = 1 or id = 50",
    "id < 9",
]


@pytest.mark.parametrize("condition", PRUNED)
def test_columns_that_directories_tell_are_those_of_spark(spark, partitioned, condition):
    with partition_bytes(spark, 9000):
        df = spark.read.parquet(str(partitioned)).filter(condition)
        expected, found = rows_both_ways(df, ["k", "id", "s"])
    assert found == expected
    assert found


def test_directories_alone_may_tell_all_that_is_needed(spark, partitioned):
    expected, found = rows_both_ways(spark.read.parquet(str(partitioned)), ["k", "s"])
    assert found == expected
    assert len(found) == 160
    text = estimator_of(featuresCol="day").explainInput(spark.read.parquet(str(partitioned)))
    assert text == "spark: Spark converts column 'day' of type date as it reads it"


@pytest.mark.parametrize("path", ["part", pytest.param("whole", marks=pytest.mark.chaos)])
def test_fits_have_the_filtered_rows_in_the_same_order_both_ways(spark, partitioned, tmp_path, path):
    condition = "k is not null and weight <= 1.5 and not held" if path == "part" else "k = 2"
    with partition_bytes(spark, 9000):
        df = spark.read.parquet(str(partitioned)).filter(condition)
        fed, direct = (passes_of(df, tmp_path, way, labelCol="k") for way in ("spark", "direct"))
    assert direct == fed
    ids = np.arange(160)
    kept = (ids // 40 != 2) & (ids % 3 < 2) & (ids % 5 != 0) if path == "part" else (ids // 40) % 2 == 1
    assert sorted(i for node in direct for i in node["passes"][0]) == ids[kept].tolist()


def test_a_filter_that_keeps_nothing_is_an_error(spark, files):
    df = spark.read.parquet(str(files)).filter("id > 10000")
    assert "480 row(s) before the filter" in estimator_of(featuresCol="id", labelCol="tiny").explainInput(df)
    with pytest.raises(errors.EmptyDataError, match="no rows"):
        estimator_of("direct", featuresCol="id", labelCol="tiny").fit(df)
