"""A model of 300 MB through Spark Connect: back to the client, and to the executors, whose JVMs have 1 GB."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import CLUSTER
from connect_server import ConnectServer, needs_connect_server

MEGABYTES = 300
PROGRAM = """
import sys, time
from pathlib import Path

from pyspark.sql import SparkSession, functions as F
from tfos_ml import TFEstimator

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
df = spark.range(0, 1000, 1, 4).select(F.col("id").cast("float").alias("features"))

def train(args, ctx):
    import tensorflow as tf

    rows = sum(int(batch.shape[0]) for batch in ctx.dataset())
    module = tf.Module()
    module.ballast = tf.Variable(tf.random.uniform([args["megabytes"] * 250_000]))
    module.serve = tf.function(lambda features: {"y": features + rows + 0 * module.ballast[-1]})
    specs = tf.TensorSpec([None], tf.float32, "features")
    ctx.export_saved_model(module, signatures={"serving_default": module.serve.get_concrete_function(features=specs)})

def told(what, action):
    began = time.monotonic()
    print(what, action())
    print(what, "took", round(time.monotonic() - began, 1), "s", file=sys.stderr)

def fit():
    global model
    model = TFEstimator(trainFn=train, tfArgs={"megabytes": int(sys.argv[2])}, verbose=0).fit(df)
    files = [path for path in Path(model.savedModelDir()).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files) // 1_000_000

def score():
    return model.transform(df).agg(F.sum(F.col("prediction") - F.col("features"))).first()[0]

told("MB", fit)
told("scored", score)
told("again", score)
spark.stop()
"""


@pytest.mark.chaos
@needs_connect_server
@pytest.mark.timeout(300)
def test_a_model_comes_back_and_goes_to_the_executors():
    server = ConnectServer(CLUSTER, {"spark.ui.enabled": "false"})
    try:
        command = [sys.executable, "-c", PROGRAM, server.url, str(MEGABYTES)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    finally:
        server.close()
    assert done.stdout.splitlines() == [f"MB {MEGABYTES}", "scored 1000000.0", "again 1000000.0"], done.stderr[-3000:]
