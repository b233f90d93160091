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

import numpy as np
import pandas as pd
import pytest
import requests
from conftest import LOCAL, seconds, wait_until
from elsewhere import interpreter_without
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F
from tracking import Server, free_port, logged, models_of, runs_of, series

from tfos_ml import KerasEstimator, TFEstimator, TFModel, errors

WATCHER = """
import json, os, pathlib, sys, time, requests

uri, experiment, directory = sys.argv[1:]
api = uri + "/api/2.0/mlflow/"
named = requests.get(api + "experiments/get-by-name", {"experiment_name": experiment}).json()
experiment_id = named["experiment"]["experiment_id"]
deadline, seen = time.monotonic() + 150, 0

def history(run, key):
    query = {"run_id": run["info"]["run_id"], "metric_key": key, "max_results": 100}  # 3.9 gives none without
    return requests.get(api + "metrics/get-history", query).json().get("metrics", [])

def hosts_are_known(run):
    return all(len(history(run, f"system/worker_{n}/network_receive_megabytes")) > 1 for n in (0, 1))

while seen < 3 and time.monotonic() < deadline:
    runs = requests.post(api + "runs/search", json={"experiment_ids": [experiment_id]}).json().get("runs", [])
    for run in runs:
        points = history(run, "loss")
        if len(points) > seen and (len(points) == 1 or hosts_are_known(run)):
            seen = len(points)
            word = {"status": run["info"]["status"], "steps": [int(p.get("step", 0)) for p in points]}
            path = pathlib.Path(directory) / f"seen-{seen}"
            path.with_suffix(".partial").write_text(json.dumps(word))
            path.with_suffix(".partial").rename(path)
    time.sleep(0.3)  # each look costs the server as much as a step of the fit costs its nodes
"""
SCORE = """
import json, sys
import mlflow.pyfunc, mlflow.spark, pandas
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession

server, tracked, alone, saved, rows = sys.argv[1:]
mlflow.set_tracking_uri(server)
spark = SparkSession.builder.master("local[2]").getOrCreate()
df = spark.read.parquet(rows)
found = []
for model in (mlflow.spark.load_model(tracked), PipelineModel.load(saved)):
    scored = model.transform(df).orderBy("a").select("features", "prediction").collect()
    found.append([row.prediction for row in scored])
features = pandas.DataFrame({"features": [row.features.toArray().tolist() for row in scored]})
found.append(mlflow.pyfunc.load_model(alone).predict(features).prediction.tolist())
spark.stop()
print(json.dumps(found))
"""
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


def waits_for_watcher(directory):
    """A callback that begins an epoch only when another process has seen the metrics of those before.

    Those of the hosts, too, before the last epoch: their sampling begins some time after the training.
    """
    import keras

    class WaitsForWatcher(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            import pathlib
            import time

            deadline = time.monotonic() + 150
            while epoch and not list(pathlib.Path(directory).glob(f"seen-{epoch}")):
                assert time.monotonic() < deadline, f"metrics of epoch {epoch} are not to be seen"
                time.sleep(0.05)

    return WaitsForWatcher()


def points(spark):
    random = np.random.RandomState(1)
    rows = pd.DataFrame(random.randn(240, 2), columns=["a", "b"])
    rows["label"] = (rows.a + rows.b > 0).astype(int)
    return spark.createDataFrame(rows).coalesce(2)


def make_pipeline(**params):
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    return Pipeline(stages=[assembler, KerasEstimator(model=model, batchSize=32, verbose=0, **params)])


class Fitted:
    """A pipeline that was fitted while another process watched."""

    def __init__(self, server, spark, directory):
        self.server, self.spark = server, spark
        self.seen = directory
        self.df = points(spark)
        pipeline = make_pipeline(
            epochs=EPOCHS,
            clusterSize=2,
            validationSplit=0.2,
            seed=3,
            callbacks=[waits_for_watcher(str(directory))],
            nodeEnv={"MY_TOKEN": "hunter2"},
        )
        options = {"log_system_metrics": True, "registered_model_name": "points"}
        with logged(server.uri, "watched", **options) as client:
            command = [sys.executable, "-c", WATCHER, server.uri, "watched", str(directory)]
            with subprocess.Popen(command) as watcher:
                self.model = pipeline.fit(self.df)
                watcher.wait(150)
            (self.run,) = runs_of(client, "watched")
            self.client = client
            layers = client.download_artifacts(self.run.info.run_id, "model_summary.txt", str(directory))
            self.layers = Path(layers).read_text()
            self.artifacts = [artifact.path for artifact in client.list_artifacts(self.run.info.run_id)]
        scored = self.model.transform(self.df.limit(5)).select("features", "probability", "prediction").toPandas()
        self.rows = pd.DataFrame({"features": [v.toArray().tolist() for v in scored.features]})
        self.predictions = scored.prediction.tolist()
        self.probability = np.stack([v.toArray() for v in scored.probability])

    @property
    def tf_model(self):
        return self.model.stages[1]


@pytest.fixture(scope="module")
def fitted(server, sessions, tmp_path_factory):
    os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"] = "0.5"
    yield Fitted(server, sessions.get(LOCAL), tmp_path_factory.mktemp("seen"))
    del os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"]


def test_metrics_grow_while_the_fit_runs(fitted):
    seen = [json.loads((fitted.seen / f"seen-{n}").read_text()) for n in range(1, EPOCHS)]
    assert [word["steps"] for word in seen] == [list(range(n)) for n in range(1, EPOCHS)]
    assert {word["status"] for word in seen} == {"RUNNING"}


@pytest.mark.corner("MLflow: autolog")
def test_a_run_tells_all_of_its_fit(fitted):
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
    assert tags["spark.applicationId"] == fitted.spark.sparkContext.applicationId
    assert {"tensorflow.version", "keras.version", "pyspark.version", "tfos_ml.version"} <= set(tags)
    (given,) = run.inputs.dataset_inputs
    rows = json.loads(given.dataset.profile)
    assert rows["num_rows"] + rows["num_validation_rows"] == 240
    assert rows["num_rows"] == fitted.tf_model.summary.rows
    assert "hunter2" not in str(run.to_dictionary())
    assert "training_curve.png" not in fitted.artifacts


def test_every_node_reports_its_host(fitted):
    for node in ("worker_0", "worker_1"):
        for name in ("cpu_utilization_percentage", "system_memory_usage_megabytes", "network_receive_megabytes"):
            samples = series(fitted.client, fitted.run, f"system/{node}/{name}")
            assert [step for step, _ in samples] == list(range(len(samples)))
            assert len(samples) >= 2


@pytest.fixture(scope="module")
def model_uri(fitted):
    import mlflow

    mlflow.set_tracking_uri(fitted.server.uri)
    uri = models_of(fitted.client, fitted.run)["model"]
    mlflow.set_tracking_uri(None)
    return uri


@pytest.fixture(scope="module")
def downloaded(fitted, model_uri, tmp_path_factory):
    import mlflow

    mlflow.set_tracking_uri(fitted.server.uri)
    path = mlflow.artifacts.download_artifacts(model_uri, dst_path=str(tmp_path_factory.mktemp("downloaded")))
    mlflow.set_tracking_uri(None)
    return path


@pytest.mark.corner("MLflow: models logged and loaded")
def test_loaded_model_transforms_bit_for_bit_alike(fitted, downloaded):
    import mlflow

    import tfos_ml.mlflow

    loaded = tfos_ml.mlflow.load_model(downloaded)
    assert isinstance(loaded, TFModel)
    assert loaded.summary.history == fitted.tf_model.summary.history
    rows = fitted.model.stages[0].transform(fitted.df)
    columns = ["rawPrediction", "probability", "prediction"]
    expected = fitted.tf_model.transform(rows).select(*columns).collect()
    assert loaded.transform(rows).select(*columns).collect() == expected
    info = mlflow.models.Model.load(downloaded)
    assert [(c.name, str(c.type), c.shape) for c in info.signature.inputs] == [("features", "float64", (-1, 2))]
    assert [(c.name, str(c.type)) for c in info.signature.outputs] == [
        ("prediction", "DataType.double"),
        ("rawPrediction", "Array(double)"),
        ("probability", "Array(double)"),
    ]
    example = info.load_input_example(downloaded)
    given = {tuple(v.toArray().astype("float32")) for (v,) in rows.select("features").collect()}
    assert len(example) == 5
    assert {tuple(np.float32(features)) for features in example.features} <= given


def test_the_whole_pipeline_is_logged_beside_the_model(fitted):
    import mlflow

    mlflow.set_tracking_uri(fitted.server.uri)
    uri = models_of(fitted.client, fitted.run)["pipeline"]
    pipeline = mlflow.spark.load_model(uri)
    mlflow.set_tracking_uri(None)
    assert [type(stage) for stage in pipeline.stages] == [VectorAssembler, TFModel]
    assert pipeline.transform(fitted.df.limit(20)).collect() == fitted.model.transform(fitted.df.limit(20)).collect()


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
@pytest.mark.corner("A Pipeline that is tracked, saved, loaded by a fresh process and scored")
def test_a_fresh_process_scores_with_what_was_tracked_and_saved(fitted, tmp_path):
    uris = models_of(fitted.client, fitted.run)
    fitted.model.save(f"{tmp_path}/saved")
    fitted.df.write.parquet(f"{tmp_path}/rows")
    expected = [row.prediction for row in fitted.model.transform(fitted.df).orderBy("a").collect()]
    arguments = [fitted.server.uri, uris["pipeline"], uris["model"], f"{tmp_path}/saved", f"{tmp_path}/rows"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", SCORE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [expected] * 3
    assert len(set(expected)) == 2


def answer_over_http(model, rows, directory):
    """The predictions that ``mlflow models serve`` answers with."""
    port = free_port()
    command = ["models", "serve", "-m", model, "--env-manager", "local", "--host", "127.0.0.1", "-p", str(port)]
    with open(directory / "log", "wb") as log:
        serving = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *command, "--workers", "1"],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            cwd=directory,
        )
    try:

        def is_up():
            assert serving.poll() is None, (directory / "log").read_text()
            try:
                return requests.get(f"http://127.0.0.1:{port}/ping", timeout=5).ok
            except requests.RequestException:
                return False

        assert wait_until(is_up, 120), (directory / "log").read_text()
        body = {"dataframe_split": rows.to_dict(orient="split")}
        answer = requests.post(f"http://127.0.0.1:{port}/invocations", json=body, timeout=60)
        assert answer.ok, answer.text
        return pd.DataFrame(answer.json()["predictions"])
    finally:
        os.killpg(serving.pid, 9)
        serving.wait(10)


@pytest.mark.chaos
def test_model_is_served_over_http(fitted, downloaded, tmp_path):
    scored = answer_over_http(downloaded, fitted.rows, tmp_path)
    assert np.stack(scored.probability) == pytest.approx(fitted.probability)


@pytest.mark.chaos
def test_model_is_a_spark_udf(fitted, downloaded):
    import mlflow

    score = mlflow.pyfunc.spark_udf(fitted.spark, downloaded, result_type="double", env_manager="local")
    rows = fitted.spark.createDataFrame(fitted.rows)
    found = [p for (p,) in rows.select(score(F.col("features"))).collect()]
    assert found == fitted.predictions


# Fits that need no TensorFlow, so that they are fast


def report_epochs(args, ctx):
    """Report what Keras would, without it."""
    for epoch in range(ctx.epochs):
        ctx.report({"loss": 1 / (1 + epoch), "rows": ctx.row_count}, epoch=epoch)
    if args.get("fail") and ctx.restart_count < args.fail:
        raise ValueError("the user's own mistake")


def estimator(**params):
    return TFEstimator(**{"trainFn": report_epochs, "epochs": 3, "featuresCol": "id", "verbose": 0, **params})


def jobs(spark):
    """How many jobs a session has begun."""
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()


def test_every_second_epoch_and_where_the_rows_come_from(spark, server, tmp_path):
    spark.range(0, 40, 1, 2).write.parquet(f"{tmp_path}/rows")
    with logged(server.uri, "second", log_every_n_epoch=2) as client:
        estimator().fit(spark.read.parquet(f"{tmp_path}/rows"))
        (run,) = runs_of(client, "second")
        assert series(client, run, "loss") == [(1, 1 / 2), (2, 1 / 3)]  # every second epoch, and the last
        (given,) = run.inputs.dataset_inputs
        assert json.loads(given.dataset.profile) == {"num_rows": 40, "num_validation_rows": 0}
        assert json.loads(given.dataset.source)["path"] == f"file://{tmp_path}/rows"
        assert run.info.status == "FINISHED"


def test_each_fit_has_a_run_and_costs_no_job(spark, server):
    import mlflow

    df = spark.range(40)
    before = jobs(spark)
    estimator().fit(df)
    without = jobs(spark) - before
    with logged(server.uri, "each", extra_tags={"team": "red"}) as client:
        before = jobs(spark)
        estimator(tfArgs={"rate": 0.5, "api_key": "hunter2"}).fit(df)
        assert jobs(spark) - before == without
        with mlflow.start_run(run_name="mine") as mine:
            estimator().fit(df)
            estimator().fit(df)
        own, active, child = runs_of(client, "each")
    assert own.data.tags["team"] == "red"
    assert (own.data.params["tfArgs.rate"], own.data.params["tfArgs.api_key"]) == ("0.5", "(not logged)")
    assert active.info.run_id == mine.info.run_id
    assert own.data.metrics == active.data.metrics == child.data.metrics == {"loss": 1 / 3, "rows": 40}
    assert child.data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert {run.info.status for run in (own, active, child)} == {"FINISHED"}


def test_a_search_over_pipelines_tells_folds_and_averages_and_registers_the_best_pipeline(spark, server):
    import mlflow

    df = points(spark)
    pipeline = make_pipeline(epochs=1, seed=3)
    grid = ParamGridBuilder().addGrid(pipeline.getStages()[1].getParam("batchSize"), [16, 240]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    search = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, parallelism=2)
    with logged(server.uri, "folds", registered_model_name="best_pipeline") as client:
        found = search.fit(df)
        metrics = found.bestModel.stages[1].evaluate(found.bestModel.stages[0].transform(df))
        test = found.bestModel.stages[0].transform(df)
        assert found.bestModel.stages[1].evaluate(test) == metrics
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
        assert best.data.metrics["loss_dataset"] == best.data.metrics["loss_test"] == metrics["loss"]
        assert set(models_of(client, best)) == {"model", "pipeline"}
        registered = mlflow.models.get_model_info("models:/best_pipeline/1")
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


def test_nothing_is_logged_twice_beside_spark_ml_autologging(spark, server):
    import mlflow.pyspark.ml

    with logged(server.uri, "twice") as client:
        mlflow.pyspark.ml.autolog(log_models=False)
        try:
            estimator(nodeEnv={"MY_TOKEN": "hunter2"}).fit(spark.range(40))
        finally:
            mlflow.pyspark.ml.autolog(disable=True)
        (run,) = runs_of(client, "twice")
    assert run.info.status == "FINISHED"
    assert series(client, run, "loss") == [(0, 1.0), (1, 1 / 2), (2, 1 / 3)]
    assert len(run.inputs.dataset_inputs) == 1
    assert (run.data.params["epochs"], run.data.params["nodeEnv"]) == ("3", "{'MY_TOKEN': ...}")


def test_disabled_it_leaves_nothing(spark, server):
    from pyspark.ml.tuning import TrainValidationSplit

    patched = (CrossValidator, TrainValidationSplit, Pipeline)
    originals = [stage._fit for stage in patched]
    with logged(server.uri, "left") as client:
        assert not [stage for stage, original in zip(patched, originals, strict=True) if stage._fit is original]
    assert [stage._fit for stage in patched] == originals
    estimator().fit(spark.range(8))
    assert runs_of(client, "left") == []


def test_models_that_cannot_be_logged_are_refused(spark, tmp_path):
    import tfos_ml.mlflow

    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["id"], outputCol="x")]).fit(spark.range(1))
    with pytest.raises(errors.ParamError, match=r"logs a TFModel. Received: PipelineModel with the stages \['Vector"):
        tfos_ml.mlflow.save_model(pipeline, str(tmp_path / "model"))
    with pytest.raises(errors.ParamError, match="log_every_n_epoch must be an integer of at least 1. Received: 0"):
        tfos_ml.mlflow.autolog(log_every_n_epoch=0)
