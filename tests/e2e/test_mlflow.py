"""Fits as MLflow runs, and models as MLflow models, on a real tracking server."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import LOCAL, jobs_of, seconds, wait_until
from elsewhere import interpreter_without
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F
from tracking import Server, logged, models_of, runs_of, series

from tfos_ml import KerasEstimator, TFEstimator, TFModel, errors

WITHOUT_FILE = """
import keras, mlflow, sys
import tfos_ml.mlflow
from pyspark.ml import Pipeline
from pyspark.sql import SparkSession
from tfos_ml import KerasEstimator

spark = SparkSession.builder.master("local[1]").getOrCreate()
network = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
network.compile("sgd", "mse")
mlflow.set_tracking_uri(sys.argv[1])
tfos_ml.mlflow.autolog()
df = spark.range(20).selectExpr("array(id / 20) AS features", "id / 10 AS label")
Pipeline(stages=[KerasEstimator(model=network, clusterSize=1, epochs=1, verbose=0)]).fit(df)
print([model.name for model in mlflow.search_logged_models(output_format="list")])
spark.stop()
"""
EPOCHS = 3
ROOT = Path(__file__).parents[2]
FORWARDER = ROOT / "tests" / "cluster" / "forwarder.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server")).wait()
    yield server
    server.kill()


def waits_for_server(uri):
    """A callback that begins an epoch only when the server shows the metrics of those before, and the run at work.

    Those of the hosts, too, before the last epoch: their sampling begins some time after the training.
    """
    import keras

    class WaitsForServer(keras.callbacks.Callback):
        chief_only = True

        def on_epoch_begin(self, epoch, logs=None):
            import time

            deadline = time.monotonic() + 150
            while epoch and not self.are_shown(epoch):
                assert time.monotonic() < deadline, f"metrics of epoch {epoch} are not to be seen"
                time.sleep(0.3)  # each look costs the server as much as a step of the fit costs its nodes

        def are_shown(self, epoch):
            import requests

            api = f"{uri}/api/2.0/mlflow"
            experiment = requests.get(f"{api}/experiments/get-by-name?experiment_name=watched").json()["experiment"]
            asked = {"experiment_ids": [experiment["experiment_id"]]}
            (run,) = requests.post(f"{api}/runs/search", json=asked).json()["runs"]
            assert run["info"]["status"] == "RUNNING"

            def points(key):
                query = {"run_id": run["info"]["run_id"], "metric_key": key, "max_results": 100}  # 3.9 needs the last
                return requests.get(f"{api}/metrics/get-history", query).json().get("metrics", [])

            hosts = (0, 1) if epoch == EPOCHS - 1 else ()
            are_sampled = all(len(points(f"system/worker_{n}/network_receive_megabytes")) > 1 for n in hosts)
            return are_sampled and [int(point.get("step", 0)) for point in points("loss")] == [*range(epoch)]

    return WaitsForServer()


def points(spark):
    rows = spark.range(0, 240, 1, 2).select(F.randn(1).alias("a"), F.randn(2).alias("b"))
    return rows.withColumn("label", (F.col("a") + F.col("b") > 0).cast("int"))


def make_pipeline(**params):
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    return Pipeline(stages=[assembler, KerasEstimator(model=model, batchSize=32, verbose=0, **params)])


@pytest.fixture(scope="module")
def fitted(server, sessions, tmp_path_factory):
    """A pipeline whose fit waited for the server to show its metrics."""
    os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"] = "0.5"
    df = points(sessions.get(LOCAL))
    params = {"clusterSize": 2, "validationSplit": 0.2, "seed": 3, "nodeEnv": {"MY_TOKEN": "hunter2"}}
    pipeline = make_pipeline(epochs=EPOCHS, callbacks=[waits_for_server(server.uri)], **params)
    with logged(server.uri, "watched", log_system_metrics=True, registered_model_name="points") as client:
        model = pipeline.fit(df)
        (run,) = runs_of(client, "watched")
        layers = client.download_artifacts(run.info.run_id, "model_summary.txt", str(tmp_path_factory.mktemp("seen")))
    layers = Path(layers).read_text()
    yield SimpleNamespace(
        server=server, client=client, df=df, model=model, tf_model=model.stages[1], run=run, layers=layers
    )
    del os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"]


@pytest.mark.corner("MLflow: autolog")
def test_a_run_shows_metrics_as_they_come_and_tells_all_of_its_fit(fitted):
    run, client = fitted.run, fitted.client
    assert run.info.status == "FINISHED"
    history = fitted.tf_model.summary.history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name, values in history.items():
        assert series(client, run, name) == list(enumerate(values))
    params = run.data.params
    assert (params["epochs"], params["clusterSize"], params["nodeEnv"]) == (str(EPOCHS), "2", "['MY_TOKEN']")
    assert (params["opt_name"], params["opt_learning_rate"]) == ("Adam", "0.02")
    assert (params["loss"], params["total_params"]) == ("sparse_categorical_crossentropy", "42")
    assert not {"signatureDefKey", "feedTimeout"} & set(params)
    assert re.search(r"\(Dense\).*\(None, 8\).* 24 ", fitted.layers), fitted.layers
    tags = run.data.tags
    assert tags["estimator_class"] == "tfos_ml.KerasEstimator"
    assert tags["tfos_ml.cluster"] == "worker: 2"
    assert tags["spark.applicationId"] == fitted.df.sparkSession.sparkContext.applicationId
    assert {"tensorflow.version", "keras.version", "pyspark.version", "tfos_ml.version"} <= set(tags)
    (given,) = run.inputs.dataset_inputs
    rows = json.loads(given.dataset.profile)
    assert rows["num_rows"] + rows["num_validation_rows"] == 240
    assert rows["num_rows"] == fitted.tf_model.summary.rows
    assert "hunter2" not in str(run.to_dictionary())
    for node in ("worker_0", "worker_1"):
        for name in ("cpu_utilization_percentage", "system_memory_usage_megabytes", "network_receive_megabytes"):
            samples = series(client, run, f"system/{node}/{name}")
            assert [step for step, _ in samples] == list(range(len(samples)))
            assert len(samples) >= 2


@pytest.fixture(scope="module")
def downloaded(fitted, tmp_path_factory):
    import mlflow

    mlflow.set_tracking_uri(fitted.server.uri)
    uri = models_of(fitted.client, fitted.run)["model"]
    path = mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path_factory.mktemp("downloaded")))
    mlflow.set_tracking_uri(None)
    return path


@pytest.mark.corner("MLflow: models logged and loaded")
def test_loaded_model_and_pipeline_transform_bit_for_bit_alike(fitted, downloaded):
    import mlflow

    import tfos_ml.mlflow

    loaded = tfos_ml.mlflow.load_model(downloaded)
    assert loaded.summary.history == fitted.tf_model.summary.history
    expected = fitted.model.transform(fitted.df).collect()
    rows = fitted.model.stages[0].transform(fitted.df)
    assert loaded.transform(rows).collect() == expected
    mlflow.set_tracking_uri(fitted.server.uri)
    pipeline = mlflow.spark.load_model(models_of(fitted.client, fitted.run)["pipeline"])
    mlflow.set_tracking_uri(None)
    assert [type(stage) for stage in pipeline.stages] == [VectorAssembler, TFModel]
    assert pipeline.transform(fitted.df).collect() == expected
    info = mlflow.models.Model.load(downloaded)
    assert [(c.name, str(c.type), c.shape) for c in info.signature.inputs] == [("features", "float64", (-1, 2))]
    outputs = {"prediction": "DataType.double", "rawPrediction": "Array(double)", "probability": "Array(double)"}
    assert {c.name: str(c.type) for c in info.signature.outputs} == outputs
    example = info.load_input_example(downloaded)
    given = {tuple(v.toArray().astype("float32")) for (v,) in rows.select("features").collect()}
    assert len(example) == 5
    assert {tuple(np.float32(features)) for features in example.features} <= given


@pytest.mark.chaos  # a Spark and a TensorFlow of its own
def test_a_program_without_a_file_and_without_the_packages_of_connect(tmp_path):
    """Red before: PySpark 4.2 ended the program, with exit code 0, in Pipeline.fit."""
    python = interpreter_without(tmp_path / "venv", "grpc_status", "grpcio_status")
    done = subprocess.run(
        [python, "-c", WITHOUT_FILE, f"sqlite:///{tmp_path}/mlflow.db"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'pipeline'" in done.stdout, done.stdout + done.stderr[-3000:]


@pytest.mark.chaos
def test_model_is_a_spark_udf(fitted, downloaded):
    import mlflow

    score = mlflow.pyfunc.spark_udf(fitted.df.sparkSession, downloaded, result_type="double", env_manager="local")
    scored = fitted.model.transform(fitted.df.limit(5)).withColumn("features", vector_to_array("features"))
    assert [found for (found,) in scored.select(score("features")).collect()] == [
        r.prediction for r in scored.collect()
    ]


def report_epochs(args, ctx):
    """Report what Keras would, without it."""
    for epoch in range(ctx.epochs):
        ctx.report({"loss": 1 / (1 + epoch), "rows": ctx.row_count}, epoch=epoch)
    if args.get("fail") and ctx.restart_count < args.fail:
        raise ValueError("the user's own mistake")


def estimator(**params):
    return TFEstimator(**{"trainFn": report_epochs, "epochs": 3, "featuresCol": "id", "verbose": 0, **params})


def test_each_fit_has_a_run_and_costs_no_job(spark, server, tmp_path):
    import mlflow

    spark.range(0, 40, 1, 2).write.parquet(f"{tmp_path}/rows")
    df = spark.read.parquet(f"{tmp_path}/rows")
    before = len(jobs_of(spark))
    estimator().fit(df)
    without = len(jobs_of(spark)) - before
    with logged(server.uri, "each", extra_tags={"team": "red"}, log_every_n_epoch=2) as client:
        before = len(jobs_of(spark))
        estimator(tfArgs={"rate": 0.5, "api_key": "hunter2"}).fit(df)
        assert len(jobs_of(spark)) - before == without
        with mlflow.start_run(run_name="mine") as mine:
            estimator().fit(df)
            estimator().fit(df)
        own, active, child = runs_of(client, "each")
    assert series(client, own, "loss") == [(1, 1 / 2), (2, 1 / 3)]  # every second epoch, and the last
    (given,) = own.inputs.dataset_inputs
    assert json.loads(given.dataset.profile) == {"num_rows": 40, "num_validation_rows": 0}
    assert json.loads(given.dataset.source)["path"] == f"file://{tmp_path}/rows"
    assert own.data.tags["team"] == "red"
    assert (own.data.params["tfArgs.rate"], own.data.params["tfArgs.api_key"]) == ("0.5", "(not logged)")
    assert active.info.run_id == mine.info.run_id
    assert own.data.metrics == active.data.metrics == child.data.metrics == {"loss": 1 / 3, "rows": 40}
    assert child.data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert {run.info.status for run in (own, active, child)} == {"FINISHED"}


@pytest.mark.corner("CrossValidator with parallelism")
def test_a_search_over_pipelines_tells_folds_and_averages_and_registers_the_best_pipeline(spark, server):
    import mlflow

    df = points(spark)
    pipeline = make_pipeline(epochs=1, seed=3)
    grid = ParamGridBuilder().addGrid(pipeline.getStages()[1].getParam("batchSize"), [16, 240]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    search = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, parallelism=2)
    with logged(server.uri, "folds", registered_model_name="best_pipeline") as client:
        found = search.fit(df)
        test = found.bestModel.stages[0].transform(df)
        metrics = found.bestModel.stages[1].evaluate(test)
        (parent, *children) = runs_of(client, "folds")
        assert parent.data.tags["estimator_name"] == "CrossValidator"
        best_size = [16, 240][int(np.argmax(found.avgMetrics))]
        assert (parent.data.params["numFolds"], parent.data.params["best_batchSize"]) == ("2", str(best_size))
        assert {r.data.tags["mlflow.parentRunId"] for r in children} == {parent.info.run_id}
        fits = {(r.data.params.get("fold"), r.data.params.get("candidate")): r for r in children}
        assert set(fits) == {*itertools.product("01", "01"), (None, None)}
        averages = [np.mean([fits[fold, c].data.metrics["search/accuracy"] for fold in "01"]) for c in "01"]
        assert averages == pytest.approx(found.avgMetrics)
        assert series(client, parent, "search/accuracy") == list(enumerate(found.avgMetrics))
        best = fits[None, None]
        assert best.data.metrics["loss_test"] == metrics["loss"]
        assert set(models_of(client, best)) == {"model", "pipeline"}
        # Of a URI, MLflow 2 asks its server for four minutes for a file that is not there.
        registered = mlflow.models.Model.load(mlflow.artifacts.download_artifacts("models:/best_pipeline/1"))
        assert set(registered.flavors) == {"spark", "python_function"}
        (version,) = client.search_model_versions("name='best_pipeline'")
        assert version.run_id == best.info.run_id


def test_failing_fit_leaves_its_cause_and_a_restart_goes_on_in_the_same_run(spark, server):
    with logged(server.uri, "failing") as client:
        with pytest.raises(errors.TrainFnError):
            estimator(tfArgs={"fail": 1}).fit(spark.range(40))
        estimator(tfArgs={"fail": 1}, maxRestarts=1).fit(spark.range(40))
        with pytest.raises(errors.ColumnNotFoundError):
            estimator(featuresCol="nothing").fit(spark.range(40))
        failed, restarted, refused = runs_of(client, "failing")
        text = Path(client.download_artifacts(failed.info.run_id, "error.txt")).read_text()
    assert (failed.info.status, restarted.info.status, refused.info.status) == ("FAILED", "FINISHED", "FAILED")
    assert "ValueError: the user's own mistake" in failed.data.tags["tfos_ml.error"]
    assert "TrainFnError" in text
    assert "in report_epochs" in text  # the traceback on the node
    assert series(client, failed, "loss") == series(client, restarted, "loss") == [(0, 1.0), (1, 1 / 2), (2, 1 / 3)]
    assert "Feature column 'nothing' does not exist" in refused.data.tags["tfos_ml.error"]


def report_around(args, ctx):
    """Report one epoch, wait until the server is gone, and report the others."""
    import pathlib
    import time

    ctx.report({"loss": 9.0}, epoch=0)
    deadline = time.monotonic() + 60
    while not pathlib.Path(args.gone).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for epoch in range(1, 5):
        ctx.report({"loss": 9.0 - epoch}, epoch=epoch)


@pytest.fixture
def relay(server):
    """What is between this process and the server, and may be killed: its process and its URI."""
    address = "127.0.0.5"
    command = [sys.executable, str(FORWARDER), address, "127.0.0.1", str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process, f"http://{address}:{server.port}"
        process.kill()


def test_training_outlives_the_server(spark, relay, tmp_path, caplog):
    import threading

    import mlflow

    process, uri = relay

    def kill_when_seen():
        client = mlflow.MlflowClient(uri)
        assert wait_until(lambda: any(series(client, r, "loss") for r in runs_of(client, "outlived")), 60)
        process.kill()
        (tmp_path / "gone").touch()

    with logged(uri, "outlived"), caplog.at_level(logging.WARNING):
        killer = threading.Thread(target=kill_when_seen)
        killer.start()
        began = time.monotonic()
        model = estimator(trainFn=report_around, tfArgs={"gone": str(tmp_path / "gone")}, epochs=5).fit(spark.range(8))
        killer.join()
        assert model.summary.history == {"loss": [9.0, 8.0, 7.0, 6.0, 5.0]}
        assert time.monotonic() - began < seconds(60)
        (warning,) = [r for r in caplog.records if r.name == "tfos_ml.mlflow"]
        assert f"MLflow at {uri} does not answer. Training continues" in warning.message
        caplog.clear()
        assert mlflow.active_run() is None
        estimator().fit(spark.range(8))
        (warning,) = [r for r in caplog.records if r.name == "tfos_ml.mlflow"]
        assert "cannot start a run for this fit: it does not answer" in warning.message


def test_nothing_is_logged_twice_beside_spark_ml_autologging_and_nothing_once_disabled(spark, server):
    import mlflow.pyspark.ml

    originals = CrossValidator._fit, Pipeline._fit
    with logged(server.uri, "twice") as client:
        mlflow.pyspark.ml.autolog(log_models=False)
        try:
            estimator(nodeEnv={"MY_TOKEN": "hunter2"}).fit(spark.range(40))
        finally:
            mlflow.pyspark.ml.autolog(disable=True)
    estimator().fit(spark.range(8))
    (run,) = runs_of(client, "twice")
    assert series(client, run, "loss") == [(0, 1.0), (1, 1 / 2), (2, 1 / 3)]
    assert len(run.inputs.dataset_inputs) == 1
    assert (run.data.params["epochs"], run.data.params["nodeEnv"]) == ("3", "{'MY_TOKEN': ...}")
    assert (CrossValidator._fit, Pipeline._fit) == originals


def test_models_that_cannot_be_logged_are_refused(spark, tmp_path):
    import tfos_ml.mlflow

    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["id"], outputCol="x")]).fit(spark.range(1))
    with pytest.raises(errors.ParamError, match=r"logs a TFModel. Received: PipelineModel with the stages \['Vector"):
        tfos_ml.mlflow.save_model(pipeline, str(tmp_path / "model"))
    with pytest.raises(errors.ParamError, match="log_every_n_epoch must be an integer of at least 1. Received: 0"):
        tfos_ml.mlflow.autolog(log_every_n_epoch=0)
