"""How fast KerasEstimator trains: one worker beside plain ``Model.fit``, two beside one and beside TensorFlow's own.

Each worker is a process of one thread, on ``local-cluster[2,1,4096]``; plain Keras trains the same rows, in memory, in
a fresh process of one thread. What the machine allows two workers is shown by two plain processes at once, each with
half of the rows and of the batch, which exchange nothing. TensorFlow's own is ``MultiWorkerMirroredStrategy`` with
Keras 2, in two plain processes that have their rows in memory. All take turns. Rates are those of all epochs but the
first, which traces the graph; start-up is left out.

    python benchmarks/training.py [--rounds 3] [--models cnn mlp long] [--scale 1.0]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import peers
import pyarrow as pa
from executors import session
from pyspark.sql import DataFrame, SparkSession
from workloads import WIDTH, layers_of, random_rows

from tfos_ml import KerasEstimator

BATCH, EPOCHS = 256, 4
ROWS = {"cnn": 20_000, "mlp": 120_000, "long": 8_000}
AIMS_OF_ONE = {"cnn": 1.0, "mlp": 0.95, "long": 1.0}  # beside plain Keras
AIMS_OF_TWO = {"cnn": 1.1, "mlp": 2.0, "long": 1.1}  # beside MultiWorkerMirroredStrategy
AIM_OF_LONG = 0.95  # of two workers beside two plain processes, with long steps
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}


def make_model(name: str):
    """A compiled model."""
    import keras

    model = keras.Sequential(layers_of(keras, name))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def frame(spark: SparkSession, rows: int) -> DataFrame:
    """`rows` random rows, cached."""

    def fill(batches):
        for number, batch in enumerate(batches):
            features, labels = random_rows(batch.num_rows, seed=number)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), WIDTH).cast(pa.list_(pa.float32()))
            yield pa.RecordBatch.from_arrays([lists, pa.array(labels)], ["features", "label"])

    df = spark.range(0, rows, 1, 4).mapInArrow(fill, "features array<float>, label int").cache()
    assert df.count() == rows
    return df


def steady_rate(rows: int, epoch_seconds: list[float]) -> float:
    """Rows a second of all epochs but the first."""
    assert len(epoch_seconds) == EPOCHS
    return rows * (EPOCHS - 1) / sum(epoch_seconds[1:])


def rate_of_fit(df: DataFrame, name: str, workers: int) -> float:
    """Rows a second of KerasEstimator."""
    estimator = KerasEstimator(
        model=make_model(name), clusterSize=workers, epochs=EPOCHS, batchSize=BATCH, nodeEnv=ONE_THREAD, verbose=0
    )
    summary = estimator.fit(df).summary
    return steady_rate(summary.rows, summary.epochSeconds)


def rate_of_plain_keras(name: str, rows: int, batch: int, processes: int = 1, script: str = __file__) -> float:
    """Rows a second of ``Model.fit`` in fresh processes of a script, which share rows and batch."""
    shared = rows // processes
    outputs = outputs_of_plain_keras(name, shared, batch // processes, script, [None] * processes)
    return sum(steady_rate(shared, json.loads(output.splitlines()[-1])) for output in outputs)


def rate_in_step(name: str, rows: int, batch: int, script: str = __file__) -> float:
    """Rows a second of two such processes, neither of which begins a batch before the other has ended the last one."""
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(end) for end in socket.socketpair()]
        outputs = outputs_of_plain_keras(name, rows // 2, batch // 2, script, [end.fileno() for end in ends])
    return sum(steady_rate(rows // 2, json.loads(output.splitlines()[-1])) for output in outputs)


def outputs_of_plain_keras(name: str, rows: int, batch: int, script: str, peers: Sequence[int | None]) -> list[str]:
    """What as many processes print as there are `peers`, the sockets by which they keep in step."""
    command = [sys.executable, script, "--plain", name, "--rows", str(rows), "--batch", str(batch)]
    running = [
        subprocess.Popen(
            [*command, *([] if peer is None else ["--peer", str(peer)])],
            env={**os.environ, **ONE_THREAD},
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[] if peer is None else [peer],
        )
        for peer in peers
    ]
    return [process.communicate()[0] for process in running]


def rate_of_mirrored(name: str, rows: int) -> float:
    """Rows a second of two workers of ``MultiWorkerMirroredStrategy``; the slower one's."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        workers = [f"127.0.0.1:{listening.getsockname()[1]}" for listening in sockets]
    command = [peers.python_of("tensorflowonspark"), "mirrored_peer.py", name, str(rows), str(BATCH), str(EPOCHS)]
    running = []
    for index in range(2):
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        environment = {**os.environ, **ONE_THREAD, "TF_CONFIG": config}
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
        )
    outputs = [process.communicate()[0] for process in running]
    rows = rows // BATCH * BATCH
    return min(steady_rate(rows, json.loads(output.splitlines()[-1])) for output in outputs)


def plain_keras(model: Any, x: Any, y: Any, batch: int, peer: int | None = None) -> None:
    """Train in this process; prints the seconds of each epoch. By the socket `peer` it keeps in step with another."""
    import keras

    class InStep(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.peer = socket.socket(fileno=peer)
            self.peer.settimeout(60)

        def on_train_batch_end(self, batch, logs=None):
            self.peer.send(b".")
            self.peer.recv(1)

    class Clock(keras.callbacks.Callback):
        seconds: list[float] = []  # noqa: RUF012

        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.monotonic()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds.append(time.monotonic() - self.began)

    callbacks = [Clock()] if peer is None else [Clock(), InStep()]
    model.fit(x, y, batch_size=batch, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    print(json.dumps(Clock.seconds))


def compare(
    title: str,
    contenders: Mapping[str, Callable[[], float]],
    beside: Mapping[str, Sequence[tuple[str, float | None]]],
    rounds: int,
) -> None:
    """Run contenders in turns; print their rates and, round by round, ratios to those that they stand beside.

    `beside` has for a contender the names of others, each with the ratio that is the aim, if there is one.
    """
    rates: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _, (contender, rate) in itertools.product(range(rounds), contenders.items()):
        rates[contender].append(rate())
    print(f"\n{title}")
    for contender, found in rates.items():
        line = f"  {contender:23} {statistics.median(found):>8,.0f} rows/s ({min(found):,.0f} to {max(found):,.0f})"
        for other, aim in beside.get(contender, ()):
            ratios = sorted(a / b for a, b in zip(found, rates[other], strict=True))
            line += f"   {statistics.median(ratios):.2f} of {other} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            line += f", aim {aim}" if aim else ""
        print(line, flush=True)


def measure(spark: SparkSession, name: str, rows: int, rounds: int) -> None:
    """Print rates and, round by round, ratios."""
    df = frame(spark, rows)
    contenders = {
        "plain keras": lambda: rate_of_plain_keras(name, rows, BATCH),
        "1 worker": lambda: rate_of_fit(df, name, 1),
        "2 plain at once": lambda: rate_of_plain_keras(name, rows, BATCH, processes=2),
        "mirrored": lambda: rate_of_mirrored(name, rows),
        "2 workers": lambda: rate_of_fit(df, name, 2),
    }
    beside = {
        "1 worker": [("plain keras", AIMS_OF_ONE[name])],
        "2 plain at once": [("plain keras", None)],
        "2 workers": [
            ("1 worker", None),
            ("2 plain at once", AIM_OF_LONG if name == "long" else None),
            ("mirrored", AIMS_OF_TWO[name]),
        ],
    }
    title = f"{name}, batch {BATCH}, {rows:,} rows an epoch, {rounds} rounds, medians:"
    compare(title, contenders, beside, rounds)
    df.unpersist()


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--plain", choices=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        plain_keras(make_model(arguments.plain), *random_rows(arguments.rows), arguments.batch)
        return
    spark = session()
    for name in arguments.models:
        measure(spark, name, int(ROWS[name] * arguments.scale), arguments.rounds)
    spark.stop()


if __name__ == "__main__":
    main()
