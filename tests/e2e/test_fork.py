"""Nodes are forked from a process that has imported TensorFlow, unless a setting says otherwise."""

import json
import os
import tempfile
from pathlib import Path

import psutil
import pytest
from pyspark.sql import functions as F
from train_functions import write

from tfos_ml import KerasEstimator, TFEstimator

pytestmark = pytest.mark.filterwarnings("ignore:The train function exported no model")


def tell_parent(args, ctx):
    from supervisors import supervisor_of

    write(args, ctx, {"parent": os.getppid(), "supervisor": supervisor_of(ctx)})


def fit(spark, directory):
    """Fit on two nodes."""
    df = spark.range(40).select(F.col("id").cast("float").alias("features"))
    TFEstimator(trainFn=tell_parent, clusterSize=2, tfArgs={"directory": str(directory)}).fit(df)
    return [json.loads(file.read_text()) for file in sorted(directory.glob("worker-*.json"))]


def test_looks_nodes_and_scoring_share_one_server_on_the_drivers_host(spark, tmp_path):
    """Red before: three servers, each with a TensorFlow of its own."""
    nodes = fit(spark, tmp_path)
    assert len({node["parent"] for node in nodes}) == 1
    assert "tfos_ml.worker.fork_server" in psutil.Process(nodes[0]["parent"]).cmdline()
    assert nodes[0]["parent"] not in {node["supervisor"] for node in nodes}
    known = servers()
    df = spark.range(40).select((F.col("id") / 40).cast("float").alias("features"), F.lit(0.0).alias("label"))
    estimator = KerasEstimator(model=regression, batchSize=10, verbose=0)
    assert estimator.fit(df).transform(df).count() == 40
    assert servers() == known


def servers():
    """The places of fork servers."""
    return set(Path(tempfile.gettempdir()).glob("tfos_ml-forkserver-*"))


def regression():
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model
