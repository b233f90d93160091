"""Data of ten times a node's memory budget, beside the same data in memory: speed of passes, peak memory of the node.

One node on ``local-cluster[1,2,4096]``, rows of 784 random floats. Each contender runs once with all rows and once with
a hundredth of them: the difference of the two peaks is what the rows take. Nothing else of tfos_ml may run on the
machine meanwhile, or it is counted, too. Peaks are PSS (anonymous and files) of the
node's processes and the fork server, plus the files in shared memory. Files on disk may be in the kernel's page cache,
which is no memory of the node; ``disk`` is what the file system gives a plain sequential reader of the same bytes that
asks the kernel to forget them first.

    python benchmarks/bounded_memory.py [--rows 600000] [--ratio 10] [--contenders dataset keras]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil
import pyarrow as pa
from executors import session
from peak_memory import PARTS, Peak
from pyspark.sql import DataFrame, SparkSession

from tfos_ml import KerasEstimator, TFEstimator

WIDTH, BATCH, PASSES = 784, 512, 3
ROW_BYTES = WIDTH * 4
PLENTY = "12g"


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """Made anew each time: a cache would be the larger part of what is measured."""

    def fill(batches):
        random = np.random.default_rng(0)
        for batch in batches:
            flat = pa.array(random.random(batch.num_rows * WIDTH, dtype=np.float32))
            lists = pa.FixedSizeListArray.from_arrays(flat, WIDTH).cast(pa.list_(pa.float32()))
            labels = pa.array(random.integers(0, 10, batch.num_rows))
            yield pa.RecordBatch.from_arrays([lists, labels], ["features", "label"])

    return spark.range(0, rows, 1, 8).mapInArrow(fill, "features array<float>, label long")


def nodes() -> int:
    """Bytes that nodes have, with those in shared memory."""
    return _processes() + _shared()


def _processes() -> int:
    held = 0
    for process in psutil.process_iter():
        try:
            if not any(part in " ".join(process.cmdline()) for part in PARTS):
                continue
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                name, *values = line.split()
                if name in ("Pss_Anon:", "Pss_File:"):
                    held += int(values[0]) << 10
        except (psutil.Error, OSError):
            continue
    return held


def _shared() -> int:
    held = 0
    for file in Path("/dev/shm").glob("tfos_ml-spool-*/*"):
        try:
            held += file.stat().st_size
        except OSError:
            continue
    return held


def read_all(args, ctx):
    """Take every batch of some passes; report the seconds of each."""
    for epoch in range(PASSES):
        began, rows = time.perf_counter(), 0
        for batch, _ in ctx.dataset(shuffle=args.shuffle):
            rows += int(batch.shape[0])
        ctx.report({"rows": rows, "seconds": time.perf_counter() - began}, epoch=epoch)


def read_dataset(df: DataFrame, shuffle: bool) -> float:
    """Rows a second of a pass of ``ctx.dataset()`` that does nothing with them."""
    model = TFEstimator(trainFn=read_all, tfArgs={"shuffle": shuffle}, batchSize=BATCH, clusterSize=1, verbose=0).fit(
        df
    )
    passes = [report["metrics"] for report in model.summary.nodes[0]["metrics"]]
    return passes[0]["rows"] / min(p["seconds"] for p in passes[1:])


def read_first(args, ctx):
    """Take the first batch; report the seconds until then."""
    began = time.perf_counter()
    dataset = ctx.dataset(shuffle=False, wait=args.wait)
    next(iter(dataset))
    ctx.report({"seconds": time.perf_counter() - began, "rows": ctx.row_count})
    ctx.report({"all": time.perf_counter() - began})


def measure_first(df: DataFrame) -> None:
    """Print when the first batch is there, counted from the begin of the train function, as are all rows."""
    for wait in (True, False):
        estimator = TFEstimator(trainFn=read_first, tfArgs={"wait": wait}, batchSize=BATCH, clusterSize=1, verbose=0)
        first, last = (r["metrics"] for r in estimator.fit(df).summary.nodes[0]["metrics"])
        print(f"  wait={wait!s:5}: first batch after {first['seconds']:.2f} s, all rows after {last['all']:.2f} s")


def train_keras(df: DataFrame, shuffle: bool) -> float:
    """Rows a second of an epoch of a small perceptron."""
    import keras
    from workloads import layers_of

    model = keras.Sequential(layers_of(keras, "mlp"))
    model.compile("sgd", "sparse_categorical_crossentropy")
    estimator = KerasEstimator(model=model, batchSize=BATCH, epochs=PASSES, shuffle=shuffle, clusterSize=1, verbose=0)
    fitted = estimator.fit(df)
    return fitted.summary.rows / min(fitted.summary.epochSeconds[1:])


CONTENDERS = {"dataset": read_dataset, "keras": train_keras}
ORDERS = {  # shuffle, shuffleMemory
    "in order": (False, "16g"),
    "blocks": (True, "100m"),
    "permuted": (True, "16g"),
}


def disk_rate(size: int = 1 << 30) -> float:
    """Bytes a second that Spark's local disk gives, without the kernel's cache."""
    with tempfile.NamedTemporaryFile() as file:
        block = os.urandom(8 << 20)
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        with open(file.name, "rb", buffering=0) as reader:
            while reader.read(8 << 20):
                pass
        return size / (time.perf_counter() - began)


def measure(spark: SparkSession, rows: int, ratio: int, contenders: list[str]) -> None:
    """Print rates, ratios and peaks."""
    size = rows * ROW_BYTES
    budget = size // ratio
    print(f"{rows:,} rows, {size / 1e6:,.0f} MB; budget {budget / 1e6:,.0f} MB; disk {disk_rate() / 1e6:,.0f} MB/s")
    measure_first(rows_of(spark, rows))
    for name in contenders:
        contend = CONTENDERS[name]
        contend(rows_of(spark, rows // 100), False)  # the warm-up
        for order, (shuffle, limit) in ORDERS.items():
            spark.conf.set("spark.tfos_ml.shuffleMemory", limit)
            found = {}
            for held in (PLENTY, str(budget)):
                spark.conf.set("spark.tfos_ml.spoolMemory", held)
                with Peak(nodes) as small:
                    contend(rows_of(spark, rows // 100), shuffle)
                with Peak(nodes) as large:
                    rate = contend(rows_of(spark, rows), shuffle)
                found[held] = rate, large.bytes, large.bytes - small.bytes
            (in_memory, _, _), (rate, peak, taken) = found[PLENTY], found[str(budget)]
            print(
                f"  {name:8} {order:9} in memory {in_memory:>8,.0f} rows/s, peak {found[PLENTY][1] / 1e6:>6,.0f} MB, "
                f"of rows {found[PLENTY][2] / 1e6:>6,.0f} MB\n"
                f"  {'':8} {'':9} budget    {rate:>8,.0f} rows/s, peak {peak / 1e6:>6,.0f} MB, of rows "
                f"{taken / 1e6:>6,.0f} MB (budget + 300: {budget / 1e6 + 300:,.0f} MB); {rate * ROW_BYTES / 1e6:,.0f} "
                f"MB/s, {rate / in_memory:.2f} of memory",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--ratio", type=int, default=10)
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    arguments = parser.parse_args()
    spark = session(executors=1, cores=2)
    measure(spark, arguments.rows, arguments.ratio, arguments.contenders)
    spark.stop()
