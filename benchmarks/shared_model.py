"""Memory and speed of transforms whose Python workers share one scoring process, beside a model in each worker.

Eight Python workers of one executor score at once, with models of several sizes: a table of floats, of which each row
of the input takes one. Memory is what all of Spark's Python workers, the fork server and the scoring process have
together (PSS: what several share counts once), sampled while they score; what is left when the same is measured with
a model of 1 MB is the model itself, in copies. Rows a second are those of a second, warm transform, in turns.

    python benchmarks/shared_model.py [--rounds 3] [--megabytes 1 100 500]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from executors import session
from peak_memory import Peak
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tfos_ml import TFModel

WORKERS = 8
ROWS = 400_000
KINDS = ("executor", "worker")
WIDTH = 256  # floats a row of the table


def save_model(megabytes: int, path: str) -> None:
    """A table of so many megabytes; the output is the sum of the row that the input names."""
    import tensorflow as tf

    rows = megabytes * (1 << 20) // (4 * WIDTH)
    module = tf.Module()
    module.table = tf.Variable(np.random.default_rng(0).random((rows, WIDTH), dtype=np.float32))
    module.serve = tf.function(lambda number: {"y": tf.reduce_sum(tf.gather(module.table, number % rows), 1)})
    spec = tf.TensorSpec([None], tf.int64, "number")
    tf.saved_model.save(module, path, signatures=module.serve.get_concrete_function(number=spec))


def rate(df: DataFrame, model: TFModel, kind: str) -> float:
    """Rows a second."""
    df.sparkSession.conf.set("spark.tfos_ml.scoringProcess", kind)
    began = time.perf_counter()
    model.transform(df).agg(F.sum("prediction")).collect()
    return ROWS / (time.perf_counter() - began)


def peak_of(directory: str, kind: str) -> int:
    """Most memory of a transform in a session of its own."""
    spark = session(1, WORKERS)
    try:
        with Peak() as peak:
            rate(numbers(spark), loaded(directory), kind)
        return peak.bytes
    finally:
        spark.stop()


def numbers(spark: SparkSession) -> DataFrame:
    """Row numbers, in a partition for each Python worker."""
    df = spark.range(0, ROWS, 1, WORKERS).withColumnRenamed("id", "number").cache()
    df.count()
    return df


def loaded(directory: str) -> TFModel:
    """The model of a directory."""
    return TFModel(exportDir=directory, inputMapping={"number": "number"}, predictBatchSize=1024)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 100, 500])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        places = {size: os.path.join(root, str(size)) for size in options.megabytes}
        for size, place in places.items():
            save_model(size, place)
        measure_memory(places)
        measure_speed(places, options.rounds)


def measure_memory(places: dict[int, str]) -> None:
    """Print peaks, and what of them the model is."""
    print(f"peak memory of {WORKERS} Python workers and what they share, in MB, and copies of the model in it")
    peaks = {kind: {size: peak_of(place, kind) / (1 << 20) for size, place in places.items()} for kind in KINDS}
    least = min(places)
    for size in places:
        told = []
        for kind in KINDS:
            copies = (peaks[kind][size] - peaks[kind][least]) / (size - least) if size > least else 0.0
            told.append(f"{kind} {peaks[kind][size]:7,.0f} ({copies:4.1f} copies)")
        print(f"  model of {size:4} MB: " + "   ".join(told), flush=True)


def measure_speed(places: dict[int, str], rounds: int) -> None:
    """Print rows a second of both kinds, in turns."""
    print(f"rows a second, medians of {rounds} (range of the ratio)")
    spark = session(1, WORKERS)
    df = numbers(spark)
    for size, place in places.items():
        model = loaded(place)
        pairs = [tuple(rate(df, model, kind) for kind in KINDS) for _ in range(rounds + 1)][1:]
        shared, own = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = sorted(one / other for one, other in pairs)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"  model of {size:4} MB: executor {shared:10,.0f}   worker {own:10,.0f}   {spread}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
