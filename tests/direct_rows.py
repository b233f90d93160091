"""Parquet files, and fits that record which rows they had, for tests of nodes that read files themselves."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from train_functions import write

from tfos_ml import TFEstimator, errors
from tfos_ml.agent.file_rows import read_share
from tfos_ml.data.schema import FeedSchema, column_spec
from tfos_ml.driver.file_plan import make_plan
from tfos_ml.protocol.template import make_template

ROWS = [130, 1, 0, 57, 300]  # of each file
GROUPS = [40, 1, 1, 57, 7]  # rows of each of its row groups, at most
TOTAL, WIDTH = sum(ROWS), 6


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
        for batch, label in ctx.dataset(wait=args.get("wait", True)):
            ids += [int(i) for i in batch["id"]]
            x = np.asarray(batch["x"]).reshape(len(label), -1)  # some have but one number a row
            line = weights[: x.shape[1]]
            line -= np.float32(0.05) * (x.T @ (x @ line - np.asarray(label, np.float32))) / len(x)
        passes.append(ids)
    write(args, ctx, {"passes": passes, "weights": weights.view(np.int32).tolist(), "counts": [ctx.row_count]})


def passes_of(df, directory: Path, path: str, workers: int = 2, wait: bool = True, **params) -> list[dict]:
    directory = directory / f"{path}-{workers}{'' if wait else '-at once'}"
    directory.mkdir()
    estimator = TFEstimator(
        trainFn=record,
        tfArgs={"directory": str(directory), "wait": wait},
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


def estimator_of(path: str = "auto", **params) -> TFEstimator:
    return TFEstimator(inputPath=path, **{"trainFn": record, "clusterSize": 2, "verbose": 0, **params})


def rows_both_ways(df, columns):
    """Columns of all rows with their ids, as Spark has them and as three nodes read them."""
    numbered = df.select(*(F.col(c).alias(f"c{i}") for i, c in enumerate(columns)), F.monotonically_increasing_id())
    plan = make_plan(df, columns, None, lambda: numbered)
    schema = FeedSchema(tuple(column_spec(df.schema, c, c, "feature") for c in columns))
    shares = [read_share(plan, schema, make_template(3), rank) for rank in range(3)]
    found = [tuple(row.values()) for share in shares for batch in share for row in batch.to_pylist()]
    return sorted(map(tuple, numbered.collect()), key=lambda r: r[-1]), sorted(found, key=lambda r: r[-1])
