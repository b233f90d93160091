"""What a client of Spark Connect shows while a fit runs: seen from another process, this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from connect_server import needs_connect_server

PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession, functions as F
from tfos_ml import TFEstimator

url, seen = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()

def train(args, ctx):
    import os, time

    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(100)
    for epoch in range(3):
        ctx.report({"loss": 1.0 / (epoch + 1)}, epoch=epoch)
        deadline = time.monotonic() + 60
        while ctx.is_chief and not os.path.exists(f"{args.seen}-{epoch}"):
            assert time.monotonic() < deadline, f"the client has not shown epoch {epoch}"
            time.sleep(0.1)

df = spark.range(0, 100, 1, 2).select(F.col("id").cast("float").alias("features"))
estimator = TFEstimator(trainFn=train, tfArgs={"seen": seen}, clusterSize=2, epochs=3, verbose=2)
model = estimator.fit(df)
print("history", len(model.summary.history["loss"]), flush=True)
spark.stop()
"""


@pytest.mark.corner("Spark Connect: metrics while a fit runs")
@pytest.mark.chaos
@needs_connect_server
def test_metrics_are_shown_while_the_fit_runs(connect_server, tmp_path):
    """If nodes do not reach the client, at its end: cluster/test_behind_nat.py."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, connect_server.url, str(tmp_path / "seen")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as client:
        assert client.stdout is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(client.stderr or ()))
        reader.start()
        shown = []
        for line in client.stdout:
            shown.append(line)
            if line.startswith("Epoch "):
                (tmp_path / f"seen-{len(shown) - 1}").touch()
        reader.join(60)
    lines = [line.split(" [")[0].rstrip() for line in shown]
    assert lines == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3", "history 3"], "".join(errors)[-3000:]
