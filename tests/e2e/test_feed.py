"""Rows arrive exactly once an epoch, exactly as they were, on agreed steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import train_functions
from pyspark.sql import functions as F

from tfos_ml import TFEstimator, errors
from tfos_ml.common.spark_api import repartition_by_id

ROWS = 10_007


def uneven(spark):
    """10,007 unique ids in 7 partitions of very different sizes, one of them empty."""
    sizes = F.array(*map(F.lit, [0, 5000, 8000, 9500, 10_000, 10_006]))
    partition = F.size(F.filter(sizes, lambda s: s <= F.col("id"))).cast("int")
    partition = F.when(partition >= 3, partition + 1).otherwise(partition)  # one stays empty
    return repartition_by_id(spark.range(ROWS), 7, partition - 1).withColumnRenamed("id", "features")


def fit(df, directory: Path, train_fn: str, args=None, **params):
    """The model, and what each node wrote down."""
    train_fn = getattr(train_functions, train_fn)
    args = {"directory": str(directory), **(args or {})}
    model = TFEstimator(trainFn=train_fn, tfArgs=args, verbose=0, **params).fit(df)
    return model, {p.stem: json.loads(p.read_text()) for p in sorted(directory.glob("*.json"))}


@pytest.mark.corner("ctx.dataset: each row once an epoch")
def test_dataset_gives_every_row_once_an_epoch_in_agreed_steps(spark, tmp_path):
    common = {"clusterSize": 3, "epochs": 3, "batchSize": 128}
    model, seen = fit(uneven(spark), tmp_path, "record_dataset", {"one_iteration": True}, **common)
    assert len(seen) == 3
    for epoch in range(3):
        ids = [i for node in seen.values() for batch in node["passes"][epoch] for i in batch]
        assert sorted(ids) == list(range(ROWS))
    per_node = 128 // 3
    steps = {node["cardinality"] for node in seen.values()}
    assert len(steps) == 1
    for node in seen.values():
        assert all(len(batches) == node["cardinality"] for batches in node["passes"])
        assert all(0 < len(batch) <= per_node for batches in node["passes"] for batch in batches)
        assert node["rows"] == ROWS
        assert len(set(node["spec"]["worker"])) == 3
    assert model.summary.rows == ROWS


@pytest.mark.corner("ctx.get_data_feed: each row once an epoch")
def test_data_feed_gives_every_row_once_an_epoch(spark, tmp_path):
    _, seen = fit(uneven(spark), tmp_path, "record_feed", clusterSize=3, epochs=3)
    ids = [i for node in seen.values() for i in node["ids"]]
    assert sorted(ids) == sorted(list(range(ROWS)) * 3)
    assert all(size == 100 for node in seen.values() for size in node["sizes"][:-1])


def test_input_is_computed_once_and_a_shuffle_is_the_same_for_every_cluster_size_and_new_each_epoch(spark, tmp_path):
    computed = spark.sparkContext.accumulator(0)

    @F.udf("long")
    def count(value):
        computed.add(1)
        return value

    df = spark.range(0, 300, 1, 3).select(count.asNondeterministic()("id").alias("features"))
    orders = {}
    for workers in (1, 2):
        (directory := tmp_path / str(workers)).mkdir()
        before = computed.value
        _, seen = fit(df, directory, "record_dataset", clusterSize=workers, epochs=2, seed=7)
        orders[workers] = [
            [[i for batch in node["passes"][epoch] for i in batch] for node in seen.values()] for epoch in range(2)
        ]
        assert computed.value - before == 300
    for epoch in range(2):
        (whole,) = orders[1][epoch]
        for share in orders[2][epoch]:
            assert share == [i for i in whole if i in set(share)]
    assert orders[1][0] != orders[1][1]
    assert orders[1][0][0] != sorted(orders[1][0][0])


VALUES = (
    "a tinyint, b smallint, c int, d bigint, e float, f double, g boolean, h string, i binary, "
    "j array<float>, k array<array<bigint>>, l array<string>, m decimal(10,2), label bigint"
)


def value_rows():
    from decimal import Decimal

    scalars = [
        (-128, -32768, -(2**31), -(2**63), 1.5, 0.1, True),
        (127, 32767, 2**31 - 1, 2**63 - 1, -0.0, 1e-310, False),
    ]
    text = [("naïve ☃ 𝄞", b"\x00\xff\x00"), ("", b"")]
    arrays = [([0.5, -2.0], [[2**53 + 1, -1]], ["", "é"]), ([3.0, 2.0**-140], [[0, 2**62]], ["a\x00b", "c"])]
    decimals_and_labels = [(Decimal("0.10"), 0), (Decimal("-7.25"), 1)]
    return [a + b + c + d for a, b, c, d in zip(scalars, text, arrays, decimals_and_labels, strict=True)]


IMAGE = "struct<origin:string,height:int,width:int,nChannels:int,mode:int,data:binary>"


@pytest.mark.corner("ctx.dataset: values of every type")
def test_values_of_every_type_arrive_exactly_by_dataset(spark, tmp_path):
    """And columns that tensors hold in another form than Spark."""
    from pyspark.ml.linalg import Vectors, VectorUDT

    image = ("", 1, 2, 3, 16, bytearray(range(6)))
    others = [
        (image, "1969-12-31", "2024-02-29 12:30:01.000005", [1]),
        (image, "2024-02-29", "1960-01-01 00:00:00", [2, 3, 4]),
    ]
    rows = [value + other for value, other in zip(value_rows(), others, strict=True)]
    df = spark.createDataFrame(rows, f"{VALUES}, p {IMAGE}, day string, time string, r array<int>")
    vectors = F.udf(lambda i: Vectors.sparse(3, {1: 1e300}) if i else Vectors.dense([0.1, 2.0, 3.0]), VectorUDT())
    df = df.withColumns(
        {"v": vectors("label"), "s": F.struct(F.to_date("day").alias("d")), "t": F.col("time").cast("timestamp_ntz")}
    )
    others = {"v": "v", "s.d": "d", "t": "t", "p": "p", "r": "r"}
    names = {name: f"in_{name}" for name in "abcdefghijklm"}
    _, seen = fit(df.coalesce(1), tmp_path, "record_values", inputMapping={**names, **others}, padValue=-1)
    (seen,) = seen.values()
    encode = train_functions.encode
    columns = dict(zip(names, zip(*value_rows(), strict=True), strict=False))
    columns["m"] = tuple(float(v) for v in columns["m"])
    for name, values in columns.items():
        expected = [encode(v) for v in values]
        if name in "hl":  # a string tensor holds UTF-8
            expected = [[encode(t.encode()) for t in v] if name == "l" else encode(v.encode()) for v in values]
        assert seen[f"in_{name}"]["values"] == expected, name
    kinds = ["int8", "int16", "int32", "int64", "float32", "float64", "bool"]
    assert [seen[f"in_{n}"]["dtype"] for n in "abcdefg"] == kinds
    assert [seen[f"in_{n}"]["dtype"] for n in "jk"] == ["float32", "int64"]
    assert {name: seen[name]["dtype"] for name in "vdtp"} == {"v": "float64", "d": "int32", "t": "int64", "p": "uint8"}
    assert seen["v"]["values"] == encode([[0.1, 2.0, 3.0], [0.0, 1e300, 0.0]])
    assert seen["d"]["values"] == [-1, 19782]
    assert seen["t"]["values"] == [1709209801000005, -315619200000000]
    assert seen["p"]["values"] == [[[[0, 1, 2], [3, 4, 5]]]] * 2
    assert seen["r"]["values"] == [[1, -1, -1], [2, 3, 4]]  # padded to the longest of the batch


def test_fewer_rows_than_workers_is_an_error_before_the_first_step(spark, tmp_path):
    df = spark.range(1).withColumnRenamed("id", "features")
    with pytest.raises(errors.EmptyDataError, match="has 0 row"):
        fit(df, tmp_path, "record_dataset", clusterSize=2)
    assert not list(tmp_path.iterdir())
