"""What a ``TFCluster`` is measured with, whoever wrote it: start, feed, inference, shutdown.

The same module runs in our environment and in a peer's, and travels to the executors: it imports
neither library. A cluster is handed over as what has ``run(sc, map_fun, args, num_executors,
num_ps, input_mode=...)``, which is a class of ours and a module of TensorFlowOnSpark's.

Rows come from a cached RDD of lists of floats, one partition a node. The cluster is warm when it
is timed, and a small run is subtracted from a large one, so that what a job costs whatever its
size cancels.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NODES = 2
BATCH = 256
ROWS = {784: 50_000, 10: 160_000}  # of the large run, by floats a row
SMALL = 8  # the small run is this many times smaller
DEADLINE = 60.0  # seconds for nodes to leave their records after the cluster's shutdown


def map_fun(args: argparse.Namespace, ctx: Any) -> None:
    """Turn every batch into an array; in inference, answer each row with its first value.

    Leaves a record of when it began, when each batch was there, and when it ended.

    Parameters
    ----------
    args : argparse.Namespace
        `directory` for records, `width` of rows, `inference`.
    ctx : object
        The library's context of this node.
    """
    began = time.time()
    feed = ctx.get_data_feed(train_mode=not args.inference)
    arrivals = []
    while not feed.should_stop():
        batch = feed.next_batch(BATCH)
        if len(batch):
            array = np.asarray(batch, dtype=np.float32).reshape(len(batch), args.width)
            arrivals.append((time.time(), len(array)))
            if args.inference:
                feed.batch_results(array[:, 0].tolist())
    record = Path(args.directory, f"{ctx.task_index}.part")
    record.write_text(json.dumps({"began": began, "arrivals": arrivals, "ended": time.time()}))
    record.rename(record.with_suffix(".json"))


def cached_rows(sc: Any, width: int, rows: int, seed: int) -> tuple[Any, int]:
    """A cached RDD of lists of `width` floats, and how many: `rows`, up to full batches a partition."""
    batches = -(-rows // (NODES * BATCH))

    def fill(partition: int, _: Iterator[int]) -> Iterator[list[float]]:
        random = np.random.default_rng([seed, partition])
        for _ in range(batches):
            yield from random.random((BATCH, width), dtype=np.float32).tolist()

    rdd = sc.parallelize(range(NODES), NODES).mapPartitionsWithIndex(fill).cache()
    count = rdd.count()
    assert count == batches * BATCH * NODES
    return rdd, count


def train(cluster: Any, rdd: Any, rows: int) -> None:
    """Feed an RDD once."""
    cluster.train(rdd, 1)


def infer(cluster: Any, rdd: Any, rows: int) -> None:
    """Have every row answered; Spark counts the answers and adds them up, which is checked."""
    found = cluster.inference(rdd).mapPartitions(count_and_sum).collect()
    assert sum(count for count, _ in found) == rows, f"{found} of {rows} results"
    assert np.isclose(sum(total for _, total in found) / rows, 0.5, atol=0.02), f"{found} are no uniform values"


def count_and_sum(results: Iterator[float]) -> Iterator[tuple[int, float]]:
    """Of a partition."""
    values = list(results)
    yield len(values), sum(values)


def last_arrivals(records: list[dict], fed: list[int]) -> list[float]:
    """When the last row of each run had reached the function, by the rows of each run."""
    arrivals = sorted(tuple(arrival) for record in records for arrival in record["arrivals"])
    arrived, wanted = np.cumsum([rows for _, rows in arrivals]), np.cumsum(fed)
    assert arrived[-1] == wanted[-1], f"{arrived[-1]} of {wanted[-1]} rows reached the nodes"
    return [arrivals[i][0] for i in np.searchsorted(arrived, wanted)]


def records_in(directory: Path) -> list[dict]:
    """What the nodes left; waits, as a cluster's shutdown need not wait for their last lines."""
    deadline = time.monotonic() + DEADLINE
    while len(files := sorted(directory.glob("*.json"))) < NODES:
        assert time.monotonic() < deadline, f"{len(files)} of {NODES} nodes ended in {DEADLINE} s"
        time.sleep(0.05)
    return [json.loads(file.read_text()) for file in files]


def measure_cluster(
    sc: Any, tf_cluster: Any, spark_mode: Any, width: int, small: tuple[Any, int], large: tuple[Any, int], mode: str
) -> dict[str, Any]:
    """Figures of one cluster from start to shutdown, fed the small run twice, then the large one.

    Training ends with the last row's arrival in the function, inference with the last result's in Spark.
    """
    runs = [small, small, large]  # the first is the warm-up
    calls = []
    with tempfile.TemporaryDirectory(prefix="cluster-workload-") as directory:
        args = argparse.Namespace(directory=directory, width=width, inference=mode == "inference")
        began = time.time()
        cluster = tf_cluster.run(sc, map_fun, args, NODES, 0, input_mode=spark_mode)
        for rdd, rows in runs:
            called = time.time()
            (infer if args.inference else train)(cluster, rdd, rows)
            calls.append((called, time.time()))
        stopping = time.time()
        cluster.shutdown(grace_secs=0)
        stopped = time.time()
        records = records_in(Path(directory))
    arrivals = last_arrivals(records, [rows for _, rows in runs])
    ends = [returned for _, returned in calls] if args.inference else arrivals
    # A run begins when it is called, or when the rows of the one before are through if that is later.
    small_seconds, large_seconds = (ends[i] - max(calls[i][0], arrivals[i - 1]) for i in (1, 2))
    rows, seconds = large[1] - small[1], large_seconds - small_seconds
    return {
        "mode": mode,
        "width": width,
        "rows": rows,
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows / seconds, 1),
        "small_rows": small[1],
        "small_call_seconds": round(calls[1][1] - calls[1][0], 3),
        "start_seconds": round(max(record["began"] for record in records) - began, 3),
        "shutdown_seconds": round(stopped - stopping, 3),
        "shutdown_seconds_after_map_fun": round(stopped - max(record["ended"] for record in records), 3),
    }


def measure(
    sc: Any, tf_cluster: Any, spark_mode: Any, widths: list[int], rows: list[int], seed: int
) -> list[dict[str, Any]]:
    """Figures of a cluster that trains and of one that infers, for each width.

    Parameters
    ----------
    sc : pyspark.SparkContext
        With `NODES` executors of one core.
    tf_cluster : class or module
        Has ``run``.
    spark_mode : object
        The library's ``InputMode.SPARK``.
    widths, rows : list of int
        Floats a row, and rows of the large run.
    seed : int
        Of the rows' values.

    Returns
    -------
    list of dict
        In the order of running: the first cluster of a session starts cold.
    """
    sc.addPyFile(__file__)
    figures = []
    for width, count in zip(widths, rows, strict=True):
        small, large = cached_rows(sc, width, count // SMALL, seed), cached_rows(sc, width, count, seed)
        for mode in ("train", "inference"):
            figures.append(measure_cluster(sc, tf_cluster, spark_mode, width, small, large, mode))
        small[0].unpersist()
        large[0].unpersist()
    return figures


def parse_arguments(description: str) -> argparse.Namespace:
    """Arguments of a script that calls :func:`measure`: `widths`, `rows`, `seed`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--widths", type=int, nargs="+", default=list(ROWS), help="floats a row")
    parser.add_argument("--rows", type=int, nargs="+", help="of the large run, one number a width")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.rows is None:
        unknown = set(arguments.widths) - set(ROWS)
        if unknown:
            parser.error(f"--rows is needed for widths other than {sorted(ROWS)}, got {sorted(unknown)}")
        arguments.rows = [ROWS[width] for width in arguments.widths]
    if len(arguments.rows) != len(arguments.widths):
        parser.error(f"--rows needs one number a width, got {arguments.rows} for {arguments.widths}")
    return arguments
