"""Streams that feed a TFCluster: DStream and Structured Streaming, ended from another process."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import pytest
from conftest import SPARK_PORTS, listening_ports, wait_until
from pyspark.java_gateway import ensure_callback_server_started

from tfos_ml import InputMode, TFCluster, errors
from tfos_ml.compat import TFCluster as CompatTFCluster

STOP = """
import sys
from tfos_ml.compat.reservation import Client
Client(sys.stdin.read().split()).request_stop()
"""


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
    """The server through which the JVM calls Python, which Spark starts on first use, and keeps."""
    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    port = gateway.get_callback_server().get_listening_port()
    assert wait_until(lambda: port in listening_ports(), 30)  # a thread of py4j's has it listen
    SPARK_PORTS.add(port)


def ends_when_asked(cluster, stream, address, directory):
    """The cluster and what feeds it end once another process asks for it, after all rows."""
    waiting = threading.Thread(target=cluster.shutdown, args=(stream,))
    waiting.start()
    assert wait_until(lambda: seen(directory) == list(range(300)), 60)
    assert address.token not in repr(address)
    text = f"{address.location} {address.token}"
    subprocess.run([sys.executable, "-c", STOP], input=text, text=True, check=True, timeout=60)
    waiting.join(60)
    assert not waiting.is_alive()
    assert seen(directory) == list(range(300))


def test_dstream(spark, tmp_path):
    from pyspark.streaming import StreamingContext

    sc, mode = spark.sparkContext, CompatTFCluster.InputMode.SPARK
    cluster = CompatTFCluster.run(sc, record_lines, str(tmp_path), 2, 0, input_mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # DStreams are deprecated
        ssc = StreamingContext(sc, 0.2)
    batches = [sc.parallelize([(i,) for i in range(n * 100, n * 100 + 100)], 3) for n in range(3)]
    cluster.train(ssc.queueStream(batches))
    ssc.start()
    ends_when_asked(cluster, ssc, cluster.cluster_meta["server_addr"], tmp_path)


@pytest.mark.corner("TFCluster fed by structured streaming")
def test_structured_streaming(spark, tmp_path):
    cluster = TFCluster.run(spark.sparkContext, record_lines, str(tmp_path), 2, input_mode=InputMode.SPARK)
    spark.range(0, 300, 1, 6).write.parquet(f"{tmp_path}/input")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").parquet(f"{tmp_path}/input")
    query = stream.writeStream.foreachBatch(cluster.feed_batch).start()
    ends_when_asked(cluster, query, cluster._control.address, tmp_path)
    assert not query.isActive
    shares = [path.read_text().splitlines() for path in tmp_path.glob("*.txt")]
    assert [len(share) for share in shares] == [150, 150]  # of micro-batches of one small file each
    with pytest.raises(errors.ClusterClosedError, match="Micro-batch 7 is not fed"):
        cluster.feed_batch(spark.range(3), 7)
