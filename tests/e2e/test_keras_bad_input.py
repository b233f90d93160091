"""What KerasEstimator refuses, on the driver and before any job starts where it can know."""

from __future__ import annotations

import threading

import numpy as np
import pandas as pd
import pytest
from conftest import jobs_of
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, errors

pytestmark = pytest.mark.usefixtures("keras")


@pytest.fixture
def df(spark):
    rows = pd.DataFrame({"features": np.ones((30, 4)).tolist(), "label": np.arange(30) % 3})
    return spark.createDataFrame(rows).withColumn("features", F.col("features").cast("array<float>"))


@pytest.fixture
def no_job(spark):
    """Asserts that no Spark job was started."""
    before = jobs_of(spark)
    yield
    assert jobs_of(spark) == before


def network(keras, loss="sparse_categorical_crossentropy"):
    model = keras.Sequential([keras.layers.Input((4,), name="pixels"), keras.layers.Dense(3, activation="softmax")])
    if loss:
        model.compile("sgd", loss)
    return model


def test_no_compiled_model(keras, df, no_job):
    def fails():
        raise KeyError("units")

    with pytest.raises(errors.ModelError, match=r"KeyError: 'units'[\s\S]*in fails"):
        KerasEstimator(model=fails).fit(df)
    with pytest.raises(errors.ModelError, match="compiled keras.Model. Received: <class 'NoneType'>"):
        KerasEstimator(model=lambda: None).fit(df)
    with pytest.raises(errors.ModelError, match=r"is not compiled. Call model.compile\(optimizer="):
        KerasEstimator(model=network(keras, loss=None))
    with pytest.raises(errors.ParamError, match=r"modelArgs=\{'units': 3\} are arguments of a model function"):
        KerasEstimator(model=network(keras), modelArgs={"units": 3}).fit(df)


def test_names_that_the_model_does_not_have(keras, df, no_job):
    x, y = keras.layers.Input((4,), name="x"), keras.layers.Input((4,), name="y")
    two = keras.Model([x, y], keras.layers.Dense(3, name="out")(keras.layers.Add()([x, y])))
    two.compile("sgd", "mse")
    with pytest.raises(errors.SignatureError, match=r"several inputs.*x: float32\(batch, 4\).*inputMapping"):
        KerasEstimator(model=two).fit(df)
    with pytest.raises(errors.SignatureError, match=r"labelMapping names outputs \['other'\]"):
        KerasEstimator(model=network(keras), labelMapping={"label": "other"}).fit(df)


def test_columns_that_cannot_fit(keras, df, no_job):
    text = df.withColumn("label", F.lit("a"))
    shapes = r"rows of shape \(\).*like the output: rows of shape \(3\).*sparse_cat"
    with pytest.raises(errors.ShapeError, match=shapes):
        KerasEstimator(model=network(keras, "categorical_crossentropy")).fit(df)
    with pytest.raises(errors.ColumnTypeError, match=r"'label' holds string; a loss needs numbers.*StringIndexer"):
        KerasEstimator(model=network(keras)).fit(text)
    with pytest.raises(errors.SignatureError, match=r"'label' holds string, but the model's input expects float32"):
        KerasEstimator(model=network(keras), featuresCol="label", labelCol="features").fit(text)
    with pytest.raises(errors.ColumnTypeError, match="Weight column 'label' holds string; a weight is one number a r"):
        KerasEstimator(model=network(keras), labelCol="features", weightCol="label").fit(text)
    with pytest.raises(errors.ColumnNotFoundError, match="no label column"):
        KerasEstimator(model=network(keras)).fit(df.drop("label"))


def test_a_metric_that_another_process_cannot_rebuild(keras, df, no_job):
    lock = threading.Lock()

    def closeness(y_true, y_pred):
        with lock:
            return y_pred

    model = network(keras)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[closeness])
    with pytest.raises(errors.TrainFnPickleError, match=r"function in the model .* cannot pickle '_thread.lock'"):
        KerasEstimator(model=model).fit(df)


def test_lambdas_and_normalization_of_the_users_own_program(keras, df):
    bias = 0.25
    layers = [keras.layers.Normalization(name="bare"), keras.layers.Lambda(lambda x: x + bias), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(keras.optimizers.SGD(0.0), loss=lambda y, p: keras.ops.mean(keras.ops.square(y - p), axis=-1))
    with (
        pytest.warns(UserWarning, match=r"\['bare'\] have mean 0 and variance 1, so they change nothing"),
        pytest.warns(UserWarning, match="EarlyStopping watches 'val_loss', but there are no validation rows"),
    ):
        fitted = KerasEstimator(model=model, verbose=0, callbacks=[keras.callbacks.EarlyStopping()]).fit(df)
    rows = np.ones((2, 4), "float32")
    found = fitted.predict(rows)["prediction"]
    np.testing.assert_allclose(found, model.predict(rows, verbose=0)[:, 0], rtol=1e-6)


def test_roles_and_params_that_exclude_each_other(keras, df, no_job, tmp_path):
    job = KerasEstimator(model=network(keras), clusterSize=2)
    with pytest.raises(errors.ParamError, match="'numPS' .Keras 3 does not support ParameterServerStrategy.*tf_keras"):
        KerasEstimator(model=network(keras), clusterSize=2, numPS=1)
    with pytest.raises(errors.ParamError, match="'evalNode' .all workers evaluate"):
        KerasEstimator(model=network(keras), clusterSize=2, evalNode=True)
    with pytest.raises(errors.ParamError, match="exclude each other"):
        job.copy().setValidationSplit(0.5).setValidationIndicatorCol("label").fit(df)
    with pytest.raises(errors.ParamError, match=r"classWeight must be a non-empty dict.*Received: \{'a': 1\}"):
        KerasEstimator(classWeight={"a": 1})
    with pytest.raises(errors.ParamError, match="BackupAndRestore restores one worker.*Set modelDir instead"):
        KerasEstimator(callbacks=[keras.callbacks.BackupAndRestore("/nowhere")])
    with pytest.raises(errors.ModelError, match="initialWeights='/nowhere' cannot be read"):
        job.copy().setInitialWeights("/nowhere").fit(df)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(errors.DestinationError, match=r"modelDir='.*' holds other files: \['thesis.tex'\]"):
        job.copy().setModelDir(str(tmp_path)).fit(df)
