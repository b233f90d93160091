"""What work costs as it grows: time and peak memory by rows, columns, workers, nodes and size of the model.

Each point is a session of its own. Fits of KerasEstimator (one epoch, batches of 100, one worker where nothing else is
said) are timed after one that is not; nodes without TensorFlow run a train function that returns at once, so that only
the control plane is left; a transform is the first of its session, which loads the model. Memory is the most that
Spark's Python workers and what they start have together (PSS). All of it goes to scaling.json and scaling.png.

    python benchmarks/scaling.py [--directory bench-output] [--only rows columns workers nodes model]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from executors import frame
from peak_memory import Peak
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SIZES = {
    "rows": [10_000, 100_000, 1_000_000],
    "columns": [10, 100, 1_000],
    "workers": [1, 2, 4, 8],
    "nodes": [1, 4, 16, 64],
    "model": [1, 10, 100, 1_000],
}
UNITS = {
    "rows": "rows of 10 floats, fit",
    "columns": "floats a row, fit of 20,000 rows",
    "workers": "workers, fit of 20,000 rows",
    "nodes": "nodes without TensorFlow, start to shutdown",
    "model": "MB of a model, first transform",
}
ROWS, WIDTH = 20_000, 10


def session(master: str) -> SparkSession:
    """A session on this machine."""
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "4g"}
    spark: SparkSession = SparkSession.builder.master(master).config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def labelled(spark: SparkSession, width: int, rows: int) -> DataFrame:
    """Random floats with classes."""
    df = frame(spark, width, rows).withColumn("label", (F.col("features")[0] > 0.5).cast("int")).cache()
    df.count()
    return df


def fit_seconds(df: DataFrame, width: int, workers: int = 1) -> float:
    """Of a fit, after a first one."""
    import keras

    from tfos_ml import KerasEstimator

    layers = [keras.layers.Input((width,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2, "softmax")]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    estimator = KerasEstimator(model=model, clusterSize=workers, epochs=1, batchSize=100, verbose=0)
    estimator.fit(df.limit(200).repartition(workers))
    return seconds(lambda: estimator.fit(df))


def seconds(what: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def of_rows(rows: int) -> float:
    """Seconds of a fit."""
    return fit_seconds(labelled(session("local[2]"), WIDTH, rows), WIDTH)


def of_columns(width: int) -> float:
    """Seconds of a fit."""
    return fit_seconds(labelled(session("local[2]"), width, ROWS), width)


def of_workers(workers: int) -> float:
    """Seconds of a fit."""
    return fit_seconds(labelled(session("local[8]"), WIDTH, ROWS), WIDTH, workers)


def of_nodes(nodes: int) -> float:
    """Seconds from start to shutdown, after a first cluster."""
    from tfos_ml import InputMode, TFCluster

    os.environ["TFOS_ML_PRELOAD"] = "0"  # so that nodes do not import TensorFlow
    context = session("local[64]").sparkContext

    def run() -> None:
        cluster = TFCluster.run(context, lambda args, ctx: None, [], nodes, 0, input_mode=InputMode.TENSORFLOW)
        cluster.shutdown()

    run()
    return seconds(run)


def of_model(megabytes: int) -> float:
    """Seconds of the first transform."""
    from shared_model import loaded, numbers

    with tempfile.TemporaryDirectory() as directory:
        script = f"import sys, shared_model; shared_model.save_model({megabytes}, sys.argv[1])"
        subprocess.run([sys.executable, "-c", script, directory], check=True, cwd=Path(__file__).parent)
        df = numbers(session("local[2]"))
        return seconds(lambda: loaded(directory).transform(df).agg(F.sum("prediction")).collect())


CASES: dict[str, Callable[[int], float]] = {
    "rows": of_rows,
    "columns": of_columns,
    "workers": of_workers,
    "nodes": of_nodes,
    "model": of_model,
}


def point(case: str, size: int) -> dict[str, float]:
    """Measure one in a process of its own."""
    command = [sys.executable, __file__, "--point", case, str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(case: str, points: list[dict[str, float]]) -> None:
    """A line a point, with the exponent by which seconds have grown since the one before: 1 is linear."""
    print(f"\n{UNITS[case]}")
    before = None
    for found in points:
        line = f"  {found['size']:>10,.0f} {found['seconds']:>9.2f} s {found['megabytes']:>9,.0f} MB"
        if before is not None:
            grown = math.log(found["seconds"] / before["seconds"]) / math.log(found["size"] / before["size"])
            line += f"   exponent {grown:.2f}"
        print(line, flush=True)
        before = found


def draw(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Seconds and memory of each case, beside each other, with a dashed line for what is linear."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    figure, axes = plt.subplots(2, len(results), figsize=(4 * len(results), 7), squeeze=False, layout="constrained")
    for column, (case, points) in enumerate(results.items()):
        sizes = [found["size"] for found in points]
        for row, (name, label) in enumerate([("seconds", "seconds"), ("megabytes", "peak memory, MB")]):
            values = [found[name] for found in points]
            ax: Any = axes[row][column]
            ax.loglog(sizes, values, marker="o")
            ax.loglog(sizes, [values[-1] * size / sizes[-1] for size in sizes], "--", color="0.7", label="linear")
            ax.set_ylim(min(values) / 2, max(values) * 2)
            ax.set_xlabel(UNITS[case])
            ax.set_ylabel(label)
            ax.set_xticks(sizes, labels=[f"{size:,.0f}" for size in sizes])
            ax.xaxis.set_minor_locator(NullLocator())
            ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
            ax.yaxis.set_minor_formatter(StrMethodFormatter("{x:,g}"))
            ax.grid(visible=True, which="major", alpha=0.3)
    axes[0][0].legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("bench-output"))
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point is not None:
        case, size = options.point[0], int(options.point[1])
        with Peak() as peak:
            taken = CASES[case](size)
        print(json.dumps({"size": size, "seconds": taken, "megabytes": peak.bytes / (1 << 20)}))
        return
    results: dict[str, list[dict[str, float]]] = {}
    options.directory.mkdir(parents=True, exist_ok=True)
    for case in options.only:
        results[case] = [point(case, size) for size in SIZES[case]]
        show(case, results[case])
        (options.directory / "scaling.json").write_text(json.dumps(results, indent=2))
        draw(results, options.directory / "scaling.png")
    print(f"\n{options.directory / 'scaling.png'}")


if __name__ == "__main__":
    main()
