"""What the train function gets: arguments, context, environment; and what it can say."""

from __future__ import annotations

import argparse
import json
import linecache
import os

import pytest
from conftest import CLUSTER, ON_CONNECT
from pyspark.sql import functions as F
from supervisors import supervisor_of

from tfos_ml import InputMode, TFEstimator, errors


def frame(spark, rows=60):
    return spark.range(0, rows, 1, 3).withColumnRenamed("id", "features")


def fit(spark, train_fn, **params):
    return TFEstimator(trainFn=train_fn, verbose=0, **params).fit(frame(spark))


def test_explicit_params_over_tf_args_over_defaults(spark, tmp_path):
    def look(args, ctx):
        seen = {name: args[name] for name in ("epochs", "batchSize", "mine", "modelDir")}
        (tmp_path / "args").write_text(json.dumps({**seen, "epochs_here": args.epochs}))

    fit(spark, look, tfArgs=argparse.Namespace(epochs=7, batchSize=8, mine="x"), batchSize=9)
    expected = {"epochs": 7, "batchSize": 9, "mine": "x", "modelDir": None, "epochs_here": 7}
    assert json.loads((tmp_path / "args").read_text()) == expected


def test_context_of_every_role(spark, tmp_path):
    def look(args, ctx):
        import os

        names = ["job_name", "task_index", "executor_id", "worker_num", "is_chief", "per_node_batch_size", "epochs"]
        seen = {name: getattr(ctx, name) for name in names}
        seen["tf_config"] = json.loads(os.environ["TF_CONFIG"])
        seen["tf_jobs"] = ctx.tf_cluster_spec().jobs
        seen["master"] = ctx.cluster_resolver().master("worker", 0)
        seen["checkpoint_dir"] = ctx.checkpoint_dir
        (tmp_path / f"{ctx.executor_id}.json").write_text(json.dumps(seen))

    fit(spark, look, clusterSize=4, masterNode="chief", evalNode=True, batchSize=10, epochs=2, modelDir=str(tmp_path))
    nodes = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [f"{n['job_name']}:{n['task_index']}" for n in nodes] == ["chief:0", "evaluator:0", "worker:0", "worker:1"]
    assert [n["worker_num"] for n in nodes] == [0, -1, 1, 2]
    assert [n["is_chief"] for n in nodes] == [True, False, False, False]
    assert {n["per_node_batch_size"] for n in nodes} == {3}
    assert sorted(nodes[0]["tf_jobs"]) == sorted(nodes[0]["tf_config"]["cluster"]) == ["chief", "worker"]
    assert list(nodes[1]["tf_config"]["cluster"]) == ["evaluator"]
    assert nodes[3]["tf_config"]["task"] == {"type": "worker", "index": 1}
    assert nodes[0]["master"] == "grpc://" + nodes[0]["tf_config"]["cluster"]["worker"][0]
    assert nodes[2]["checkpoint_dir"] == str(tmp_path)


def test_files_are_shared_out_with_input_mode_tensorflow(spark, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    spark.range(0, 100, 1, 5).write.parquet(str(data))

    def look(args, ctx):
        (out / str(ctx.worker_num)).write_text(json.dumps(ctx.files()))

    df = spark.read.parquet(str(data))
    TFEstimator(trainFn=look, clusterSize=2, inputMode=InputMode.TENSORFLOW, verbose=0).fit(df)
    shares = [json.loads(p.read_text()) for p in out.iterdir()]
    assert sorted(f for share in shares for f in share) == sorted(df.inputFiles())
    assert sorted(map(len, shares)) == [2, 3]


def test_validation_rows_are_kept_apart_and_reports_become_history(spark, tmp_path):
    def look(args, ctx):
        seen = {
            "train": [int(i) for batch in ctx.dataset() for i in batch],
            "held_out": [int(i) for batch in ctx.validation_dataset(batch_size=3) for i in batch],
            "counts": [ctx.row_count, ctx.validation_row_count],
        }
        (tmp_path / str(ctx.worker_num)).write_text(json.dumps(seen))
        for epoch in range(3):
            for step in range(2):
                ctx.report({"loss": 10 * epoch + step}, epoch=epoch, step=step)
        ctx.report({"done": 1})

    df = frame(spark).withColumn("held_out", F.col("features") >= 50)
    model = TFEstimator(trainFn=look, clusterSize=2, validationIndicatorCol="held_out", verbose=0).fit(df)
    nodes = [json.loads(p.read_text()) for p in tmp_path.iterdir()]
    assert sorted(i for n in nodes for i in n["train"]) == list(range(50))
    assert sorted(i for n in nodes for i in n["held_out"]) == list(range(50, 60))
    assert all(n["counts"] == [50, 10] for n in nodes)

    assert model.summary.history == {"loss": [1.0, 11.0, 21.0], "done": [1.0]}
    assert model.summary.rows == 50
    assert [n["label"] for n in model.summary.nodes] == ["worker:0", "worker:1"]


def test_batch_results_come_back_in_the_order_of_the_dataframe(spark):
    def square(args, ctx):
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results([row[0] ** 2 for row in feed.next_batch(7)])

    model = TFEstimator(trainFn=square, clusterSize=2, verbose=0).fit(frame(spark))
    assert model.results() == [i**2 for i in range(60)]


def test_data_feed_refuses_a_dataset_and_misses_answers(spark):
    def forget(args, ctx):
        feed = ctx.get_data_feed(train_mode=False)
        with pytest.raises(errors.CollectiveCallError, match="being streamed"):
            ctx.dataset()
        feed.next_batch(5)

    with pytest.raises(errors.ShapeError, match="5 rows were read"):
        fit(spark, forget)


def test_environment_tf_args_of_a_command_line_weights_and_named_labels(spark, tmp_path):
    df = frame(spark).withColumn("y", F.col("features") * 2).withColumn("w", F.lit(0.5))

    def look(args, ctx):
        import os
        import sys

        is_loaded = "tensorflow" in sys.modules
        x, y, w = next(iter(ctx.dataset(batch_size=4, shuffle=False)))
        batch = [part.numpy().tolist() for part in (x["in"], y["out"], w)]
        (tmp_path / "seen").write_text(json.dumps([dict(os.environ), args.argv, is_loaded, batch]))

    names = {"inputMapping": {"features": "in"}, "labelMapping": {"y": "out"}, "weightCol": "w"}
    environment = {"MY_SETTING": "1", "TF_NUM_INTRAOP_THREADS": "3"}
    TFEstimator(trainFn=look, tfArgs=["--lr", "0.5"], nodeEnv=environment, verbose=0, **names).fit(df)
    seen, *others = json.loads((tmp_path / "seen").read_text())
    assert others == [["--lr", "0.5"], True, [[0, 1, 2, 3], [0, 2, 4, 6], [0.5] * 4]]
    assert seen["MY_SETTING"] == "1"
    assert (seen["TF_NUM_INTRAOP_THREADS"], seen["OMP_NUM_THREADS"]) == ("3", "1")
    secret = [k for k in seen if "SECRET" in k or "TOKEN" in k or k.startswith("_PYSPARK")]
    assert secret == []


def test_source_of_a_notebook_function_is_there_for_autograph_and_tracebacks(spark):
    cell = """
def train(args, ctx):
    import tensorflow as tf

    @tf.function
    def double_until(x, limit):
        while x < limit:  # over tensors: works only if AutoGraph has the source
            x = x * 2
        return x

    ctx.report({"x": double_until(tf.constant(1), tf.constant(100))})
    raise LookupError("shown with its source line")
"""
    name = "/tmp/ipykernel_1/cell.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)  # as IPython does
    scope = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), scope)
    with pytest.raises(errors.TrainFnError, match="LookupError") as caught:
        fit(spark, scope["train"])
    assert 'raise LookupError("shown with its source line")' in caught.value.traceback


@pytest.mark.corner("cpusPerNode: stage-level resources")
def test_cpus_and_relative_directories_of_a_node_on_several_executors(sessions, tmp_path):
    spark = sessions.get(CLUSTER)  # two executors with two cores each, and working directories of their own

    def look(args, ctx):
        import os

        seen = [ctx.absolute_path("data/x"), ctx.absolute_path("~/x"), ctx.checkpoint_dir, ctx.log_dir, ctx.working_dir]
        (tmp_path / f"{ctx.worker_num}").write_text(json.dumps([os.environ["OMP_NUM_THREADS"], *seen]))

    # Slots cannot be counted through Spark Connect.
    refused = errors.ReservationTimeoutError if ON_CONNECT else errors.NotEnoughSlotsError
    said = "No task of the fit has run" if ON_CONNECT else r"needs 3 task slots .* has 2 .*CPUs a node: 2"
    with pytest.raises(refused, match=said):
        fit(spark, look, clusterSize=3, nodeCpus=2, reservationTimeout=5)
    fit(spark, look, clusterSize=2, nodeCpus=2, modelDir="checkpoints", logDir="logs")
    here = os.getcwd()
    expected = ["2", f"{here}/data/x", os.path.expanduser("~/x"), f"{here}/checkpoints", f"{here}/logs", here]
    assert [json.loads((tmp_path / rank).read_text()) for rank in "01"] == [expected] * 2


def test_parameter_servers_on_the_driver_need_no_slot_on_several_executors(sessions):
    def look(args, ctx):
        import psutil

        under_spark = any(parent.name() == "java" for parent in psutil.Process(supervisor_of(ctx)).parents())
        rows = 0
        if ctx.job_name == "ps":
            if ctx.task_index == 0:
                ctx.start_server().join()  # for ever
            ctx.wait()
        elif ctx.worker_num >= 0:
            feed = ctx.get_data_feed()
            while not feed.should_stop():
                rows += len(feed.next_batch(100))
        ctx.summarize({"under_spark": under_spark, "rows_read": rows})

    spark = sessions.get(CLUSTER)  # of four slots
    model = fit(spark, look, clusterSize=6, numPS=2, driverPSNodes=True)
    nodes = {node["label"]: node for node in model.summary.nodes}
    assert list(nodes) == ["ps:0", "ps:1", "worker:0", "worker:1", "worker:2", "worker:3"]
    assert "under_spark" not in nodes.pop("ps:0")  # it never came to that
    assert [node["under_spark"] for node in nodes.values()] == [False, True, True, True, True]
    assert sum(node["rows_read"] for node in nodes.values()) == 60
