"""Rows of 784 floats from Parquet files: read by the nodes, beside pyarrow on one thread, and beside the feed by Spark.

Nodes on ``local[2]``, whose train function waits for all rows and takes no step. Seconds of a fit are those that it
takes longer than one of a few rows, so that the start of processes is left out, and Spark's own reading and its shuffle
are not. The files lie in memory, so that no disk is measured. Each contender runs ``--repeats`` times in turns with the
others; what counts is the best of each.

    python benchmarks/direct.py [--rows 200000] [--nodes 2] [--repeats 3] [--directory /dev/shm]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tfos_ml import TFEstimator

WIDTH, FILES, GROUP_ROWS = 784, 4, 16384


def write_files(directory: str, rows: int) -> None:
    """Random floats, which neither dictionaries nor codecs make smaller."""
    Path(directory).mkdir()
    random = np.random.default_rng(0)
    each = rows // FILES
    for number in range(FILES):
        flat = pa.array(random.random(each * WIDTH, dtype=np.float32))
        lists = pa.ListArray.from_arrays(pa.array(np.arange(0, each * WIDTH + 1, WIDTH), pa.int32()), flat)
        table = pa.table({"features": lists, "label": random.integers(0, 10, each)})
        pq.write_table(table, f"{directory}/{number}.parquet", row_group_size=GROUP_ROWS, use_dictionary=False)


def count(args, ctx) -> None:
    """Wait for all rows."""
    assert ctx.row_count > 0


def by_nodes(df: DataFrame, nodes: int, path: str) -> float:
    """Seconds of a fit."""
    estimator = TFEstimator(trainFn=count, clusterSize=nodes, inputPath=path, verbose=0)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is exported
        estimator.fit(df)
    return time.perf_counter() - began


def by_pyarrow(directory: str) -> float:
    """Seconds in which one thread decodes all rows."""
    began = time.perf_counter()
    read = 0
    for batch in ds.dataset(directory).to_batches(columns=["features", "label"], use_threads=False):
        read += batch.num_rows
    assert read
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
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        rows = args.rows // FILES * FILES
        many, few = f"{directory}/many", f"{directory}/few"
        write_files(many, rows)
        write_files(few, FILES * 4)
        size = sum(f.stat().st_size for f in Path(many).iterdir())
        seconds: dict[str, list[float]] = {"pyarrow, one thread": [], "direct": [], "spark": []}
        starts: dict[str, list[float]] = {"direct": [], "spark": []}
        for _ in range(args.repeats):
            seconds["pyarrow, one thread"].append(by_pyarrow(many))
            for path in starts:
                starts[path].append(by_nodes(spark.read.parquet(few), args.nodes, path))
                seconds[path].append(by_nodes(spark.read.parquet(many), args.nodes, path))
        best = {name: min(found) - min(starts.get(name, [0])) for name, found in seconds.items()}
        print(f"{rows:,} rows of {WIDTH} floats, {size / 2**20:,.0f} MiB of Parquet, {args.nodes} nodes")
        for name, found in best.items():
            print(f"{name:22}{found:8.2f} s {rows / found:12,.0f} rows/s")
        print(f"direct / pyarrow: {best['pyarrow, one thread'] / best['direct']:.2f}")
        print(f"direct / spark:   {best['spark'] / best['direct']:.2f}")
    spark.stop()


if __name__ == "__main__":
    main()
