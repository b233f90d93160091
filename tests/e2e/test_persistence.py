"""Stages that are saved and loaded, alone and inside pipelines and tuned models."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import LOCAL
from pyspark.ml import Pipeline, PipelineModel, Transformer
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import IndexToString, StringIndexer, VectorAssembler
from pyspark.ml.tuning import (
    CrossValidator,
    CrossValidatorModel,
    ParamGridBuilder,
)

from tfos_ml import KerasEstimator, TFEstimator, TFModel, errors
from tfos_ml.tuning import OptunaSearch

NEW_PROCESS = """
import sys
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
scored = PipelineModel.load(sys.argv[1]).transform(spark.read.parquet(sys.argv[2]))
scored.select("id", "probability", "prediction", "predicted").toPandas().to_pickle(sys.argv[3])
spark.stop()
"""


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


def points(spark):
    random = np.random.RandomState(1)
    rows = pd.DataFrame(random.randn(120, 2), columns=["a", "b"]).assign(id=range(120))
    rows["kind"] = np.where(rows.a > 0.3, "right", np.where(rows.b > 0, "up", "down"))
    return spark.createDataFrame(rows).coalesce(1)


def make_model(units=8, rate=0.03):
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((2,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


GRID = [{"rate": 0.0}, {"rate": 0.05, "units": 16}]  # of both searches, so that each model is looked at once


def pipeline(estimator):
    indexer = StringIndexer(inputCol="kind", outputCol="label", stringOrderType="alphabetAsc")
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    words = IndexToString(inputCol="prediction", outputCol="predicted")  # takes the names that StringIndexer left
    return Pipeline(stages=[indexer, assembler, estimator, words])


OF_CONNECT = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"}


def score_here(spark, model, rows, scored):
    """What ``NEW_PROCESS`` does."""
    found = PipelineModel.load(model).transform(spark.read.parquet(rows))
    found.select("id", "probability", "prediction", "predicted").toPandas().to_pickle(scored)


def score_in_a_new_process(spark, *paths):
    environment = {k: v for k, v in os.environ.items() if k not in OF_CONNECT}  # a classic session, in any case
    command = [sys.executable, "-c", NEW_PROCESS, *paths]
    subprocess.run(command, check=True, capture_output=True, env=environment)


@pytest.mark.corner("Saved and loaded pipelines")
@pytest.mark.parametrize("score", [score_here, pytest.param(score_in_a_new_process, marks=pytest.mark.chaos)])
def test_a_fitted_pipeline_that_was_saved_predicts_the_same(spark, tmp_path, score):
    df = points(spark)
    estimator = KerasEstimator(
        model=make_model(), epochs=8, batchSize=32, exportDir=str(tmp_path / "export"), verbose=0
    )
    model = pipeline(estimator).fit(df)
    model.save(str(tmp_path / "model"))
    expected = model.transform(df).select("id", "probability", "prediction", "predicted").toPandas()
    (tmp_path / "export").rename(tmp_path / "moved")  # the saved model does not need it
    df.write.parquet(str(tmp_path / "rows"))
    paths = [str(tmp_path / name) for name in ("model", "rows", "scored")]
    score(spark, *paths)
    scored = pd.read_pickle(tmp_path / "scored").sort_values("id", ignore_index=True)
    assert (np.stack(scored.probability.map(list)) == np.stack(expected.probability.map(list))).all()
    assert scored.predicted.tolist() == expected.predicted.tolist()
    loaded = PipelineModel.load(str(tmp_path / "model")).stages[2]
    assert loaded.uid == model.stages[2].uid
    assert loaded.summary.history == model.stages[2].summary.history
    assert loaded.summary == model.stages[2].summary
    assert loaded.extractParamMap() == {
        loaded.getParam(p.name): v for p, v in model.stages[2].extractParamMap().items()
    }


@pytest.mark.corner("CrossValidator with parallelism")
@pytest.mark.chaos
def test_a_cross_validated_pipeline(spark, tmp_path):
    """Saved as a search and as a model; test_mlflow.py has the runs of such a search."""
    df, estimator = points(spark), KerasEstimator(model=make_model, epochs=4, batchSize=32, verbose=0, seed=3)
    search = CrossValidator(
        estimator=pipeline(estimator),
        estimatorParamMaps=ParamGridBuilder().addGrid(estimator.modelArgs, GRID).build(),
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=2,
        seed=1,
        parallelism=2,
    )
    search.write().overwrite().save(str(tmp_path / "search"))
    model = CrossValidator.load(str(tmp_path / "search")).fit(df)
    model.write().overwrite().save(str(tmp_path / "tuned"))
    loaded = CrossValidatorModel.load(str(tmp_path / "tuned"))
    assert loaded.avgMetrics == model.avgMetrics
    assert loaded.transform(df).select("prediction").collect() == model.transform(df).select("prediction").collect()
    assert loaded.getEstimatorParamMaps()[1] == {
        loaded.getEstimator().getStages()[2].modelArgs: GRID[1],
    }


def count_rows(args, ctx):
    feed, rows = ctx.get_data_feed(), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(100)["x"])
    ctx.report({"rows_here": rows, "extra": args.extra}, epoch=0)


def test_an_estimator_with_its_function_and_arguments(spark, tmp_path):
    path = f"file:{tmp_path}/deep/estimator"
    added = 5
    estimator = TFEstimator(
        trainFn=lambda args, ctx: count_rows(args, ctx),
        tfArgs={"extra": added},
        batchSize=7,
        inputMapping={"id": "x"},
        verbose=0,
    )
    estimator.save(path)
    loaded = TFEstimator.load(path)
    assert {p.name: v for p, v in loaded.extractParamMap().items()} == {
        p.name: v for p, v in estimator.extractParamMap().items()
    }
    model = loaded.fit(points(spark).select("id"))
    assert model.summary.history == {"rows_here": [120.0], "extra": [5.0]}
    model.save(f"{path}-model")
    nothing = TFModel.load(f"{path}-model")
    assert nothing.summary.history == model.summary.history
    with pytest.raises(errors.NothingExportedError):
        nothing.transform(points(spark))


def test_values_of_node_env_are_not_saved(spark, tmp_path):
    """Red before: they stood in the metadata in plain text, which others of the host may read."""
    estimator = TFEstimator(nodeEnv={"MY_TOKEN": "hunter2", "HF_HOME": "/hunter2"}, epochs=3)
    evaluator = RegressionEvaluator()
    search = CrossValidator(estimator=estimator, estimatorParamMaps=[{}], evaluator=evaluator)
    warned = pytest.warns(UserWarning, match=r"without the secrets .* may have: nodeEnv \(HF_HOME, MY_TOKEN\)\. Set")
    for number, stage in enumerate((estimator, Pipeline(stages=[estimator]), search)):
        stage.save(f"{tmp_path}/{number}")
        with warned:
            loaded = type(stage).load(f"{tmp_path}/{number}")
    assert (loaded.getEstimator().getNodeEnv(), loaded.getEstimator().getEpochs()) == ({}, 3)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


def test_uris_are_saved_without_their_passwords(spark, tmp_path):
    uri = "s3a://key:hunter2@bucket/x?sig=hunter2"
    estimator = KerasEstimator(modelDir=uri, exportDir=uri, logDir=uri, cacheDir=uri)
    storage = "postgresql://user:hunter2@host/db"
    search = OptunaSearch(estimator=KerasEstimator(), space={}, storage=storage, studyName="one")
    names = ["cacheDir, exportDir, logDir, modelDir", "storage"]
    found = []
    for stage, named in zip((estimator, search), names, strict=True):
        stage.save(f"{tmp_path}/{named[:3]}")
        with pytest.warns(UserWarning, match=f"without the secrets that these Params may have: {named}. Set them"):
            found.append(type(stage).load(f"{tmp_path}/{named[:3]}"))
    assert found[0].getCacheDir() == "s3a://bucket/x?sig=***"
    assert found[1].getStorage() == "postgresql://host/db"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


def test_a_search_whose_part_cannot_be_saved_is_not_there(spark, tmp_path):
    class Unsaveable(Transformer):
        def _transform(self, dataset):
            return dataset

    search = OptunaSearch(estimator=Pipeline(stages=[Unsaveable(), KerasEstimator()]), space={}, metric="loss")
    with pytest.raises(ValueError, match="not MLWritable"):
        search.save(f"{tmp_path}/search")
    assert not list(tmp_path.iterdir())


def test_overwriting_is_asked_for_and_leaves_nothing_half_done(spark, tmp_path):
    path = str(tmp_path / "estimator")
    TFEstimator(epochs=3).save(path)
    with pytest.raises(errors.DestinationError, match=r"exists already.*write\(\).overwrite\(\)"):
        TFEstimator(epochs=4).save(path)
    assert TFEstimator.load(path).getEpochs() == 3

    def captures(args, ctx, session=spark):
        return session

    with pytest.raises(errors.TrainFnPickleError):
        TFEstimator(trainFn=captures).write().overwrite().save(path)
    assert TFEstimator.load(path).getEpochs() == 3
    TFEstimator(epochs=5).write().overwrite().save(path)
    assert TFEstimator.load(path).getEpochs() == 5
    assert [p.name for p in tmp_path.iterdir()] == ["estimator"]


def test_a_file_of_another_version_loads_with_a_warning(spark, tmp_path):
    path = str(tmp_path / "estimator")
    TFEstimator(epochs=3).save(path)
    (file,) = (tmp_path / "estimator" / "metadata").glob("part-*")
    metadata = json.loads(file.read_text())
    metadata["tfosMlVersion"] = "0.0.1"
    metadata["paramMap"]["gone"] = 1
    del metadata["defaultParamMap"]["verbose"]
    for stale in (tmp_path / "estimator" / "metadata").iterdir():
        stale.unlink()
    (tmp_path / "estimator" / "metadata" / "part-0").write_text(json.dumps(metadata) + "\n")
    with pytest.warns(UserWarning, match=r"saved by tfos_ml 0.0.1; this is .*Params that no longer exist: \['gone'\]"):
        loaded = TFEstimator.load(path)
    assert (loaded.getEpochs(), loaded.getVerbose()) == (3, 1)


@pytest.mark.chaos  # a session of its own
def test_a_stage_may_be_larger_than_results_of_spark(sessions, tmp_path):
    sessions.get(LOCAL, spark_driver_maxResultSize="2m")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "saved_model.pb").write_bytes(np.random.RandomState(1).bytes(5 << 20))
    TFModel(exportDir=str(tmp_path / "m")).save(str(tmp_path / "saved"))
    loaded = TFModel.load(str(tmp_path / "saved"))
    assert loaded._packed().file.digest == TFModel(exportDir=str(tmp_path / "m"))._packed().file.digest
