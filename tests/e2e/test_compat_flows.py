"""Programs written for TensorFlowOnSpark, over ``tfos_ml.compat``."""

from __future__ import annotations

import argparse
import os
import socket

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.sql import functions as F

from tfos_ml import errors
from tfos_ml.compat import TFCluster, TFNode, TFSparkNode, compat, dfutil, pipeline


def answer_with_context(args, ctx):
    feed = ctx.get_data_feed(train_mode=False, input_mapping={"b": "second", "a": "first"})
    while not feed.should_stop():
        batch = feed.next_batch(10)
        pairs = zip(batch["first"], batch["second"], strict=True)
        feed.batch_results([[a * b, ctx.num_workers, ctx.worker_num < 2, "TF_CONFIG" in os.environ] for a, b in pairs])


def test_inference_maps_columns_in_sorted_order_and_sets_no_tf_config_without_a_chief(spark):
    sc = spark.sparkContext
    cluster = TFCluster.run(sc, answer_with_context, [], 2, 0, input_mode=TFCluster.InputMode.SPARK)
    results = cluster.inference(sc.parallelize([(i, i + 1) for i in range(100)], 5)).collect()
    cluster.shutdown()
    assert results == [[i * (i + 1), 2, True, False] for i in range(100)]


def train_columns(args, ctx):
    import keras

    feed = ctx.get_data_feed(train_mode=True, input_mapping=args.input_mapping)
    model = keras.Sequential(
        [keras.layers.Input((1,), name="x"), keras.layers.Dense(1, kernel_initializer="zeros", name="dense")]
    )
    model.compile(keras.optimizers.SGD(0.5), "mse")
    while not feed.should_stop():
        batch = feed.next_batch(args.batch_size)
        if batch["label"]:
            model.train_on_batch(np.array(batch["x"], np.float32), np.array(batch["label"]))
    compat.export_saved_model(model, args.export_dir, is_chief=ctx.job_name == "chief")


@pytest.mark.corner("A program written for TensorFlowOnSpark")
def test_pipeline(spark, tmp_path):
    df = spark.range(400).select(F.array(F.col("id") / 400).alias("rows"), (F.col("id") / 200 + 1).alias("label"))
    estimator = (
        pipeline.TFEstimator(train_columns, argparse.Namespace(unknown_to_params=1))
        .setInputMapping({"rows": "x", "label": "label"})
        .setExportDir(f"{tmp_path}/exported")
        .setClusterSize(1)
        .setMasterNode("chief")
        .setEpochs(8)
        .setBatchSize(32)
        .setGraceSecs(60)
    )
    assert (estimator.getSteps(), estimator.getReaders(), estimator.getProtocol()) == (1000, 1, "grpc")
    fitted = Pipeline(stages=[estimator]).fit(df)
    model = fitted.stages[0]
    assert isinstance(model, pipeline.TFModel)
    assert (model.getExportDir(), model.args.unknown_to_params) == (f"{tmp_path}/exported", 1)
    model.setInputMapping({"rows": "x"})
    model.setOutputMapping({"dense": "prediction"}).setSignatureDefKey("serving_default").setTagSet("serve")
    scored = fitted.transform(df)
    assert scored.dtypes == [("prediction", "array<double>")]
    found = [row.prediction[0] for row in scored.collect()]
    np.testing.assert_allclose(found, [row.label for row in df.collect()], atol=0.2)


def test_defaults_of_params_go_before_arguments_and_it_is_told():
    estimator = pipeline.TFEstimator(train_columns, {"batch_size": 64, "epochs": 1, "mine": 2}).setEpochs(3)
    with pytest.warns(UserWarning, match=r"'batch_size': 64.*\{'batch_size': 100\}"):
        args = estimator.merge_args_params()
    assert (args.batch_size, args.epochs, args.mine) == (100, 3, 2)
    with pytest.raises(errors.ParamError, match="TENSORFLOW"):
        estimator.setInputMode(TFCluster.InputMode.TENSORFLOW)
    with pytest.raises(errors.ParamError, match="export_fn"):
        pipeline.TFEstimator(train_columns, {}, export_fn=print)
    assert pipeline.Namespace(["--a", "1"]).argv == ["--a", "1"]


def test_tfrecords_come_back_as_they_were(spark, tmp_path):
    columns = "i int, f float, b binary, flag boolean, words array<string>"
    df = spark.createDataFrame([(1, 0.5, b"\xff", True, ["a", "b"]), (2, None, b"x", False, ["c"])], columns)
    dfutil.saveAsTFRecords(df.coalesce(1), f"file://{tmp_path}/records")
    loaded = dfutil.loadTFRecords(spark.sparkContext, f"{tmp_path}/records", binary_features=["b"])
    assert dfutil.isLoadedDF(loaded)
    assert not dfutil.isLoadedDF(df)
    assert {*loaded.dtypes} > {("b", "binary"), ("flag", "bigint"), ("words", "array<string>")}
    assert loaded.select(*df.columns).collect() == df.withColumn("flag", F.col("flag").cast("int")).collect()


def hold_port(args, ctx):
    port = ctx.tmp_socket.getsockname()[1]  # red before: AttributeError
    assert ctx.cluster_spec["worker"][0].endswith(f":{port}")
    with pytest.raises(OSError, match="in use"), socket.create_server(("", port)):
        pass
    with pytest.raises(errors.RemovedError):
        ctx.mgr.get_queue("input")
    assert ctx.mgr.get("state") == "running"
    ctx.release_port()
    assert ctx.tmp_socket is None
    assert isinstance(ctx, TFSparkNode.TFNodeContext)
    _, server = ctx.start_cluster_server()
    assert server.target.startswith("grpc://")
    feed, rows = TFNode.DataFeed(ctx.mgr), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(32))
    ctx.report({"rows": rows})


def test_a_node_releases_its_port_itself_and_starts_its_server_and_no_epochs_are_ten(spark):
    sc = spark.sparkContext
    cluster = TFCluster.run(sc, hold_port, None, 1, 0, input_mode=TFCluster.InputMode.SPARK, release_port=False)
    cluster.train(sc.parallelize(range(100), 2))
    cluster.shutdown(timeout=-1)
    assert cluster.summary["nodes"][0]["metrics"][0]["metrics"] == {"rows": 1000}
