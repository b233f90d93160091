"""A large SavedModel on its way: the most memory of the driver's Python process and of its JVM, and seconds, by step.

The model is one variable of random numbers. Each step runs once, on ``local[2]``; its peak (``VmHWM``) is shown beside
what the process had when all had been imported and Spark was idle. Executors are part of the JVM here, and their Python
workers are processes of their own, which are not counted.

    python benchmarks/size.py [--megabytes 1000] [--steps transform save load again log_model load_model fit]
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import mlflow
import psutil
import tensorflow  # noqa: F401  (to read the signature of a SavedModel that is not of a fit)
from pyspark.sql import SparkSession

import tfos_ml.mlflow
from tfos_ml import TFEstimator, TFModel

WIDTH = 256
STEPS = ("transform", "save", "load", "again", "log_model", "load_model", "fit")
WRITE = """
import sys
sys.path.insert(0, sys.argv[1])
import size, tensorflow
tensorflow.saved_model.save(*size.module_of(int(sys.argv[2])).saved(sys.argv[3]))
"""


def module_of(megabytes: int):
    """A module that looks numbers up in a table of this size."""
    import tensorflow as tf

    rows = (megabytes << 20) // (WIDTH * 4)

    class Table(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = tf.Variable(tf.random.stateless_uniform([rows, WIDTH], [1, 2]), name="table")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "id")])
        def serve(self, id):
            return {"sum": tf.reduce_sum(tf.gather(self.table, id % rows), axis=1)}

        def signatures(self):
            return {"serving_default": self.serve.get_concrete_function()}

        def saved(self, path):
            return self, path, self.signatures()

    return Table()


def export(args, ctx):
    """A train function that trains nothing."""
    module = module_of(args["megabytes"])
    ctx.export_saved_model(module, signatures=module.signatures())


class Peak:
    """The most memory of a process in each step, in MB."""

    def __init__(self, name: str, pid: int):
        self.name = name
        self._directory = Path(f"/proc/{pid}")
        self.idle = self._now("VmRSS")

    def reset(self) -> None:
        """Begin a step."""
        (self._directory / "clear_refs").write_text("5")

    def above_idle(self) -> int:
        """What the step has taken above what the idle process had."""
        return self._now("VmHWM") - self.idle

    def _now(self, entry: str) -> int:
        found = re.search(rf"{entry}:\s+(\d+) kB", (self._directory / "status").read_text())
        assert found is not None
        return int(found[1]) // 1000


class Way:
    """The steps."""

    def __init__(self, spark: SparkSession, megabytes: int, directory: Path):
        self._megabytes, self._directory = megabytes, directory
        self._rows = spark.range(0, 1000, 1, 2)
        self._model = TFModel(exportDir=str(directory / "exported"), featuresCol="id", predictBatchSize=100)
        self._loaded = self._model
        mlflow.set_tracking_uri(f"sqlite:///{directory}/runs.db")

    def transform(self) -> None:
        """Score some rows."""
        self._score(self._model)

    def save(self) -> None:
        """Save it as a stage."""
        self._model.save(str(self._directory / "stage"))

    def load(self) -> None:
        """Load the stage."""
        self._loaded = TFModel.load(str(self._directory / "stage"))

    def again(self) -> None:
        """Score with the loaded stage."""
        self._score(self._loaded)

    def log_model(self) -> None:
        """Log it to MLflow."""
        self._uri = tfos_ml.mlflow.log_model(self._model).model_uri

    def load_model(self) -> None:
        """Load it from MLflow."""
        self._loaded = tfos_ml.mlflow.load_model(self._uri)

    def fit(self) -> None:
        """Fit a model of this size, which nodes send to the driver."""
        fitted = TFEstimator(trainFn=export, tfArgs={"megabytes": self._megabytes}, featuresCol="id", verbose=0).fit(
            self._rows
        )
        fitted.signature()

    def _score(self, model: TFModel) -> None:
        model.transform(self._rows).agg({"prediction": "sum"}).first()


def main() -> None:
    """Run the chosen steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    arguments = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as directory:
        exported = os.path.join(directory, "exported")
        subprocess.run([sys.executable, "-c", WRITE, here, str(arguments.megabytes), exported], check=True)
        settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
        java = next(child for child in psutil.Process().children(recursive=True) if child.name() == "java")
        way, peaks = (
            Way(spark, arguments.megabytes, Path(directory)),
            [Peak("python", os.getpid()), Peak("jvm", java.pid)],
        )
        print(f"{arguments.megabytes} MB; idle: " + ", ".join(f"{peak.name} {peak.idle} MB" for peak in peaks))
        for step in arguments.steps:
            report(step, getattr(way, step), peaks)
        spark.stop()


def report(name: str, step: Callable[[], None], peaks: list[Peak]) -> None:
    """Run a step, and print what it took."""
    gc.collect()
    for peak in peaks:
        peak.reset()
    began = time.monotonic()
    step()
    seconds = time.monotonic() - began
    print(f"{name:12}{seconds:7.1f} s" + "".join(f"  {p.name} {p.above_idle():+6} MB" for p in peaks), flush=True)


if __name__ == "__main__":
    main()
