"""Where a cluster listens on a host with a network, whose name Spark has made the driver's."""

import json
import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from tfos_ml.inference.tensorflow_import import PRELOADS
from tfos_ml.protocol.addresses import is_loopback

DRIVER = """
import contextlib, json, os
import psutil
from pyspark.sql import SparkSession
from tfos_ml import InputMode, TFCluster
from test_listening import count

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.tfos_ml.port", "24100")
spark.conf.set("spark.tfos_ml.nodePorts", "24200-24219")
with TFCluster.run(spark.sparkContext, count, None, 2, input_mode=InputMode.SPARK) as cluster:
    cluster.train(spark.sparkContext.range(100, numSlices=2))
    listening = set()
    for process in psutil.process_iter():  # supervisors are no children of this one
        with contextlib.suppress(psutil.Error):
            is_ours = process.environ().get("OF_TEST_LISTENING") == os.environ["OF_TEST_LISTENING"]
            if is_ours and process.name() != "java":
                listening |= {c.laddr for c in process.net_connections() if c.status == "LISTEN"}
    nodes = [(node["host"], node["port"]) for node in cluster.cluster_info]
    print(json.dumps([cluster._control.address.location, nodes, sorted(listening)]))
spark.stop()
"""


def count(args, ctx):
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(10)


@pytest.mark.chaos  # a session of its own; unit/test_addresses.py has the choice
def test_a_local_session_is_reached_from_its_host_alone_and_on_the_ports_it_was_given():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_LOCAL_")}
    environment |= {"OF_TEST_LISTENING": str(os.getpid()), PRELOADS: "0"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], env=environment, stdout=subprocess.PIPE, text=True, timeout=170, check=True
    )
    location, nodes, listening = json.loads(done.stdout.splitlines()[-1])
    driver = urlsplit(location)
    assert (driver.scheme, driver.hostname) == ("grpc+tls", "127.0.0.1")
    assert driver.port in range(24100, 24117)
    assert {host for host, _ in nodes} == {"127.0.0.1"}
    assert {port for _, port in nodes} <= set(range(24200, 24220))
    assert len([port for _, port in listening if port in range(24200, 24220)]) == 2  # each takes rows
    assert all(is_loopback(host.removeprefix("::ffff:")) for host, _ in listening)
