"""Streams that feed a TFCluster: DStream and Structured Streaming, ended from another process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from conftest import start_callback_server, wait_until

from tfos_ml import InputMode, TFCluster, errors
from tfos_ml.compat import TFCluster as CompatTFCluster

STOP = """
import sys
from tfos_ml.compat.reservation import Client
Client(sys.stdin.read().split()).request_stop()
"""


def stop_from_another_process(address) -> None:
    assert address.token not in repr(address)
    subprocess.run(
        [sys.executable, "-c", STOP], input=f"{address.location} {address.token}", text=True, check=True, timeout=60
    )


def record_lines(args, ctx):
    """Append every row to a file as it comes."""
    feed = ctx.get_data_feed()
    with open(f"{args}/{ctx.task_index}.txt", "a") as file:
        while not feed.should_stop():
            for (number,) in feed.next_batch(1):
                file.write(f"{number}\n")
                file.flush()


def seen(directory) -> list[int]:
    return sorted(int(line) for path in directory.glob("*.txt") for line in path.read_text().splitlines())


@pytest.fixture(autouse=True)
def callback_server(spark):
    start_callback_server(spark)


@pytest.fixture
def cluster(spark, tmp_path):
    with TFCluster.run(spark.sparkContext, record_lines, str(tmp_path), 2, input_mode=InputMode.SPARK) as cluster:
        yield cluster


@pytest.fixture
def compat_cluster(spark, tmp_path):
    sc, mode = spark.sparkContext, CompatTFCluster.InputMode.SPARK
    with CompatTFCluster.run(sc, record_lines, str(tmp_path), 2, 0, input_mode=mode) as cluster:
        yield cluster


def test_dstream(spark, compat_cluster, tmp_path):
    from pyspark.streaming import StreamingContext

    sc, cluster = spark.sparkContext, compat_cluster
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # DStreams are deprecated
        ssc = StreamingContext(sc, 0.2)
    batches = [sc.parallelize([(i,) for i in range(n * 100, n * 100 + 100)], 3) for n in range(3)]
    cluster.train(ssc.queueStream(batches))
    ssc.start()
    waiting = threading.Thread(target=cluster.shutdown, args=(ssc,))
    waiting.start()
    assert wait_until(lambda: seen(tmp_path) == list(range(300)), 60)
    stop_from_another_process(cluster.cluster_meta["server_addr"])
    waiting.join(60)
    assert not waiting.is_alive()
    assert seen(tmp_path) == list(range(300))


@pytest.mark.corner("TFCluster fed by structured streaming")
def test_structured_streaming(spark, cluster, tmp_path):
    spark.range(0, 300, 1, 6).write.parquet(f"{tmp_path}/input")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").parquet(f"{tmp_path}/input")
    query = stream.writeStream.foreachBatch(cluster.feed_batch).start()
    waiting = threading.Thread(target=cluster.shutdown, args=(query,))
    waiting.start()
    assert wait_until(lambda: seen(tmp_path) == list(range(300)), 60)
    stop_from_another_process(cluster._control.address)
    waiting.join(60)
    assert not waiting.is_alive()
    assert not query.isActive
    assert seen(tmp_path) == list(range(300))
    shares = [path.read_text().splitlines() for path in tmp_path.glob("*.txt")]
    assert [len(share) for share in shares] == [150, 150]  # of micro-batches of one small file each
    with pytest.raises(errors.ClusterClosedError, match="Micro-batch 7 is not fed"):
        cluster.feed_batch(spark.range(3), 7)


def stand_still(directory):
    """Tell that rows are asked for, and give none."""

    def pass_on(batches):
        Path(directory, "asked").touch()
        while True:
            time.sleep(0.1)
            yield from ()

    return pass_on


def test_a_canceled_micro_batch_is_a_typed_error(spark, cluster, tmp_path):
    spark.range(10).write.parquet(f"{tmp_path}/input")
    stream = spark.readStream.schema("id long").parquet(f"{tmp_path}/input")
    stream = stream.mapInArrow(stand_still(str(tmp_path)), "id long")
    query = stream.writeStream.foreachBatch(cluster.feed_batch).start()
    assert wait_until((tmp_path / "asked").exists, 60)
    spark.sparkContext.cancelAllJobs()
    with pytest.raises(errors.FitCancelledError, match="The Spark job was canceled"):
        cluster.shutdown(query)
