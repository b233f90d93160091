"""What ``tfos_ml.mlflow.autolog`` costs: the same fit of about a minute, with it and without, in turn.

The tracking server is a real ``mlflow server`` on this machine, with SQLite and artifacts through
it. Printed are the wall times of ``fit``, their ratio round by round, and the Spark jobs of each. On
a machine whose speed varies by more than autolog costs, look at the time in which ``fit`` waited for
autolog, which is measured, too: all that it adds but for what its thread and the server compute.

    python benchmarks/autolog.py [--rounds 3] [--epochs 12]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))  # of the executors: frame() is in training
sys.path.append(os.path.join(os.environ["PYTHONPATH"], "..", "tests"))  # where the server is

import mlflow
from executors import session
from pyspark.sql import DataFrame, SparkSession
from tracking import Server
from training import frame, make_model

import tfos_ml.mlflow
from tfos_ml import KerasEstimator, fit_listener

ROWS, AIM = 20_000, 0.02  # of the wall time
CONTENDERS: dict[str, dict[str, object]] = {
    "without": {"disable": True},
    "autolog()": {},
}


class Clocked:
    """Adds up the seconds spent in the methods of an object, and in those of what ``begin`` returns."""

    seconds = 0.0

    def __init__(self, inner: object):
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def clocked(*arguments: object) -> object:
            began = time.monotonic()
            try:
                result = value(*arguments)
            finally:
                Clocked.seconds += time.monotonic() - began
            return Clocked(result) if name == "begin" else result

        return clocked


def timed_fit(spark: SparkSession, df: DataFrame, epochs: int, options: dict[str, object]) -> tuple[float, int, float]:
    """Seconds and Spark jobs of one fit, and the seconds that it waited for autolog."""
    tfos_ml.mlflow.autolog(**options)  # type: ignore[arg-type]
    fit_listener.listen(Clocked(fit_listener.listening()))  # type: ignore[arg-type]
    count: Callable[[], int] = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    model = make_model("cnn")
    Clocked.seconds = 0.0
    jobs, began = count(), time.monotonic()
    KerasEstimator(model=model, epochs=epochs, batchSize=256, clusterSize=2, validationSplit=0.1, verbose=0).fit(df)
    seconds = time.monotonic() - began
    tfos_ml.mlflow.autolog(disable=True)
    return seconds, count() - jobs, Clocked.seconds


def measure(rounds: int, epochs: int) -> None:
    """Print seconds, ratios and jobs."""
    spark = session()
    df = frame(spark, ROWS)
    found: dict[str, list[tuple[float, int, float]]] = {name: [] for name in CONTENDERS}
    for number in range(rounds + 1):  # the first round warms up: imports, pools of connections
        for name, options in CONTENDERS.items():
            result = timed_fit(spark, df, epochs if number else 2, options)
            if number:
                found[name].append(result)
    print(f"\nKerasEstimator, small CNN, 2 workers, {epochs} epochs of {ROWS:,} rows, {rounds} rounds:")
    for name, results in found.items():
        seconds = [result[0] for result in results]
        print(
            f"  {name:10} {statistics.median(seconds):6.1f} s ({min(seconds):.1f} to {max(seconds):.1f}), "
            f"{results[0][1]} Spark jobs"
        )
    ratios = sorted(a[0] / b[0] - 1 for a, b in zip(found["autolog()"], found["without"], strict=True))
    waited = [(wait, wait / seconds) for seconds, _, wait in found["autolog()"]]
    spread = f"({ratios[0]:+.1%} to {ratios[-1]:+.1%})"
    print(f"  autolog() adds {statistics.median(ratios):+.1%} {spread}, aim below {AIM:.0%}")
    print(
        f"  fit waited for it {statistics.median(w for w, _ in waited):.2f} s, "
        f"{statistics.median(share for _, share in waited):.1%} ({min(waited)[1]:.1%} to {max(waited)[1]:.1%})"
    )
    spark.stop()


def main() -> None:
    """Measure on a server of our own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory)).wait()
        try:
            mlflow.set_tracking_uri(server.uri)
            measure(arguments.rounds, arguments.epochs)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
