"""How fast rows reach the train function, beside a bare ``mapInArrow`` drain of the same DataFrame.

Both run on ``local-cluster[2,1,4096]`` over the same cached input, in turn, after one warm-up
each. Start-up cancels: a small run is subtracted from a large one. The small run is larger than
what is fed ahead while TensorFlow loads (256 MiB a node), so only the steady stream is timed.

    python benchmarks/feed.py [--rounds 3] [--widths 784 10]
"""

from __future__ import annotations

import os
import statistics
import sys
import time

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pyarrow as pa
from executors import NODES, frame, measure_widths
from pyspark.sql import DataFrame, SparkSession

from tfos_ml import TFEstimator

ROWS = {784: (200_000, 500_000), 10: (11_000_000, 26_000_000)}  # small and large run, by floats a row


def drain(batches):
    """Read every value once, as an array, and do nothing with it."""
    rows = sum(len(batch.column(0).flatten().to_numpy()) > 0 and batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": [rows]})


def seconds_of_drain(df: DataFrame) -> float:
    """Wall time of the bare drain."""
    start = time.perf_counter()
    counted = df.repartition(NODES).mapInArrow(drain, "rows long", barrier=True).collect()
    taken = time.perf_counter() - start
    assert sum(row.rows for row in counted) == df.count()
    return taken


def train_from_feed(args, ctx):
    """Take every batch as an array from the data feed."""
    feed, rows = ctx.get_data_feed(), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(8192)["x"])
    ctx.report({"rows": rows})


def train_from_dataset(args, ctx):
    """Take every batch as a tensor from the dataset."""
    rows = sum(int(batch["x"].shape[0]) for batch in ctx.dataset(batch_size=1024, shuffle=False))
    ctx.report({"rows": rows})


def seconds_of_fit(df: DataFrame, train_fn) -> float:
    """Wall time of a fit, start-up included."""
    estimator = TFEstimator(trainFn=train_fn, inputMapping={"features": "x"}, clusterSize=NODES, verbose=0)
    start = time.perf_counter()
    model = estimator.fit(df)
    taken = time.perf_counter() - start
    assert sum(r["metrics"][0]["metrics"]["rows"] for r in model.summary.nodes) == df.count()
    return taken


CONTENDERS = {
    "drain": seconds_of_drain,
    "get_data_feed": lambda df: seconds_of_fit(df, train_from_feed),
    "dataset": lambda df: seconds_of_fit(df, train_from_dataset),
}


def measure(spark: SparkSession, width: int, rounds: int) -> None:
    """Print rates and, round by round, ratios to the drain."""
    small_rows, large_rows = ROWS[width]
    small, large = frame(spark, width, small_rows), frame(spark, width, large_rows)
    rows = large_rows - small_rows
    net: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for round_number in range(rounds + 1):
        for name, seconds in CONTENDERS.items():
            taken = seconds(large) - seconds(small)
            if round_number:  # the first is the warm-up
                net[name].append(taken)
    print(f"\n{width} float32 a row, {rows:,} rows net, {rounds} rounds, medians:")
    for name, times in net.items():
        rate = rows / statistics.median(times)
        line = f"  {name:14} {rate:>10,.0f} rows/s {rate * width * 4 / 1e6:>6,.0f} MB/s"
        if name != "drain":
            ratios = sorted(d / t for d, t in zip(net["drain"], times, strict=True))
            line += f"   {statistics.median(ratios):.2f} of the drain ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(line, flush=True)
    small.unpersist()
    large.unpersist()


if __name__ == "__main__":
    measure_widths(__doc__.splitlines()[0], ROWS, measure)
