"""What ends when: workers are waited for, servers and evaluators are ended, and who is ended at work is named.

The same without Spark, and more of it, is in ``harness/test_cluster_ends.py``.
"""

from __future__ import annotations

import time
import warnings

import pytest
from conftest import CLUSTER
from node_functions import never_look, wait_for_end, work, work_or_serve
from settings import setting

from tfos_ml import InputMode, TFCluster, TFEstimator, errors

PARAMETER_SERVER = {"num_ps": 1, "master_node": "chief"}


def start(spark, map_fun, args=None, nodes=1, mode=InputMode.TENSORFLOW, **options):
    return TFCluster.run(spark, map_fun, args or {}, nodes, input_mode=mode, **options)


def fit(spark, train_fn, args=None, **params):
    rows = spark.range(20).selectExpr("id as features")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.NothingExportedWarning)
        return TFEstimator(trainFn=train_fn, tfArgs=args or {}, verbose=0, **params).fit(rows)


def metrics_of(summary):
    """What each node reported, by its label."""
    return {
        node["label"]: {name: value for report in node["metrics"] for name, value in report["metrics"].items()}
        for node in summary["nodes"]
    }


# A chief, a parameter server and a worker


def assert_worker_has_ended_before_the_server(summary):
    told = metrics_of(summary)
    assert told["worker:0"]["done"] > told["chief:0"]["done"] + 5
    assert told["ps:0"]["ended"] > told["worker:0"]["done"]


@pytest.mark.chaos
def test_a_worker_that_works_is_waited_for_after_the_chief(any_spark, caplog):
    with start(any_spark, work_or_serve, {"worker": 7}, nodes=3, **PARAMETER_SERVER) as cluster:
        pass
    assert_worker_has_ended_before_the_server(cluster.summary)
    assert "Waiting for worker:0 to return" in caplog.text


def test_a_fit_waits_for_a_worker_that_works(any_spark, caplog):
    model = fit(any_spark, work_or_serve, {"worker": 7}, clusterSize=3, numPS=1, masterNode="chief")
    assert_worker_has_ended_before_the_server(vars(model.summary))
    assert "Waiting for worker:0 to return" in caplog.text


STILL_WORKED = r"worker:0 still worked 1 s after .*spark.tfos_ml.workerGrace=1"


def test_a_worker_that_a_fit_ends_at_work_is_named(spark):
    with setting(spark, "workerGrace", "1"), pytest.warns(errors.NodeEndedWarning, match=STILL_WORKED):
        fit(spark, work_or_serve, {"worker": 600}, clusterSize=3, numPS=1, masterNode="chief")


def fail_after_the_chief(args, ctx):
    if ctx.job_name == "worker":
        wait_for_end(ctx)
        raise ZeroDivisionError("the user's own mistake")
    work_or_serve(args, ctx)


def test_a_worker_that_fails_after_the_chief_is_an_error(spark):
    with pytest.raises(errors.TrainFnError, match="worker:0 on .*the user's own mistake"):
        fit(spark, fail_after_the_chief, clusterSize=3, numPS=1, masterNode="chief")


def lose_the_chief(args, ctx):
    if ctx.job_name == "worker":
        import tensorflow as tf

        wait_for_end(ctx)
        raise tf.errors.UnavailableError(None, None, "the chief is gone")
    work_or_serve(args, ctx)


def test_a_worker_whose_connections_break_with_the_chief_is_named(spark):
    with pytest.warns(errors.NodeEndedWarning, match=r"worker:0 failed after the chief .*the chief is gone"):
        fit(spark, lose_the_chief, clusterSize=3, numPS=1, masterNode="chief")


def join_a_server_of_its_own(args, ctx):
    """As programs without tfos_ml do; the server is no business of the context."""
    if ctx.job_name == "chief":
        return
    import tensorflow as tf

    tf.distribute.Server(ctx.tf_cluster_spec(), job_name=ctx.job_name, task_index=ctx.task_index).join()


@pytest.mark.chaos
def test_a_worker_that_only_serves_is_ended_with_the_chief(spark):
    cluster = start(spark, join_a_server_of_its_own, nodes=3, **PARAMETER_SERVER)
    cluster.shutdown(timeout=60)
    assert [node["label"] for node in cluster.summary["nodes"]] == ["ps:0", "chief:0", "worker:0"]


def count_on_the_server(args, ctx):
    """As programs of TensorFlow 1 do: each worker trains by itself, and the variables are the server's."""
    import tensorflow as tf

    server = ctx.start_server()
    if ctx.job_name == "ps":
        server.join()
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0/cpu:0"):
            count = tf.compat.v1.get_variable("count", shape=(), initializer=tf.compat.v1.zeros_initializer())
        with tf.device(f"/job:{ctx.job_name}/task:{ctx.task_index}/cpu:0"):
            step = tf.compat.v1.assign_add(count, 1.0)
        alone = tf.compat.v1.ConfigProto(device_filters=["/job:ps", f"/job:{ctx.job_name}"])
        with tf.compat.v1.Session(server.target, config=alone) as session:
            session.run(count.initializer)
            if ctx.job_name == "chief":
                return
            while not ctx.should_stop():
                session.run(step)
            over = time.monotonic() + 8
            while time.monotonic() < over:
                last = session.run(step)
            ctx.report({"count": last})


@pytest.mark.chaos
def test_a_worker_trains_on_with_the_parameter_server_after_the_chief_on_several_executors(sessions):
    cluster = start(sessions.get(CLUSTER), count_on_the_server, nodes=3, **PARAMETER_SERVER)
    cluster.shutdown(timeout=120)
    assert metrics_of(cluster.summary)["worker:0"]["count"] > 1


# Evaluators


ENDED = r"evaluator:0 had not returned in time after .*spark.tfos_ml.evaluatorGrace=2.*ctx.should_stop\(\)"


def test_a_fit_ends_an_endless_evaluator(any_spark, tmp_path):
    args = {"directory": str(tmp_path)}
    with setting(any_spark, "evaluatorGrace", "2"), pytest.warns(errors.NodeEndedWarning, match=ENDED):
        model = fit(any_spark, never_look, args, clusterSize=2, evalNode=True, feedTimeout=5)
    assert model.summary.rows == 20


def train_beside_a_sidecar(args, ctx):
    """Keras's own evaluator, which follows the checkpoints of a Keras model for ever."""
    import tensorflow as tf
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,))])
    model.compile(tf_keras.optimizers.SGD(0.01), "mse")
    rows = tf.data.Dataset.from_tensor_slices(([[1.0], [2.0]], [[2.0], [4.0]])).batch(2)
    if ctx.job_name == "evaluator":
        tell = tf_keras.callbacks.LambdaCallback(on_test_end=lambda logs: ctx.report({"loss": logs["loss"]}))
        tf_keras.utils.SidecarEvaluator(model, rows, ctx.checkpoint_dir, callbacks=[tell]).start()
    else:
        model.fit(rows, epochs=2, verbose=0)
        saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        tf.train.CheckpointManager(saved, ctx.checkpoint_dir, max_to_keep=1, checkpoint_name="ckpt").save()


@pytest.mark.chaos
def test_a_fit_ends_a_sidecar_evaluator(spark, tmp_path):
    with setting(spark, "evaluatorGrace", "20"), pytest.warns(errors.NodeEndedWarning, match="evaluator:0"):
        model = fit(spark, train_beside_a_sidecar, clusterSize=2, evalNode=True, modelDir=str(tmp_path))
    assert "loss" in metrics_of(vars(model.summary))["evaluator:0"]


@pytest.mark.parametrize(("name", "value"), [("workerGrace", "soon"), ("evaluatorGrace", "-1")])
def test_a_wrong_setting_is_told_before_anything_starts(spark, name, value):
    with setting(spark, name, value), pytest.raises(errors.ClusterConfigError, match=f"spark.tfos_ml.{name}={value}"):
        start(spark, work)
