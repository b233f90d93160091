"""Sparse vectors, as ``HashingTF`` makes them of documents, beside plain Keras that makes one batch at a time dense.

    python benchmarks/sparse_vectors.py [--documents 10000] [--width 262144] [--workers 1]

One run of each on ``local[2]`` shows the seconds of an epoch, those of ``transform`` beside ``predict``, and how far
the memory in use on the machine rises. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import psutil
from peak_memory import Peak
from pyspark.ml import Pipeline
from pyspark.ml.feature import IDF, HashingTF, Tokenizer
from pyspark.sql import DataFrame, SparkSession

from tfos_ml import KerasEstimator

WORDS, VOCABULARY, BATCH, EPOCHS = 120, 30_000, 32, 3


def documents(spark: SparkSession, count: int, width: int) -> DataFrame:
    """Vectors of documents of two kinds, which differ in their words."""
    random = np.random.default_rng(0)
    kinds = random.integers(0, 2, count)
    words = random.zipf(1.3, (count, WORDS)) % (VOCABULARY // 2) + kinds[:, None] * (VOCABULARY // 2)
    texts = [(" ".join(map(str, row)), int(kind)) for row, kind in zip(words.tolist(), kinds, strict=True)]
    df = spark.createDataFrame(texts, "text string, label long").repartition(4)
    hashed = HashingTF(inputCol="words", outputCol="counts", numFeatures=width)
    stages = [Tokenizer(inputCol="text", outputCol="words"), hashed, IDF(inputCol="counts", outputCol="features")]
    return Pipeline(stages=stages).fit(df).transform(df).select("features", "label").cache()


def network(width: int) -> keras.Model:
    """A compiled classifier."""
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.layers.Input((width,)), dense(32, activation="relu"), dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy")
    return model


class Batches(keras.utils.PyDataset):
    """Batches of rows that are kept sparse."""

    def __init__(self, rows: list[Any], width: int):
        super().__init__()
        self._rows, self._width = rows, width

    def __len__(self) -> int:
        return -(-len(self._rows) // BATCH)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        rows = self._rows[number * BATCH : (number + 1) * BATCH]
        x = np.zeros((len(rows), self._width), np.float32)
        for i, (vector, _) in enumerate(rows):
            x[i, vector.indices] = vector.values
        return x, np.array([label for _, label in rows])


def in_use() -> int:
    """Bytes of memory that are not available on this machine."""
    memory = psutil.virtual_memory()
    return memory.total - memory.available


def seconds(function: Callable[[], Any]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def spark_figures(df: DataFrame, width: int, workers: int) -> tuple[float, float, float]:
    """Seconds of the last epoch and of a transform, and the loss."""
    fixed = {"clusterSize": workers, "epochs": EPOCHS, "batchSize": BATCH, "shuffle": False, "verbose": 0}
    model = KerasEstimator(model=network(width), **fixed).fit(df)
    model.transform(df.limit(1)).collect()  # starts the process that scores
    scoring = seconds(lambda: model.transform(df).select("prediction").collect())
    return model.summary.epochSeconds[-1], scoring, model.summary.history["loss"][-1]


def plain_figures(rows: list[Any], width: int) -> tuple[float, float, float]:
    """The same of plain Keras."""
    model, batches, ends = network(width), Batches(rows, width), [time.perf_counter()]
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: ends.append(time.perf_counter()))
    history = model.fit(batches, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[note]).history
    scoring = seconds(lambda: model.predict(batches, verbose=0))
    return ends[-1] - ends[-2], scoring, history["loss"][-1]


def main() -> None:
    """Run both, and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=262_144)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
    df = documents(spark, options.documents, options.width)
    rows = [tuple(row) for row in df.collect()]
    before = in_use()
    with Peak(in_use) as our_peak:
        ours = spark_figures(df, options.width, options.workers)
    spark.stop()
    with Peak(in_use) as plain_peak:
        plain = plain_figures(rows, options.width)
    print(f"{options.documents:,} documents as vectors of {options.width:,}, {options.workers} workers")
    for name, mine, other in zip(("epoch", "all rows scored"), ours, plain, strict=False):
        print(f"{name}: {mine:.1f} s, plain Keras {other:.1f} s, ratio {mine / other:.2f}")
    print(
        f"most memory: {(our_peak.bytes - before) >> 20:,} MiB, plain Keras {(plain_peak.bytes - before) >> 20:,} MiB"
    )
    print(f"last loss: {ours[2]:.6g}, plain Keras {plain[2]:.6g}")


if __name__ == "__main__":
    main()
