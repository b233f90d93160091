"""How TFCluster deals rows to its nodes, and how long it waits for them to be read."""

from __future__ import annotations

import os
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import CLUSTER, start_callback_server, wait_until

from tfos_ml import InputMode, TFCluster, errors

DEADLINE = 60.0
GRACE = 15.0  # seconds beside a time-out: tasks and processes have to end


def start(spark, map_fun, args=None, nodes=3):
    return TFCluster.run(spark.sparkContext, map_fun, args, nodes, input_mode=InputMode.SPARK)


def read_all(args, ctx):
    """Read to the end of the feed."""
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(64)


def read_nothing(args, ctx):
    """Wait for the end of the cluster, and never read."""
    ctx.wait()


def rows_of_nodes(cluster) -> list[int]:
    return [node["rows"] for node in cluster.summary["nodes"]]


# Dealing


@pytest.mark.chaos
def test_many_calls_with_one_partition_feed_all_nodes(spark):
    with start(spark, read_all) as cluster:
        for _ in range(12):
            cluster.train(spark.sparkContext.parallelize(range(100), 1))
    assert rows_of_nodes(cluster) == [400, 400, 400]


@pytest.mark.chaos
def test_calls_whose_rows_are_all_in_a_late_partition_feed_all_nodes(spark):
    frame = spark.range(100).repartition(8, "id").where("id = 17")  # in one of eight, and always the same
    with start(spark, read_all) as cluster:
        for _ in range(6):
            cluster.train(frame)
    assert rows_of_nodes(cluster) == [2, 2, 2]


def test_the_partitions_of_a_call_are_dealt_evenly(any_spark, tmp_path):
    sc = any_spark.sparkContext
    failed_once = tmp_path / "failed once"

    def compute(partition, rows):
        for i, row in enumerate(rows):
            if i == 70 and partition == 4 and sc_retries and not failed_once.exists():
                failed_once.touch()
                raise RuntimeError("this feed task fails once")
            yield row

    sc_retries = sc.master.startswith("local-cluster")  # in local mode Spark tries no task again
    with start(any_spark, read_all) as cluster:
        cluster.train(sc.parallelize(range(1000), 10).mapPartitionsWithIndex(compute))
    assert sorted(rows_of_nodes(cluster)) == [300, 300, 400]
    assert failed_once.exists() == sc_retries


@pytest.mark.chaos
def test_calls_of_unequal_size_even_out(spark):
    sizes = [600, 100, 100, 100, 100, 100, 100, 600, 600, 600]
    with start(spark, read_all) as cluster:
        for size in sizes:
            cluster.train(spark.range(0, size, 1, 1))
    assert sum(rows_of_nodes(cluster)) == sum(sizes)
    assert max(rows_of_nodes(cluster)) - min(rows_of_nodes(cluster)) <= max(sizes)


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
        assert wait_until(lambda: any(node.over for node in cluster.server.nodes.progress().values()), DEADLINE)
        for _ in range(4):
            cluster.train(spark.range(0, 100, 1, 1))
    assert rows_of_nodes(cluster) == [0, 200, 200]


@pytest.fixture
def streams(spark):
    start_callback_server(spark)
    return spark


def test_micro_batches_of_small_files_feed_all_nodes(streams, tmp_path):
    streams.range(0, 120, 1, 12).write.parquet(f"{tmp_path}/input")
    stream = streams.readStream.schema("id long").option("maxFilesPerTrigger", "1").parquet(f"{tmp_path}/input")
    with start(streams, read_all) as cluster:
        query = stream.writeStream.trigger(availableNow=True).foreachBatch(cluster.feed_batch).start()
        cluster.shutdown(query)
    assert rows_of_nodes(cluster) == [40, 40, 40]


@pytest.mark.chaos
def test_micro_batches_of_a_dstream_feed_all_nodes(streams):
    from pyspark.streaming import StreamingContext

    sc = streams.sparkContext
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # DStreams are deprecated
        ssc = StreamingContext(sc, 1)
    with start(streams, read_all) as cluster:
        cluster.train(ssc.queueStream([sc.parallelize(range(10), 1) for _ in range(6)]), num_epochs=0)
        ssc.start()
        rows = lambda: sum(node.rows for node in cluster.server.nodes.progress().values())  # noqa: E731
        assert wait_until(lambda: rows() == 60, DEADLINE)
        cluster.request_stop()
        cluster.shutdown(ssc)
    assert rows_of_nodes(cluster) == [20, 20, 20]


# Time-outs


def wait_for(path: str) -> None:
    """Where a partition's rows are computed: wait for a file."""
    deadline = time.monotonic() + DEADLINE
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.05)


def late(path, partition, rows):
    """The rows of partition 0 at once, those of the others when a file is there."""
    if partition:
        wait_for(path)
    yield from rows


def test_rows_that_nobody_reads_are_an_error_in_time_while_others_are_computed(any_spark, tmp_path):
    rdd = any_spark.sparkContext.parallelize(range(20), 2).mapPartitionsWithIndex(partial(late, f"{tmp_path}/go"))
    cluster = start(any_spark, read_nothing, nodes=1)
    began = time.monotonic()
    with pytest.raises(errors.FeedTimeoutError, match=r"worker:0 on .* feed_timeout=5 s .*feed\.next_batch"):
        cluster.train(rdd, feed_timeout=5)
    took = time.monotonic() - began
    (tmp_path / "go").touch()
    cluster.shutdown()
    assert 5 <= took < 5 + GRACE


@pytest.mark.chaos
def test_a_spool_that_is_full_and_that_nobody_reads_is_an_error_in_time(spark):
    # 8 x 48 MiB, where a node takes 256 MiB
    rdd = spark.sparkContext.parallelize(range(48), 8).flatMap(lambda i: [np.full(1 << 17, i, float)] * 8)
    cluster = start(spark, read_nothing, nodes=1)
    began = time.monotonic()
    with pytest.raises(errors.FeedTimeoutError, match=r"worker:0 on .* feed_timeout=5 s"):
        cluster.train(rdd, feed_timeout=5)
    assert time.monotonic() - began < 5 + 2 * GRACE  # and the rows have to be made


@pytest.mark.chaos
def test_inference_that_nobody_answers_is_an_error_in_time(spark):
    cluster = start(spark, read_nothing, nodes=1)
    results = cluster.inference(spark.sparkContext.parallelize(range(20), 2), 3)
    began = time.monotonic()
    with pytest.raises(Exception, match=r"worker:0 on .* feed_timeout=3 s"):
        results.collect()
    assert time.monotonic() - began < 3 + GRACE
    with pytest.raises(errors.FeedTimeoutError, match="feed_timeout=3 s"):
        cluster.shutdown()


def tell_when_read(args, ctx):
    """Read to the end of the feed; touch a file once twenty rows have been read."""
    feed, count = ctx.get_data_feed(), 0
    while not feed.should_stop():
        count += len(feed.next_batch(10))
        if count >= 20:
            Path(args).touch()
    ctx.report({"read": count})


@pytest.mark.parametrize("epochs", [1, pytest.param(3, marks=pytest.mark.chaos)])
def test_a_node_that_waits_for_rows_is_not_timed_out(spark, tmp_path, epochs):
    read, timeout = f"{tmp_path}/read", 3.0

    def very_late(partition, rows):
        if partition:
            wait_for(read)
            time.sleep(2 * timeout)  # as a source may that has no more rows for now
        yield from rows

    rdd = spark.sparkContext.parallelize(range(20), 2).mapPartitionsWithIndex(very_late)
    with start(spark, tell_when_read, read, nodes=1) as cluster:
        cluster.train(spark.range(10))  # its process has started now
        cluster.train(rdd, epochs, feed_timeout=timeout)
    assert cluster.summary["nodes"][0]["metrics"][0]["metrics"] == {"read": 10 + 20 * epochs}


# Programs of TensorFlowOnSpark


def stop_after(args, ctx):
    """Read so many rows, then terminate or merely return; report what they were."""
    feed, rows = ctx.get_data_feed(), []
    while not feed.should_stop() and len(rows) < args["rows"]:
        rows += feed.next_batch(10)
    if args["terminate"]:
        feed.terminate()
    ctx.report({"rows": len(rows), "sum": sum(rows)})


@pytest.mark.parametrize("terminate", [True, pytest.param(False, marks=pytest.mark.chaos)])
def test_without_end_rows_are_repeated_until_all_nodes_have_enough(spark, terminate):
    args = {"rows": 1000, "terminate": terminate}
    with start(spark, stop_after, args, nodes=2) as cluster:
        cluster.train(spark.sparkContext.parallelize([i % 20 for i in range(40)], 2), num_epochs=0)
        cluster.train(spark.sparkContext.parallelize([i % 20 for i in range(40)], 2), num_epochs=0)  # nobody reads it
    found = [node["metrics"][0]["metrics"] for node in cluster.summary["nodes"]]
    assert found == [{"rows": 1000, "sum": 1000 / 20 * sum(range(20))}] * 2


@pytest.mark.chaos
def test_without_end_no_rows_are_none(spark):
    with start(spark, read_all, nodes=2) as cluster:
        cluster.train(spark.sparkContext.emptyRDD(), num_epochs=0)
    assert rows_of_nodes(cluster) == [0, 0]


def test_without_end_rows_that_nobody_reads_are_an_error_in_time(spark):
    cluster = start(spark, read_nothing, nodes=1)
    with pytest.raises(errors.FeedTimeoutError, match="feed_timeout=2 s"):
        cluster.train(spark.range(10), 0, 2)


def read_both(args, ctx):
    """Rows to train on, and rows to infer from, of one feed."""
    feed, rows = ctx.get_data_feed(train_mode=False), []
    while len(rows) < 250:
        rows += feed.next_batch(50)
    while not feed.should_stop():
        feed.batch_results([row + rows[i % 250] for i, row in enumerate(feed.next_batch(1000))])
    ctx.report({"rows": len(rows), "in order": rows == [*range(200), *range(50)]})


def test_a_feed_for_inference_is_trained_on_in_order(any_spark):
    sc = any_spark.sparkContext
    with start(any_spark, read_both, nodes=1) as cluster:
        cluster.train(sc.parallelize(range(200), 1))
        cluster.train(sc.parallelize(range(25), 1), num_epochs=1)
        cluster.train(sc.parallelize(range(25, 50), 1), num_epochs=1)
        assert cluster.inference(sc.parallelize([1000], 1), feed_timeout=60, qname="input").collect() == [1000]
    assert cluster.summary["nodes"][0]["metrics"][0]["metrics"] == {"rows": 250, "in order": 1}


@pytest.mark.chaos
def test_input_modes_of_tensorflowonspark(spark):
    with TFCluster.run(spark.sparkContext, read_all, None, 1, input_mode=1) as cluster:
        cluster.train(spark.range(10))
    assert (cluster.input_mode, rows_of_nodes(cluster)) == (InputMode.SPARK, [10])
    with TFCluster.run(spark.sparkContext, read_nothing_and_return, None, 1, input_mode=0) as cluster:
        assert cluster.input_mode == InputMode.TENSORFLOW
    for wrong in (2, None, ["SPARK"]):
        with pytest.raises(errors.ParamError, match="input_mode must be InputMode.SPARK or InputMode.TENSORFLOW"):
            TFCluster.run(spark.sparkContext, read_all, None, 1, input_mode=wrong)


def read_nothing_and_return(args, ctx):
    """Nothing to do."""


@pytest.mark.chaos
def test_arguments_of_feeding_are_checked_on_several_executors(sessions):
    spark = sessions.get(CLUSTER)
    rdd = spark.sparkContext.parallelize(range(10), 1)
    with start(spark, read_all, nodes=1) as cluster:
        for wrong in (-1, 1.5, True, "2"):
            with pytest.raises(errors.ParamError, match="num_epochs must be an integer of at least 1, or 0"):
                cluster.train(rdd, wrong)
        for wrong in (0, -1, float("nan"), None, "input", True):
            for call in (partial(cluster.train, rdd, 1), partial(cluster.inference, rdd)):
                with pytest.raises(errors.ParamError, match="feed_timeout must be positive seconds. Received: "):
                    call(wrong)
