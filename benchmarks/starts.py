"""How long small fits take, with nodes forked from a process that has imported TensorFlow, and started afresh.

In turns, in one session: 2,000 rows of 10 floats, one epoch. The first fit of each kind, which starts the fork server,
is not counted. A CrossValidator has four param maps, three folds and a parallelism of two: thirteen fits, each model of
which scores its fold. The first fit of a session, and the first transform after it, are measured in sessions of their
own.

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


def keras_fit(df: DataFrame, workers: int) -> Any:
    """Train the classifier for an epoch."""
    from tfos_ml import KerasEstimator

    return KerasEstimator(model=model, clusterSize=workers, epochs=1, batchSize=100, verbose=0).fit(df)


def tf_fit(df: DataFrame, workers: int) -> None:
    """Run the train function."""
    from tfos_ml import TFEstimator

    TFEstimator(trainFn=read_all, clusterSize=workers, labelCol="label", verbose=0).fit(df)


def seconds(what: Callable[[], object]) -> float:
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


def search(df: DataFrame) -> None:
    """Try four numbers of epochs on three folds."""
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    from tfos_ml import KerasEstimator

    estimator = KerasEstimator(model=model, batchSize=100, verbose=0)
    maps = ParamGridBuilder().addGrid(estimator.getParam("epochs"), [1, 2, 3, 4]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    CrossValidator(estimator=estimator, estimatorParamMaps=maps, evaluator=evaluator, numFolds=3, parallelism=2).fit(df)


def searches(rounds: int) -> None:
    """Cross-validations of a session that is under way."""
    spark = session(1)
    df = rows(spark)
    pairs = []
    for _ in range(rounds):
        pair = []
        for idle in (FORKED, FRESH):
            spark.conf.set(IDLE, idle)
            pair.append(seconds(lambda: search(df)))
        pairs.append((pair[0], pair[1]))
    show("CrossValidator, 4 maps, 3 folds", pairs)
    spark.stop()


def first_fit(idle: str, workers: int) -> None:
    """The first fit of a session, in this process, and the first transform after it; prints their seconds."""
    spark = session(workers)
    df = rows(spark)
    spark.conf.set(IDLE, idle)
    fitted: list[Any] = []
    fit_seconds = seconds(lambda: fitted.append(keras_fit(df, workers)))
    print(fit_seconds, seconds(lambda: fitted[0].transform(df).agg({"prediction": "sum"}).collect()))
    spark.stop()


def first_fits(workers: int, rounds: int) -> None:
    """First fits and transforms of sessions, each session in a process of its own."""
    fits, transforms = [], []
    for _ in range(rounds):
        sides = []
        for idle in (FORKED, FRESH):
            command = [sys.executable, __file__, "--first", idle, "--workers", str(workers)]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
            sides.append([float(figure) for figure in done.stdout.splitlines()[-1].split()])
        (forked_fit, forked_transform), (fresh_fit, fresh_transform) = sides
        fits.append((forked_fit, fresh_fit))
        transforms.append((forked_transform, fresh_transform))
    show(f"first KerasEstimator.fit, {workers} worker(s)", fits)
    show("first transform after it", transforms)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first is not None:
        first_fit(options.first, options.workers)
        return
    print(f"{'medians of ' + str(options.rounds):44} {'forked':>9} {'fresh':>9}   ratio (range)")
    for workers in MASTERS:
        later_fits(workers, options.rounds)
        first_fits(workers, options.rounds)
    searches(options.rounds)


if __name__ == "__main__":
    main()
