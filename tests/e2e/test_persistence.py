"""Stages that are saved and loaded, alone and inside pipelines and tuned models."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from conftest import LOCAL
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import IndexToString, StringIndexer, VectorAssembler

from tfos_ml import KerasEstimator, TFEstimator, TFModel, errors
from tfos_ml.tuning import OptunaSearch

pytestmark = pytest.mark.usefixtures("keras")


def points(spark):
    random = np.random.RandomState(1)
    rows = pd.DataFrame(random.randn(120, 2), columns=["a", "b"]).assign(id=range(120))
    rows["kind"] = np.where(rows.a > 0.3, "right", np.where(rows.b > 0, "up", "down"))
    return spark.createDataFrame(rows).coalesce(1)


def make_model():
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.03), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def pipeline(estimator):
    indexer = StringIndexer(inputCol="kind", outputCol="label", stringOrderType="alphabetAsc")
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    words = IndexToString(inputCol="prediction", outputCol="predicted")  # takes the names that StringIndexer left
    return Pipeline(stages=[indexer, assembler, estimator, words])


@pytest.mark.corner("Saved and loaded pipelines")
def test_a_fitted_pipeline_that_was_saved_predicts_the_same(spark, tmp_path):
    df, export = points(spark), tmp_path / "export"
    model = pipeline(KerasEstimator(model=make_model(), epochs=2, batchSize=32, exportDir=str(export), verbose=0)).fit(
        df
    )
    model.save(str(tmp_path / "model"))
    expected = model.transform(df).collect()
    export.rename(tmp_path / "moved")  # the saved model does not need it
    loaded = PipelineModel.load(str(tmp_path / "model"))
    assert loaded.transform(df).collect() == expected
    loaded, fitted = loaded.stages[2], model.stages[2]
    assert (loaded.uid, loaded.summary) == (fitted.uid, fitted.summary)
    assert params_of(loaded) == params_of(fitted)


def params_of(stage):
    return {param.name: value for param, value in stage.extractParamMap().items()}


def count_rows(args, ctx):
    feed, rows = ctx.get_data_feed(), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(100)["x"])
    ctx.report({"rows_here": rows, "extra": args.extra}, epoch=0)


def test_an_estimator_with_its_function_and_arguments(spark, tmp_path):
    path = f"file:{tmp_path}/deep/estimator"
    program = {"trainFn": lambda args, ctx: count_rows(args, ctx), "tfArgs": {"extra": 5}}
    estimator = TFEstimator(batchSize=7, inputMapping={"id": "x"}, verbose=0, **program)
    estimator.save(path)
    loaded = TFEstimator.load(path)
    assert params_of(loaded) == params_of(estimator)
    model = loaded.fit(points(spark).select("id"))
    assert model.summary.history == {"rows_here": [120.0], "extra": [5.0]}
    model.save(f"{path}-model")
    nothing = TFModel.load(f"{path}-model")
    assert nothing.summary.history == model.summary.history
    with pytest.raises(errors.NothingExportedError):
        nothing.transform(points(spark))


def test_secrets_are_not_saved(spark, tmp_path):
    """Red before: values of nodeEnv stood in the metadata in plain text, which others of the host may read."""
    uri = "s3a://key:hunter2@bucket/x?sig=hunter2"
    environment = {"MY_TOKEN": "hunter2", "HF_HOME": "/hunter2"}
    estimator = KerasEstimator(modelDir=uri, exportDir=uri, logDir=uri, cacheDir=uri, nodeEnv=environment)
    storage = "postgresql://user:hunter2@host/db"
    search = OptunaSearch(estimator=KerasEstimator(), space={}, storage=storage, studyName="one")
    pipeline = Pipeline(stages=[TFEstimator(nodeEnv=environment)])
    named = [r"cacheDir, exportDir, logDir, modelDir, nodeEnv \(HF_HOME, MY_TOKEN\)", "storage", r"nodeEnv \(HF_HOME, "]
    found = []
    for number, (stage, names) in enumerate(zip((estimator, search, pipeline), named, strict=True)):
        stage.save(f"{tmp_path}/{number}")
        with pytest.warns(UserWarning, match=f"without the secrets that these Params may have: {names}"):
            found.append(type(stage).load(f"{tmp_path}/{number}"))
    assert (found[0].getCacheDir(), found[0].getNodeEnv()) == ("s3a://bucket/x?sig=***", {})
    assert found[1].getStorage() == "postgresql://host/db"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


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
