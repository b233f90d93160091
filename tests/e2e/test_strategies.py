"""TensorFlow's distribution strategies on real processes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFEstimator, errors
from tfos_ml.driver.resources import make_profile

ROWS = 600


def linear_data(spark):
    """Rows of y = 3 a - 2 b + 1."""
    a, b = F.col("id") % 7 / 7.0, F.col("id") % 5 / 5.0
    df = spark.range(0, ROWS, 1, 3).select(a.alias("a"), b.alias("b"))
    features = F.array("a", "b").cast("array<float>").alias("features")
    return df.select(features, (3 * F.col("a") - 2 * F.col("b") + 1).cast("float").alias("label"))


def train_with_parameter_server(args, ctx):
    """ParameterServerStrategy: the chief coordinates, workers and ps serve."""
    import tensorflow as tf

    if ctx.job_name != "chief":
        ctx.start_server()
        ctx.wait()
        return

    strategy = tf.distribute.ParameterServerStrategy(ctx.cluster_resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(tf.zeros([2]))
        bias = tf.Variable(0.0)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weights) + bias - y))
        for variable, gradient in zip([weights, bias], tape.gradient(loss, [weights, bias]), strict=True):
            variable.assign_sub(0.2 * gradient)
        return loss

    for epoch in range(ctx.epochs):
        pending = [coordinator.schedule(step, args=(x, y)) for x, y in ctx.dataset()]
        coordinator.join()
        losses = [float(loss.fetch()) for loss in pending]
        ctx.report({"loss": sum(losses) / len(losses)}, epoch=epoch)
    where = {weights.device, bias.device}
    assert all("/job:ps" in device for device in where), where
    module = tf.Module()
    module.weights, module.bias = tf.Variable(weights.numpy()), tf.Variable(bias.numpy())
    serve = tf.function(lambda features: {"y": tf.linalg.matvec(features, module.weights) + module.bias})
    module.serve = serve.get_concrete_function(features=tf.TensorSpec([None, 2], tf.float32, "features"))
    ctx.export_saved_model(module, signatures={"serving_default": module.serve})


@pytest.mark.corner("Parameter servers")
def test_parameter_server_strategy(spark):
    roles, df = {"clusterSize": 4, "numPS": 1, "masterNode": "chief"}, linear_data(spark)
    model = TFEstimator(trainFn=train_with_parameter_server, epochs=10, batchSize=32, verbose=0, **roles).fit(df)
    rows = {node["label"]: node["rows"] for node in model.summary.nodes}
    assert rows == {"ps:0": 0, "chief:0": ROWS, "worker:0": 0, "worker:1": 0}
    assert model.summary.history["loss"][-1] < 0.01
    error = model.transform(df.coalesce(1)).select(F.max(F.abs(F.col("prediction") - F.col("label")))).first()[0]
    assert error < 0.3


def train_and_evaluate(args, ctx):
    """The chief writes checkpoints, the evaluator follows them on the validation rows."""
    import time

    import tensorflow as tf

    slope, epoch = tf.Variable(0.0), tf.Variable(-1, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(slope=slope, epoch=epoch)
    if ctx.job_name == "evaluator":
        data, is_last = [(x.numpy(), y.numpy()) for x, y in ctx.validation_dataset()], False
        while not is_last:
            is_last = ctx.should_stop()
            latest = tf.train.latest_checkpoint(ctx.checkpoint_dir)
            if latest:
                checkpoint.restore(latest).expect_partial()
                squares = [(float(slope) * x - y) ** 2 for x, y in data]
                ctx.report({"mse": float(np.mean(np.concatenate(squares)))}, epoch=int(epoch))
            time.sleep(0.1)
        return
    manager = tf.train.CheckpointManager(checkpoint, ctx.checkpoint_dir, max_to_keep=2)
    for number in range(ctx.epochs):
        for x, y in ctx.dataset():
            slope.assign_add(0.2 * tf.reduce_mean((y - slope * x) * x))
        epoch.assign(number)
        if ctx.is_chief:
            manager.save(number)
        ctx.barrier(f"epoch {number}")


def test_evaluator_follows_checkpoints(spark, tmp_path):
    x = (F.col("id") % 10) / 10.0
    df = spark.range(0, 200, 1, 2).select(
        x.cast("float").alias("features"),
        (4 * x).cast("float").alias("label"),
        (F.col("id") % 5 == 0).alias("held_out"),
    )
    roles = {"clusterSize": 3, "masterNode": "chief", "evalNode": True}
    params = {"validationIndicatorCol": "held_out", "modelDir": str(tmp_path), "epochs": 4, "batchSize": 20}
    model = TFEstimator(trainFn=train_and_evaluate, verbose=0, **roles, **params).fit(df)
    nodes = {node["label"]: (node["rows"], node["validation_rows"]) for node in model.summary.nodes}
    assert nodes["evaluator:0"] == (0, 40)
    assert nodes["chief:0"][0] + nodes["worker:0"][0] == 160
    assert model.summary.history["eval_mse"][-1] < 0.1


def linear_model():
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def record_rows_by_step(args, ctx):
    """The rows of each step of two epochs, as TensorFlow and tf_keras see them under a strategy, in JSON."""
    import os

    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    import tf_keras

    if args.strategy == "MirroredStrategy":  # two replicas in this process
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    else:
        given = {"cluster_resolver": ctx.cluster_resolver(), "communication_options": ctx.communication_options()}
        strategy = tf.distribute.MultiWorkerMirroredStrategy(**given)
        assert strategy.num_replicas_in_sync == ctx.num_workers

    ledgers, seen = {"dataset": [x.numpy().ravel().tolist() for _ in "ab" for x, y in ctx.dataset()]}, {}

    def note(step, x):
        seen.setdefault(int(step), []).extend(x.ravel().tolist())
        return np.float32(0)

    class Model(tf_keras.Sequential):
        def train_step(self, data):
            tf.numpy_function(note, [self.optimizer.iterations, data[0]], tf.float32)
            return super().train_step(data)

    def rows(x):
        return np.concatenate([part.numpy().ravel() for part in strategy.experimental_local_results(x)]).tolist()

    with strategy.scope():
        # Normalization has variables that TensorFlow can only read, and save, on all workers together.
        layers = [tf_keras.layers.Input((1,)), tf_keras.layers.BatchNormalization(), tf_keras.layers.Dense(1)]
        model = Model(layers)
        model.compile("sgd", "mse")
    changed = ctx.dataset().map(lambda x, y: (x + 0, y)).prefetch(1)
    history = model.fit(changed, validation_data=ctx.validation_dataset(), epochs=2, verbose=0).history
    assert len(history["val_loss"]) == 2
    ledgers["fit"] = [seen[step] for step in sorted(seen)]
    data = strategy.experimental_distribute_dataset(ctx.dataset())
    ledgers["loop"] = [rows(x) for _ in "ab" for x, y in data]
    if args.strategy == "MultiWorkerMirroredStrategy":
        data = strategy.distribute_datasets_from_function(lambda _: ctx.dataset())
        ledgers["function"] = [rows(x) for _ in "ab" for x, y in data]
    with open(f"{args.directory}/{ctx.worker_num}.json", "w") as file:
        json.dump(ledgers, file)
    ctx.export_saved_model(model)


@pytest.mark.parametrize(
    ("workers", "strategy"),
    [(2, "MultiWorkerMirroredStrategy"), pytest.param(1, "MirroredStrategy", marks=pytest.mark.chaos)],
)
def test_each_row_comes_once_an_epoch_in_its_step(spark, tmp_path, workers, strategy):
    pytest.importorskip("tf_keras")
    ids = F.col("id").cast("float")
    df = spark.range(0, 67, 1, 3).select(
        F.array(ids).alias("features"), ids.alias("label"), (F.col("id") > 65).alias("v")
    )
    args = {"strategy": strategy, "directory": str(tmp_path)}
    estimator = TFEstimator(trainFn=record_rows_by_step, tfArgs=args, clusterSize=workers, batchSize=16, shuffle=False)
    estimator.setParams(validationIndicatorCol="v", feedTimeout=120, verbose=0).fit(df)  # one row: some worker has none
    ledgers = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(ledgers) == workers
    for ledger in ledgers:
        for way, by_step in ledger.items():
            assert [sorted(rows) for rows in by_step] == [sorted(rows) for rows in ledger["dataset"]], way
    assert sorted(row for ledger in ledgers for rows in ledger["dataset"] for row in rows) == sorted([*range(66)] * 2)


def test_gpus_that_are_not_there_are_refused(spark):
    df = linear_data(spark)
    with pytest.raises(errors.ClusterConfigError, match="communication='nccl' needs a GPU on every worker"):
        KerasEstimator(model=linear_model, clusterSize=2, communication="nccl", verbose=0).fit(df)
    with pytest.raises(errors.ClusterConfigError, match=r"nodeGpus=1, but a local session .*Unset nodeGpus"):
        KerasEstimator(model=linear_model, nodeGpus=1, verbose=0).fit(df)
    conf = {"spark.master": "yarn", "spark.executor.resource.gpu.amount": "1"}
    with pytest.raises(errors.ClusterConfigError, match="nodeGpus=2, but an executor has only .*=1"):
        make_profile(SimpleNamespace(conf=conf), None, 2)
