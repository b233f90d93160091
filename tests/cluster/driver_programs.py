"""The driver of a cluster under test: ``python driver_programs.py <settings>``, a program and its end a line.

Runs what the tests ask for in one Spark session after the other as a user would. One JSON object a line on stdin begins
a program; one on stdout says how it ended.
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

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tfos_ml import InputMode, KerasEstimator, TFCluster, TFEstimator, errors

WIDE = 1000  # longs in one row: 8 kB
DEADLINE = 120.0


def hold_first_partition(file: str, batches: Iterator[Any]) -> Iterator[Any]:
    """All rows, those of the first partition once `file` is there: so the input can be tampered with meanwhile."""
    from pyspark import TaskContext

    deadline = time.monotonic() + DEADLINE
    while TaskContext.get().partitionId() == 0 and not os.path.exists(file):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the test has not made {file}")
        time.sleep(0.05)
    yield from batches


def read(args: Any, ctx: Any) -> None:
    """Read the feed, and tell how many rows there were."""
    feed, rows = ctx.get_data_feed(), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(1000))
    ctx.report({"rows_here": rows}, epoch=0)


def fit(spark: SparkSession, directory: str, count: int, partitions: int) -> dict[str, Any]:
    """Fit to wide rows, some of which wait until the test makes the file "mapped"; it may be repeated once."""
    hold = partial(hold_first_partition, f"{directory}/mapped")
    held = spark.range(0, count, 1, partitions).mapInArrow(hold, "id long")
    params = {"reservationTimeout": 60.0, "feedTimeout": 60.0, "maxRestarts": 1, "verbose": 0}
    estimator = TFEstimator(trainFn=read, clusterSize=2, **params)
    summary = estimator.fit(held.select(F.array_repeat("id", WIDE).alias("features"))).summary
    return {"rows": summary.rows, "history": summary.history, "ended": [a["ended"] for a in summary.attempts]}


def linear():
    """A Keras model of one weight and one bias."""
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def slow_steps(directory: str) -> Any:
    """A callback that tells of the first step, and makes steps last long enough for the test to interfere."""
    import keras

    class SlowSteps(keras.callbacks.Callback):
        chief_only = True

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            (Path(directory) / "trains").touch()
            time.sleep(0.3)

    return SlowSteps()


def fit_keras(spark: SparkSession, directory: str, is_slow: bool = False, **params: Any) -> dict[str, Any]:
    """Fit a Keras model, whose steps may be slow."""
    df = spark.range(0, 400, 1, 4).select((F.col("id") / 400).alias("features"), (F.col("id") / 200).alias("label"))
    summary = (
        KerasEstimator(
            model=linear,
            callbacks=[slow_steps(directory)] if is_slow else [],
            clusterSize=2,
            epochs=3,
            seed=7,
            verbose=0,
            modelDir=f"{directory}/checkpoints",
            **params,
        )
        .fit(df)
        .summary
    )
    return {"rows": summary.rows, "history": summary.history, "attempts": summary.attempts}


def feed(spark: SparkSession) -> dict[str, Any]:
    """Feed a cluster of two nodes; returns where it was, and how many rows they read."""
    context = spark.sparkContext
    with TFCluster.run(context, read, None, 2, input_mode=InputMode.SPARK, reservation_timeout=60) as cluster:
        cluster.train(context.range(100, numSlices=4))
    location = cluster._control.address.location
    return {"rows": cluster.summary["rows"], "location": location, "nodes": cluster.cluster_info}


PROGRAMS = {"fit": fit, "keras": fit_keras, "feed": feed}


def run(spark: SparkSession, program: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": PROGRAMS[program](spark, **arguments)}
    except errors.TfosMlError as error:
        return {"error": type(error).__name__, "message": str(error)}


def main() -> None:
    spark = SparkSession.builder.config(map=json.loads(sys.argv[1])).appName("tfos_ml cluster tests").getOrCreate()
    for line in sys.stdin:
        print(json.dumps(run(spark, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the log
    main()
