"""How long small fits take, with nodes forked from a process that has imported TensorFlow, and started afresh.

In turns, in one session: 2,000 rows of 10 floats, one epoch. The first fit of each kind, which starts the fork server,
is not counted. The first fit of a session is measured in sessions of their own.

    python benchmarks/starts.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

IDLE = "spark.tfos_ml.idleSeconds"
FORKED, FRESH = "300", "0"
MASTERS = {1: "local[2]", 2: "local-cluster[2,1,1024]"}


def session(workers: int) -> SparkSession:
    """A session with room for so many nodes."""
    builder = SparkSession.builder.master(MASTERS[workers]).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.showConsoleProgress", "false")
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def rows(spark: SparkSession) -> DataFrame:
    """2,000 rows of 10 floats, cached."""
    x = np.random.default_rng(0).normal(size=(2000, 10)).astype("float32")
    frame = pd.DataFrame({"features": list(x), "label": (x.sum(1) > 0).astype("int64")})
    df = spark.createDataFrame(frame).repartition(2).cache()
    df.count()
    return df


def model() -> Any:
    """A small classifier."""
    import keras

    layers = [keras.layers.Input((10,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2, "softmax")]
    built = keras.Sequential(layers)
    built.compile("adam", "sparse_categorical_crossentropy")
    return built


def read_all(args: Any, ctx: Any) -> None:
    """Train function that reads its rows."""
    for _ in ctx.dataset():
        pass


def keras_fit(df: DataFrame, workers: int) -> None:
    """Train the classifier for an epoch."""
    from tfos_ml import KerasEstimator

    KerasEstimator(model=model, clusterSize=workers, epochs=1, batchSize=100, verbose=0).fit(df)


def tf_fit(df: DataFrame, workers: int) -> None:
    """Run the train function."""
    from tfos_ml import TFEstimator

    TFEstimator(trainFn=read_all, clusterSize=workers, labelCol="label", verbose=0).fit(df)


def seconds(what: Callable[[], None]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def show(what: str, pairs: list[tuple[float, float]]) -> None:
    """Medians of forked and fresh, and of their ratio with its range."""
    forked, fresh = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(one / other for one, other in pairs)
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    print(f"{what:44} {forked:7.2f} s {fresh:7.2f} s   {spread}", flush=True)


def later_fits(workers: int, rounds: int) -> None:
    """Fits of a session that is under way."""
    spark = session(workers)
    df = rows(spark)
    for name, fit in {"KerasEstimator": keras_fit, "TFEstimator": tf_fit}.items():
        pairs = []
        for number in range(rounds + 1):
            pair = []
            for idle in (FORKED, FRESH):
                spark.conf.set(IDLE, idle)
                pair.append(seconds(lambda fit=fit: fit(df, workers)))  # type: ignore[misc]
            if number:
                pairs.append((pair[0], pair[1]))
        show(f"later {name}.fit, {workers} worker(s)", pairs)
    spark.stop()


def first_fit(idle: str) -> None:
    """The first fit of a session, in this process; prints its seconds."""
    spark = session(2)
    df = rows(spark)
    spark.conf.set(IDLE, idle)
    print(seconds(lambda: keras_fit(df, 2)))
    spark.stop()


def first_fits(rounds: int) -> None:
    """First fits of sessions, each in a process of its own."""
    pairs = []
    for _ in range(rounds):
        pair = []
        for idle in (FORKED, FRESH):
            command = [sys.executable, __file__, "--first", idle]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
            pair.append(float(done.stdout.splitlines()[-1]))
        pairs.append((pair[0], pair[1]))
    show("first KerasEstimator.fit, 2 workers", pairs)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first is not None:
        first_fit(options.first)
        return
    print(f"{'medians of ' + str(options.rounds):44} {'forked':>9} {'fresh':>9}   ratio (range)")
    for workers in MASTERS:
        later_fits(workers, options.rounds)
    first_fits(options.rounds)


if __name__ == "__main__":
    main()
