"""The driver of a cluster under test: ``python driver_programs.py <settings>``, a program and its end a line.

Runs what the tests ask for in one Spark session after the other as a user would: ``fit`` of a ``TFEstimator`` with a
function of ``cluster_train_functions.py``. One JSON object a line on stdin begins a program; one on stdout says how
it ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cluster_train_functions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tfos_ml import InputMode, KerasEstimator, TFCluster, TFEstimator, errors

WIDE = 1000  # longs in one row: 8 kB


def rows(spark: SparkSession, count: int, partitions: int, wide: bool, held: str | None) -> DataFrame:
    """Rows with their number as features, or with 8 kB of it; the first partition only once a file is there."""
    df = spark.range(0, count, 1, partitions)
    if held is not None:
        df = df.mapInArrow(partial(hold_first_partition, held), df.schema)
    return df.select((F.array_repeat("id", WIDE) if wide else F.col("id")).alias("features"))


def hold_first_partition(file: str, batches: Iterator[Any]) -> Iterator[Any]:
    """All rows, those of the first partition once `file` is there: so the input can be tampered with meanwhile."""
    from pyspark import TaskContext

    if TaskContext.get().partitionId() == 0:
        cluster_train_functions.wait_for_file(Path(file))
    yield from batches


def fit(
    spark: SparkSession,
    train: str,
    directory: str,
    count: int = 100,
    partitions: int = 4,
    wide: bool = False,
    held: bool = False,
    **params: Any,
) -> dict[str, Any]:
    """Fit; returns the summary.

    With `held` as in :func:`rows`, until the test makes the file "mapped".
    """
    params = {"clusterSize": 2, "verbose": 0, "reservationTimeout": 60.0, "feedTimeout": 60.0, **params}
    function = getattr(cluster_train_functions, train)
    estimator = TFEstimator(trainFn=function, tfArgs={"directory": directory}, **params)
    model = estimator.fit(rows(spark, count, partitions, wide, f"{directory}/mapped" if held else None))
    return {"rows": model.summary.rows, "history": model.summary.history}


def fit_keras(spark: SparkSession, directory: str, is_slow: bool = False, **params: Any) -> dict[str, Any]:
    """Fit a Keras model, whose steps may be slow."""
    params, functions = {"clusterSize": 2, **params}, cluster_train_functions
    df = spark.range(0, 400, 1, 4).select((F.col("id") / 400).alias("features"), (F.col("id") / 200).alias("label"))
    model = KerasEstimator(
        model=functions.linear,
        callbacks=[functions.slow_steps(directory)] if is_slow else [],
        epochs=3,
        seed=7,
        verbose=0,
        modelDir=f"{directory}/checkpoints",
        exportDir=f"{directory}/model",
        **params,
    ).fit(df)
    summary = model.summary
    return {"rows": summary.rows, "history": summary.history, "attempts": summary.attempts}


def feed(spark: SparkSession, directory: str) -> dict[str, Any]:
    """Feed a cluster of two nodes; returns where it was, and how many rows they read."""
    context = spark.sparkContext
    function = cluster_train_functions.read_all
    with TFCluster.run(context, function, None, 2, input_mode=InputMode.SPARK, reservation_timeout=60) as cluster:
        cluster.train(context.range(100, numSlices=4))
    return {
        "rows": cluster.summary["rows"],
        "location": cluster._control.address.location,
        "nodes": cluster.cluster_info,
    }


PROGRAMS = {"fit": fit, "keras": fit_keras, "feed": feed}


def run(spark: SparkSession, program: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """How a program ended."""
    began = time.monotonic()
    try:
        outcome: dict[str, Any] = {"result": PROGRAMS[program](spark, **arguments)}
    except BaseException as error:
        outcome = {
            "error": type(error).__name__,
            "typed": isinstance(error, errors.TfosMlError),
            "message": str(error),
            "node": f"{error.role}:{error.index}" if isinstance(error, errors.NodeError) else None,
            "host": getattr(error, "host", None),
        }
    return {**outcome, "seconds": time.monotonic() - began}


def main() -> None:
    settings = json.loads(sys.argv[1])
    spark = SparkSession.builder.config(map=settings).appName("tfos_ml cluster tests").getOrCreate()
    for line in sys.stdin:
        print(json.dumps(run(spark, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the log
    main()
