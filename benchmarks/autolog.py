"""What ``tfos_ml.mlflow.autolog`` costs: the same fits of about a minute, with it and without, in turn.

The tracking server is a real ``mlflow server`` on this machine, with SQLite and artifacts through
it. Two fits are measured. ``paced`` is a train function whose epochs last three seconds each,
whatever the machine does meanwhile, so that its wall time shows what autolog adds. ``cnn`` is a
KerasEstimator that takes all of the processor; its wall time may vary by more than autolog costs.
Which contender is first changes from round to round. Printed are the wall times of ``fit``, their
difference round by round, the Spark jobs, the seconds of processor that driver and server took, and
the seconds in which ``fit`` waited for autolog.

    python benchmarks/autolog.py [--rounds 4] [--epochs 12] [--fits paced cnn]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))  # where the server is

import mlflow
import psutil
from executors import session
from pyspark.sql import DataFrame
from tracking import Server
from training import frame, make_model

import tfos_ml.mlflow
from tfos_ml import KerasEstimator, TFEstimator
from tfos_ml.stages import fit_listener

ROWS, AIM = 20_000, 0.02  # of the wall time
EPOCH_SECONDS = 3
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


def train_paced(args, ctx):
    """Report an epoch every three seconds, and export a small model."""
    import time

    import tensorflow as tf

    began = time.monotonic()
    for epoch in range(ctx.epochs):
        time.sleep(max(0.0, began + (epoch + 1) * EPOCH_SECONDS - time.monotonic()))
        ctx.report({"loss": 1 / (1 + epoch), "accuracy": 1 - 1 / (1 + epoch)}, epoch=epoch)
    model = tf.Module()
    model.serve = tf.function(lambda features: {"y": tf.reduce_sum(features, 1)})
    spec = tf.TensorSpec([None, None], tf.float32, "features")
    ctx.export_saved_model(model, signatures={"serving_default": model.serve.get_concrete_function(features=spec)})


def paced(epochs: int) -> TFEstimator:
    """A fit that takes ``epochs`` times five seconds, as the other does about, and is not the processor's."""
    return TFEstimator(trainFn=train_paced, epochs=epochs * 5 // EPOCH_SECONDS, clusterSize=2, verbose=0)


def cnn(epochs: int) -> KerasEstimator:
    """A fit that takes all of the processor."""
    model = make_model("cnn")
    return KerasEstimator(
        model=model, epochs=epochs, batchSize=256, clusterSize=2, validationSplit=0.1, seed=1, verbose=0
    )


FITS = {"paced": paced, "cnn": cnn}


class Figures(NamedTuple):
    """What one fit took: seconds, and Spark jobs."""

    wall: float
    jobs: int
    processor: float
    waited: float


def computed(processes: Sequence[psutil.Process]) -> float:
    """Seconds of processor that processes have used so far."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def timed_fit(
    df: DataFrame,
    estimator: TFEstimator | KerasEstimator,
    options: dict[str, object],
    processes: Sequence[psutil.Process],
) -> Figures:
    """One fit; of `processes` what they compute is counted."""
    tfos_ml.mlflow.autolog(**options)  # type: ignore[arg-type]
    fit_listener.listen(Clocked(fit_listener.listening()))  # type: ignore[arg-type]
    count: Callable[[], int] = df.sparkSession.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    Clocked.seconds = 0.0
    jobs, processor, began = count(), computed(processes), time.monotonic()
    estimator.fit(df)
    wall = time.monotonic() - began
    tfos_ml.mlflow.autolog(disable=True)
    return Figures(wall, count() - jobs, computed(processes) - processor, Clocked.seconds)


def measure(df: DataFrame, fit: str, rounds: int, epochs: int, processes: Sequence[psutil.Process]) -> None:
    """Print seconds, differences and jobs."""
    found: dict[str, list[Figures]] = {name: [] for name in CONTENDERS}
    for number in range(rounds + 1):  # the first round warms up: imports, pools of connections
        for name in list(CONTENDERS)[:: 1 if number % 2 else -1]:
            result = timed_fit(df, FITS[fit](epochs if number else 2), CONTENDERS[name], processes)
            if number:
                found[name].append(result)
    print(f"\n{fit}, 2 workers, {ROWS:,} rows, {rounds} rounds:")
    for name, results in found.items():
        wall = [result.wall for result in results]
        print(
            f"  {name:10} {statistics.median(wall):6.1f} s ({min(wall):.1f} to {max(wall):.1f}), "
            f"{results[0].jobs} Spark jobs, driver and server computed "
            f"{statistics.median(result.processor for result in results):.2f} s"
        )
    ratios = sorted(a.wall / b.wall - 1 for a, b in zip(found["autolog()"], found["without"], strict=True))
    waited = [(result.waited, result.waited / result.wall) for result in found["autolog()"]]
    spread = f"({ratios[0]:+.1%} to {ratios[-1]:+.1%})"
    print(f"  autolog() adds {statistics.median(ratios):+.1%} {spread}, aim below {AIM:.0%}")
    print(
        f"  fit waited for it {statistics.median(w for w, _ in waited):.2f} s, "
        f"{statistics.median(share for _, share in waited):.1%} ({min(waited)[1]:.1%} to {max(waited)[1]:.1%})",
        flush=True,
    )


def main() -> None:
    """Measure on a server of our own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--fits", nargs="+", default=list(FITS), choices=list(FITS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory)).wait()
        try:
            mlflow.set_tracking_uri(server.uri)
            driver = psutil.Process()
            processes = [driver, *driver.children(recursive=True)]  # before Spark's are there
            spark = session()
            df = frame(spark, ROWS)
            for fit in arguments.fits:
                measure(df, fit, arguments.rounds, arguments.epochs, processes)
            spark.stop()
        finally:
            server.kill()


if __name__ == "__main__":
    main()
