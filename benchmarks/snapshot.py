"""Rows of 784 floats that nodes read from a snapshot, beside Spark's feed and beside pyarrow on one thread.

pyarrow decodes the DataFrame's own Parquet files, which is what a program without tfos_ml would do: in as many
processes at once as there are nodes, since they share the machine's memory bandwidth.

Nodes on ``local[2]``, whose train function waits for all rows and takes no step. Seconds of a fit are those that it
takes longer than one of a few rows, so that the start of processes is left out; "the node's reading" are the seconds
until it has read, checked and stored its last row. The files lie in memory, so no disk is measured. Each contender runs
``--repeats`` times in turns with the others; what counts is the best of each. A search has three fits on each of two
folds, and one on all rows.

    python benchmarks/snapshot.py [--rows 200000] [--nodes 2] [--repeats 3] [--directory /dev/shm]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator
from pyspark.sql import DataFrame, SparkSession

from tfos_ml import KerasEstimator, TFEstimator

WIDTH, FILES, GROUP_ROWS = 784, 4, 16384


def write_files(directory: str, rows: int) -> None:
    """Random floats, which neither dictionaries nor codecs make smaller."""
    Path(directory).mkdir()
    random = np.random.default_rng(0)
    each = rows // FILES
    for number in range(FILES):
        flat = pa.array(random.random(each * WIDTH, dtype=np.float32))
        lists = pa.ListArray.from_arrays(pa.array(np.arange(0, each * WIDTH + 1, WIDTH), pa.int32()), flat)
        table = pa.table({"features": lists, "label": random.random(each)})
        pq.write_table(table, f"{directory}/{number}.parquet", row_group_size=GROUP_ROWS, use_dictionary=False)


def count(args, ctx) -> None:
    """Wait for all rows."""
    assert ctx.row_count > 0


def fit(df: DataFrame, nodes: int, cache_dir: str | None) -> tuple[float, float]:
    """Seconds of a fit, and those in which its rows came."""
    estimator = TFEstimator(trainFn=count, clusterSize=nodes, cacheDir=cache_dir, verbose=0)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is exported
        model = estimator.fit(df)
    return time.perf_counter() - began, model.summary.timeline["rows"]


def decode(paths: list[str]) -> float:
    """Seconds in which one thread decodes all rows of Parquet files."""
    pa.set_cpu_count(1)
    began = time.perf_counter()
    for path in paths:
        for _ in pq.ParquetFile(path).iter_batches(4096, use_threads=False):
            pass
    return time.perf_counter() - began


def by_pyarrow(directory: str, processes: Executor, count: int) -> float:
    """Seconds in which processes, one thread in each, decode the files of a directory at once."""
    paths = sorted(str(path) for path in Path(directory).glob("*.parquet"))
    return max(processes.map(decode, [paths[number::count] for number in range(count)]))


def network():
    """A model of little work."""
    import keras

    model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def search(df: DataFrame, nodes: int, cache_dir: str | None) -> float:
    """Seconds of a CrossValidator."""
    estimator = KerasEstimator(model=network, clusterSize=nodes, batchSize=1024, cacheDir=cache_dir, verbose=0)
    maps = [{estimator.seed: seed} for seed in range(3)]
    began = time.perf_counter()
    CrossValidator(
        estimator=estimator, estimatorParamMaps=maps, evaluator=RegressionEvaluator(), numFolds=2, seed=1
    ).fit(df)
    return time.perf_counter() - began


def main() -> None:
    """Run all contenders, and print what they take."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", default="/dev/shm", help="where the files are written")
    args = parser.parse_args()
    pa.set_cpu_count(1)
    builder = SparkSession.builder.master(f"local[{args.nodes}]").config("spark.driver.memory", "2g")
    spark = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    processes = ProcessPoolExecutor(args.nodes, mp_context=multiprocessing.get_context("spawn"))
    with tempfile.TemporaryDirectory(dir=args.directory) as directory, processes:
        rows = args.rows // FILES * FILES
        frames = {}
        for name, number in (("many", rows), ("few", FILES * 4)):
            write_files(f"{directory}/{name}", number)
            frames[name] = spark.read.parquet(f"{directory}/{name}")
        first = {name: fit(df, args.nodes, f"{directory}/{name}-snapshot")[0] for name, df in frames.items()}
        seconds: dict[str, list[float]] = {"pyarrow": [], "snapshot": [], "feed": []}
        reading: dict[str, list[float]] = {"snapshot": [], "feed": []}
        starts: dict[str, list[float]] = {"snapshot": [], "feed": []}
        for _ in range(args.repeats):
            seconds["pyarrow"].append(by_pyarrow(f"{directory}/many", processes, args.nodes))
            for way in starts:
                caches = {name: f"{directory}/{name}-snapshot" if way == "snapshot" else None for name in frames}
                starts[way].append(fit(frames["few"], args.nodes, caches["few"])[0])
                whole, rows_came = fit(frames["many"], args.nodes, caches["many"])
                seconds[way].append(whole)
                reading[way].append(rows_came)
        best = {name: min(found) - min(starts.get(name, [0])) for name, found in seconds.items()}
        print(
            f"{rows:,} rows of {WIDTH} floats, {args.nodes} nodes; the snapshot was written and read in "
            f"{first['many']:.1f} s"
        )
        for name, found in best.items():
            print(f"{name:22}{found:8.2f} s {rows / found:12,.0f} rows/s")
        read = min(reading["snapshot"])
        print(f"the node's reading    {read:8.2f} s {rows / read:12,.0f} rows/s")
        print(f"the node's reading / pyarrow, each process: {best['pyarrow'] / read:.2f}")
        print(f"the whole fit / pyarrow, each process: {best['pyarrow'] / best['snapshot']:.2f}")
        print(f"snapshot / feed: {best['feed'] / best['snapshot']:.2f}")
        for cache in (None, f"{directory}/search"):
            print(
                f"CrossValidator {'without' if cache is None else 'with'} cacheDir: "
                f"{search(frames['many'], args.nodes, cache):.1f} s"
            )
    spark.stop()


if __name__ == "__main__":
    main()
