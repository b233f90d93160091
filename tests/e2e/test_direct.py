"""Nodes that read Parquet files themselves: rows, order and weights are those of rows that Spark feeds."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import LOCAL
from pyspark.sql import functions as F
from train_functions import write

from tfos_ml import KerasEstimator, TFEstimator, errors

ROWS = [130, 1, 0, 57, 300]  # of each file
GROUPS = [40, 1, 1, 57, 7]  # rows of each of its row groups, at most
TOTAL, WIDTH = sum(ROWS), 6


@pytest.fixture(scope="module")
def spark(sessions):
    return sessions.get(LOCAL)


def table(first: int, rows: int) -> pa.Table:
    ids = np.arange(first, first + rows)
    x = np.sin(np.outer(ids + 1, np.arange(1, WIDTH + 1))).astype(np.float32)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, rows * WIDTH + 1, WIDTH), pa.int32()), pa.array(x.ravel()))
    columns = {"id": ids, "features": lists, "label": np.cos(ids * 0.1), "weight": 1 + ids % 3 * 0.5}
    return pa.table({**columns, "held": ids % 5 == 0, "name": [f"row {i} é" for i in ids]})


def write_files(directory: Path) -> Path:
    """Files of very different sizes, with row groups of different numbers of rows, one of them without a row."""
    directory.mkdir()
    first = 0
    for number, (rows, group) in enumerate(zip(ROWS, GROUPS, strict=True)):
        # a name that paths must quote
        path = directory / f"part {number}%.parquet"
        pq.write_table(table(first, rows), path, row_group_size=group, compression="snappy")
        first += rows
    return directory


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("direct") / "some files")


@contextlib.contextmanager
def partition_bytes(spark, size):
    """Has Spark split files into partitions of at most so many bytes."""
    names = ["spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes"]
    try:
        for name in names:
            spark.conf.set(name, str(size))
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


def record(args, ctx):
    """Record the ids of each pass, and the weights of a line fitted to them step by step."""
    weights = np.zeros(WIDTH, np.float32)
    passes = []
    for _ in range(2):
        ids: list[int] = []
        for batch, label in ctx.dataset():
            ids += [int(i) for i in batch["id"]]
            x = np.asarray(batch["x"])
            weights -= np.float32(0.05) * (x.T @ (x @ weights - np.asarray(label, np.float32))) / len(x)
        passes.append(ids)
    write(args, ctx, {"passes": passes, "weights": weights.view(np.int32).tolist(), "counts": [ctx.row_count]})


def passes_of(df, directory: Path, path: str, workers: int = 2, **params) -> list[dict]:
    directory = directory / f"{path}-{workers}"
    directory.mkdir()
    estimator = TFEstimator(
        trainFn=record,
        tfArgs={"directory": str(directory)},
        inputMapping={"id": "id", "features": "x"},
        clusterSize=workers,
        batchSize=32,
        seed=3,
        verbose=0,
        inputPath=path,
        **params,
    )
    with pytest.warns(errors.TfosMlWarning):
        estimator.fit(df)
    return [json.loads(p.read_text()) for p in sorted(directory.glob("*.json"))]


@pytest.mark.parametrize("size", [2000, 5000, 128 << 20])
def test_positions_of_rows_in_partitions_are_those_of_spark(spark, files, size):
    """Without a fit: which row has which id, by the plan and by Spark."""
    from tfos_ml.agent.file_rows import read_share
    from tfos_ml.data.schema import FeedSchema, column_spec
    from tfos_ml.driver.file_plan import make_plan
    from tfos_ml.protocol.template import make_template

    with partition_bytes(spark, size):
        df = spark.read.parquet(str(files))
        numbered = df.select(F.col("id").alias("c0"), F.monotonically_increasing_id().alias("row"))
        expected = sorted((r["row"], r["c0"]) for r in numbered.collect())
        plan = make_plan(df, ["id"], None, lambda: numbered)
        partitions = numbered.rdd.getNumPartitions()
    assert partitions > (1 if size < 1 << 20 else 0)
    schema = FeedSchema((column_spec(df.schema, "id", "id", "feature"),))
    shares = [
        [
            pair
            for b in read_share(plan, schema, make_template(3), rank)
            for pair in zip(*b.to_pydict().values(), strict=True)
        ]
        for rank in range(3)
    ]
    found = sorted((row, value) for share in shares for value, row in share)
    assert found == expected
    assert max(map(len, shares)) - min(map(len, shares)) <= partitions


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_node_has_the_same_rows_in_the_same_order_both_ways(spark, files, tmp_path, workers, shuffle):
    with partition_bytes(spark, 4000):
        df = spark.read.parquet(str(files)).select("id", "features", "label")
        fed, direct = (passes_of(df, tmp_path, path, workers, shuffle=shuffle) for path in ("spark", "direct"))
    assert direct == fed
    for epoch in (0, 1):
        assert sorted(i for node in direct for i in node["passes"][epoch]) == list(range(TOTAL))


def test_more_nodes_than_row_groups(spark, tmp_path):
    directory = tmp_path / "one group"
    directory.mkdir()
    pq.write_table(table(0, 50), directory / "one.parquet")
    df = spark.read.parquet(str(directory))
    fed, direct = (passes_of(df, tmp_path, path, 3) for path in ("spark", "direct"))
    assert direct == fed
    assert sorted(i for node in direct for i in node["passes"][0]) == list(range(50))


def fit_keras(df, directory: Path, path: str, workers: int = 2, **params):
    """A model, and its weights at the end of training."""
    import keras

    class SaveWeights(keras.callbacks.Callback):
        chief_only = True

        def on_train_end(self, logs=None):
            np.savez(str(directory / f"{path}.npz"), *self.model.get_weights())

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((WIDTH,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    fixed = {"batchSize": 32, "epochs": 2, "seed": 3, "verbose": 0, "callbacks": [SaveWeights()]}
    fitted = KerasEstimator(model=model, clusterSize=workers, inputPath=path, **{**fixed, **params}).fit(df)
    with np.load(directory / f"{path}.npz") as saved:
        return fitted, [saved[name].tobytes() for name in saved.files]


@pytest.mark.parametrize(
    "params",
    [
        {"validationSplit": 0.25},
        {"shuffle": False, "weightCol": "weight", "batchSize": 7},
        {"validationIndicatorCol": "held", "nullPolicy": "skip"},
    ],
    ids=["a split, shuffled", "weighted, in order", "validation column"],
)
def test_weights_of_keras_are_the_same_bit_for_bit_both_ways(spark, files, tmp_path, params):
    with partition_bytes(spark, 4000):
        df = spark.read.parquet(str(files))
        fed, weights = fit_keras(df, tmp_path, "spark", **params)
        direct, others = fit_keras(df, tmp_path, "direct", **params)
    assert others == weights
    assert direct.history == fed.history
    assert (
        direct.summary["rows"] == fed.summary["rows"] == (TOTAL - 98 if "validationIndicatorCol" in params else TOTAL)
    )
