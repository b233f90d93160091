"""How TFCluster deals rows to its nodes, and how long it waits for them to be read."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest
from conftest import seconds, wait_until

from tfos_ml import InputMode, TFCluster, errors

DEADLINE = 60.0
GRACE = 15.0  # seconds beside a time-out: tasks and processes have to end


def start(spark, map_fun, args=None, nodes=3):
    return TFCluster.run(spark.sparkContext, map_fun, args, nodes, input_mode=InputMode.SPARK)


def stop_at_once(args, ctx):
    """The first node reads no further; the others do."""
    feed = ctx.get_data_feed()
    if ctx.worker_num == 0:
        feed.terminate()
        return
    while not feed.should_stop():
        feed.next_batch(64)


def test_a_node_that_reads_no_further_is_dealt_nothing(spark):
    with start(spark, stop_at_once) as cluster:
        nodes = cluster._control.nodes
        assert wait_until(lambda: any(node.stopped_reading for node in nodes.progress().values()), DEADLINE)
        for _ in range(4):
            cluster.train(spark.range(0, 100, 1, 1))
    assert [node["rows"] for node in cluster.summary["nodes"]] == [0, 200, 200]


def read_nothing(args, ctx):
    """Wait for the end of the cluster, and never read."""
    ctx.wait()


def late(path, partition, rows):
    """The rows of partition 0 at once, those of the others when a file is there."""
    assert not partition or wait_until(lambda: os.path.exists(path), DEADLINE)
    yield from rows


def test_rows_that_nobody_reads_are_an_error_in_time_while_others_are_computed(spark, tmp_path):
    rdd = spark.sparkContext.parallelize(range(20), 2).mapPartitionsWithIndex(partial(late, f"{tmp_path}/go"))
    cluster = start(spark, read_nothing, nodes=1)
    began = time.monotonic()
    with pytest.raises(errors.FeedTimeoutError, match=r"worker:0 on .* feed_timeout=2 s .*feed\.next_batch"):
        cluster.train(rdd, feed_timeout=2)
    took = time.monotonic() - began
    (tmp_path / "go").touch()
    cluster.shutdown()
    assert 2 <= took < 2 + seconds(GRACE)


def stop_after(args, ctx):
    """Read so many rows, then terminate; report what they were."""
    feed, rows = ctx.get_data_feed(), []
    while not feed.should_stop() and len(rows) < args["rows"]:
        rows += feed.next_batch(10)
    feed.terminate()
    ctx.report({"rows": len(rows), "sum": sum(rows)})


def test_without_end_rows_are_repeated_until_all_nodes_have_enough(spark):
    args = {"rows": 200}
    with start(spark, stop_after, args, nodes=2) as cluster:
        rdd = spark.sparkContext.parallelize([i % 20 for i in range(40)], 2)
        cluster.train(rdd, num_epochs=0)
        cluster.train(rdd, num_epochs=0)  # nobody reads it
        began = time.monotonic()
    assert time.monotonic() - began < seconds(10)
    found = [node["metrics"][0]["metrics"] for node in cluster.summary["nodes"]]
    assert found == [{"rows": 200, "sum": 200 / 20 * sum(range(20))}] * 2
