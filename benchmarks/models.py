"""How fast KerasEstimator trains models that people have: embeddings, BatchNormalization, attention and dropout.

Each worker is a process of one thread, on ``local-cluster[2,1,4096]``. One worker is compared with plain ``Model.fit``
in a process of one thread; two workers with two plain processes at once, each with half of the rows and of the batch,
which exchange nothing. The same two in step begin no batch before the other has ended the last one, which shows what
waiting for each other costs, whatever is exchanged. Where it says so, two workers are compared with two that train the
same model less exactly: with ``batchStatistics="local"``, or with random numbers that each worker draws for its own
rows. All take turns. Rates are those of all epochs but the first, which traces the graph; start-up is left out.

    python benchmarks/models.py [--rounds 2] [--models recommender large_tables residual transformer lstm]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pandas as pd
from executors import session
from pyspark.sql import DataFrame, SparkSession
from training import EPOCHS, ONE_THREAD, compare, plain_keras, rate_in_step, rate_of_plain_keras, steady_rate

from tfos_ml import KerasEstimator

TABLES, NUMBERS, LENGTH, SIDE = 26, 13, 64, 32


def recommender(table_rows: int) -> Any:
    """A model of 26 categories and 13 numbers, as for the Criteo data: embeddings of 16 and a perceptron."""
    import keras

    layers = keras.layers
    numbers, categories = layers.Input((NUMBERS,), name="numbers"), layers.Input((TABLES,), name="c", dtype="int32")
    embedded = [layers.Embedding(table_rows, 16)(categories[:, i]) for i in range(TABLES)]
    hidden = layers.Concatenate()([numbers, *embedded])
    for units in (64, 32):
        hidden = layers.Dense(units, "relu")(hidden)
    return keras.Model([numbers, categories], layers.Dense(1, "sigmoid")(hidden))


def residual() -> Any:
    """A residual network for 32x32 images, as of He et al. (2016), section 4.2, with n = 2: 13 BatchNormalizations."""
    import keras

    layers = keras.layers

    def convolved(x: Any, filters: int, strides: int = 1) -> Any:
        return layers.BatchNormalization()(layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x))

    images = layers.Input((SIDE * SIDE * 3,), name="images")
    x = layers.ReLU()(convolved(layers.Reshape((SIDE, SIDE, 3))(images), 16))
    for filters, block in itertools.product((16, 32, 64), range(2)):
        strides = 2 if filters > 16 and not block else 1
        y = convolved(layers.ReLU()(convolved(x, filters, strides)), filters)
        x = x if x.shape == y.shape else layers.Conv2D(filters, 1, strides)(x)
        x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(images, layers.Dense(1, "sigmoid")(layers.GlobalAveragePooling2D()(x)))


def transformer(rate: float) -> Any:
    """Two blocks of attention and a feed-forward layer over 64 tokens, with dropout."""
    import keras

    layers, ops = keras.layers, keras.ops
    tokens = layers.Input((LENGTH,), name="tokens", dtype="int32")
    places = layers.Embedding(LENGTH, 64)(ops.arange(LENGTH))
    x = layers.Embedding(5_000, 64)(tokens) + places
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 16, dropout=rate)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(rate)(attended)]))
        hidden = layers.Dropout(rate)(layers.Dense(64)(layers.Dense(128, "relu")(x)))
        x = layers.LayerNormalization()(layers.Add()([x, hidden]))
    pooled = layers.Dropout(rate)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(tokens, layers.Dense(1, "sigmoid")(pooled))


def lstm(rate: float) -> Any:
    """Two LSTMs over 64 tokens, with dropout of their inputs."""
    import keras

    layers = keras.layers
    tokens = layers.Input((LENGTH,), name="tokens", dtype="int32")
    x = layers.LSTM(64, dropout=rate, return_sequences=True)(layers.Embedding(5_000, 32)(tokens))
    return keras.Model(tokens, layers.Dense(1, "sigmoid")(layers.LSTM(64, dropout=rate)(x)))


def own_draws() -> dict[str, Any]:
    """Params by which each worker draws random numbers for its own rows only, so not those of plain Keras."""
    import keras

    class OwnDraws(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):  # after the probe, which would refuse it
            from tfos_ml.keras.step.random_draws import RowsOfStep

            RowsOfStep.draws = lambda rows: contextlib.nullcontext()

    return {"callbacks": [OwnDraws()]}


def tabular_rows(table_rows: int) -> Callable[[Any, int], dict[str, np.ndarray]]:
    """Makes rows of numbers and categories."""

    def make(random: Any, rows: int) -> dict[str, np.ndarray]:
        categories = random.integers(0, table_rows, (rows, TABLES), np.int32)
        return {"numbers": random.random((rows, NUMBERS), np.float32), "c": categories}

    return make


def image_rows(random: Any, rows: int) -> dict[str, np.ndarray]:
    """Flat images."""
    return {"images": random.random((rows, SIDE * SIDE * 3), np.float32)}


def token_rows(random: Any, rows: int) -> dict[str, np.ndarray]:
    """Sequences of tokens."""
    return {"tokens": random.integers(0, 5_000, (rows, LENGTH), np.int32)}


@dataclass(frozen=True)
class Workload:
    """A model and its rows.

    `aim` is for two workers beside two plain processes; `other` is what two workers are compared with in addition:
    name, Params, aim.
    """

    model: Callable[[], Any]
    make_rows: Callable[[Any, int], dict[str, np.ndarray]]
    rows: int
    batch: int
    aim: float | None = None
    other: tuple[str, Callable[[], dict[str, Any]], float] | None = None

    def compiled(self) -> Any:
        """A compiled model."""
        built = self.model()
        built.compile("adam", "binary_crossentropy")
        return built

    def arrays(self, rows: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Inputs and labels."""
        random = np.random.default_rng(seed)
        return self.make_rows(random, rows), random.integers(0, 2, rows).astype(np.float32)


WORKLOADS = {
    "recommender": Workload(lambda: recommender(5_000), tabular_rows(5_000), 200_000, 1024, aim=0.8),
    "large_tables": Workload(lambda: recommender(100_000), tabular_rows(100_000), 40_000, 1024),
    "residual": Workload(
        residual, image_rows, 3_000, 128, other=("2 with local statistics", lambda: {"batchStatistics": "local"}, 0.7)
    ),
    "transformer": Workload(
        lambda: transformer(0.1),
        token_rows,
        6_000,
        128,
        other=("2 with draws of their own", own_draws, 0.9),
    ),
    "lstm": Workload(
        lambda: lstm(0.2),
        token_rows,
        6_000,
        128,
        other=("2 with draws of their own", own_draws, 0.9),
    ),
}


def frame(spark: SparkSession, workload: Workload) -> DataFrame:
    """The workload's rows, cached."""
    names = list(workload.arrays(1)[0])
    types = {"i": "array<int>", "f": "array<float>"}
    schema = ", ".join(f"`{n}` {types[workload.arrays(1)[0][n].dtype.kind]}" for n in names)

    def fill(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for number, batch in enumerate(batches):
            inputs, labels = workload.arrays(len(batch), number)
            yield pd.DataFrame({**{name: list(values) for name, values in inputs.items()}, "label": labels})

    df = spark.range(0, workload.rows, 1, 4).mapInPandas(fill, f"{schema}, label float").cache()
    assert df.count() == workload.rows
    return df


def rate_of_fit(df: DataFrame, workload: Workload, workers: int, **params: Any) -> float:
    """Rows a second of KerasEstimator."""
    names = list(workload.arrays(1)[0])
    estimator = KerasEstimator(
        model=workload.compiled(),
        inputMapping={name: name for name in names},
        clusterSize=workers,
        epochs=EPOCHS,
        batchSize=workload.batch,
        nodeEnv=ONE_THREAD,
        verbose=0,
        **params,
    )
    summary = estimator.fit(df).summary
    return steady_rate(summary.rows, summary.epochSeconds)


def measure(spark: SparkSession, name: str, rounds: int) -> None:
    """Print rates and, round by round, ratios."""
    workload = WORKLOADS[name]
    df = frame(spark, workload)
    contenders: dict[str, Callable[[], float]] = {
        "plain keras": lambda: rate_of_plain_keras(name, workload.rows, workload.batch, script=__file__),
        "1 worker": lambda: rate_of_fit(df, workload, 1),
        "2 plain at once": lambda: rate_of_plain_keras(name, workload.rows, workload.batch, 2, script=__file__),
        "2 plain in step": lambda: rate_in_step(name, workload.rows, workload.batch, script=__file__),
    }
    beside: dict[str, list[tuple[str, float | None]]] = {
        "1 worker": [("plain keras", None)],
        "2 plain in step": [("2 plain at once", None)],
        "2 workers": [("2 plain at once", workload.aim), ("2 plain in step", None)],
    }
    if workload.other is not None:
        other, params, aim = workload.other
        contenders[other] = lambda: rate_of_fit(df, workload, 2, **params())
        beside["2 workers"].append((other, aim))
    contenders["2 workers"] = lambda: rate_of_fit(df, workload, 2)
    title = f"{name}, batch {workload.batch}, {workload.rows:,} rows an epoch, {rounds} rounds, medians:"
    compare(title, contenders, beside, rounds)
    df.unpersist()


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--plain", choices=list(WORKLOADS), help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        workload = WORKLOADS[arguments.plain]
        inputs, labels = workload.arrays(arguments.rows)
        plain_keras(workload.compiled(), inputs, labels, arguments.batch, arguments.peer)
        return
    spark = session()
    for name in arguments.models:
        measure(spark, name, arguments.rounds)
    spark.stop()


if __name__ == "__main__":
    main()
