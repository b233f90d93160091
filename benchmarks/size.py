"""What large models take: a training, beside plain Keras (``training_size.py``); and a SavedModel on its way.

    python benchmarks/size.py training [--models transformer frozen ...] [--workers 1 2]
    python benchmarks/size.py saved_model [--megabytes 1000] [--steps transform save load ...]

The SavedModel is 20 tables of random numbers. The most memory of the driver's Python process and of its JVM is
shown, and seconds, by step. Each step runs once, on ``local[2]``; its peak (``VmHWM``) is shown beside
what the process had when all had been imported and Spark was idle. Executors are part of the JVM here, and their Python
workers are processes of their own, which are not counted.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import mlflow
import psutil
import training_size  # which imports TensorFlow, to read the signature of a SavedModel that is not of a fit
from large_models import status
from pyspark.sql import SparkSession

import tfos_ml.mlflow
from tfos_ml import TFEstimator, TFModel

WIDTH, TABLES = 256, 20
STEPS = ("transform", "save", "load", "again", "log_model", "load_model", "fit")
WRITE = """
import sys
sys.path.insert(0, sys.argv[1])
import size, tensorflow
tensorflow.saved_model.save(*size.module_of(int(sys.argv[2])).saved(sys.argv[3]))
"""


def module_of(megabytes: int):
    """A module that looks numbers up in tables of this size together: of one alone TensorFlow would make copies."""
    import tensorflow as tf

    rows = (megabytes << 20) // (WIDTH * 4 * TABLES)

    class Table(tf.Module):
        def __init__(self):
            super().__init__()
            self.tables = [tf.Variable(tf.random.stateless_uniform([rows, WIDTH], [1, i])) for i in range(TABLES)]

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "id")])
        def serve(self, id):
            return {"sum": tf.add_n([tf.reduce_sum(tf.gather(table, id % rows), axis=1) for table in self.tables])}

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
        self._pid = pid
        self.idle = status(pid, "VmRSS")

    def reset(self) -> None:
        """Begin a step."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")

    def above_idle(self) -> int:
        """What the step has taken above what the idle process had."""
        return status(self._pid, "VmHWM") - self.idle


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
    """Measure a training, or a SavedModel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    training = parts.add_parser("training")
    training.add_argument("--models", nargs="+", choices=training_size.MODELS, default=training_size.MODELS)
    training.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    training.add_argument("--blocks", type=int, default=12, help="of transformers")
    training.add_argument("--table-rows", type=int, default=5_000_000, help="of the embedding; takes 8 GB a process")
    saved_model = parts.add_parser("saved_model")
    saved_model.add_argument("--megabytes", type=int, default=1000)
    saved_model.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    arguments = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    if arguments.part == "training":
        training_size.run(arguments.models, arguments.workers, arguments.blocks, arguments.table_rows)
    else:
        measure_saved_model(here, arguments.megabytes, arguments.steps)


def measure_saved_model(here: str, megabytes: int, steps: Sequence[str]) -> None:
    """Run the chosen steps."""
    with tempfile.TemporaryDirectory() as directory:
        exported = os.path.join(directory, "exported")
        subprocess.run([sys.executable, "-c", WRITE, here, str(megabytes), exported], check=True)
        settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
        java = next(child for child in psutil.Process().children(recursive=True) if child.name() == "java")
        way, peaks = Way(spark, megabytes, Path(directory)), [Peak("python", os.getpid()), Peak("jvm", java.pid)]
        print(f"{megabytes} MB; idle: " + ", ".join(f"{peak.name} {peak.idle} MB" for peak in peaks))
        for step in steps:
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
