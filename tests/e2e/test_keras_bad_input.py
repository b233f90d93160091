"""What KerasEstimator refuses, on the driver and before any job starts where it can know."""

from __future__ import annotations

import threading

import numpy as np
import pandas as pd
import pytest
from conftest import jobs_of
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, errors


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


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


def network(keras, units=3, loss="sparse_categorical_crossentropy", activation="softmax"):
    model = keras.Sequential(
        [keras.layers.Input((4,), name="pixels"), keras.layers.Dense(units, activation=activation)]
    )
    if loss:
        model.compile("sgd", loss)
    return model


def test_an_uncompiled_model(keras):
    with pytest.raises(errors.ModelError, match=r"is not compiled. Call model.compile\(optimizer="):
        KerasEstimator(model=network(keras, loss=None))


def test_a_function_that_fails_or_returns_no_compiled_model(df, no_job):
    def fails():
        raise KeyError("units")

    with pytest.raises(errors.ModelError, match=r"KeyError: 'units'[\s\S]*in fails"):
        KerasEstimator(model=fails).fit(df)
    with pytest.raises(errors.ModelError, match="compiled keras.Model. Received: <class 'NoneType'>"):
        KerasEstimator(model=lambda: None).fit(df)


def test_no_model_and_arguments_without_a_function(keras, df, no_job):
    with pytest.raises(errors.ParamError, match="model is not set"):
        KerasEstimator().fit(df)
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


@pytest.mark.parametrize(
    ("column", "units", "loss", "message"),
    [
        (
            "label",
            3,
            "categorical_crossentropy",
            r"rows of shape \(\).*like the output: rows of shape \(3\).*sparse_cat",
        ),
        ("label", 3, "mse", r"rows of shape \(\)"),
        ("features", 3, "sparse_categorical_crossentropy", None),
    ],
)
def test_labels_that_cannot_fit(keras, df, column, units, loss, message, request):
    job = KerasEstimator(model=network(keras, units, loss), labelCol=column, verbose=0)
    # How long the rows of an array are is known when they have arrived.
    message = message or r"'features' has rows of 4 elements, but output 'dense.* trained with sparse_.*: 1 in each row"
    with pytest.raises(errors.ShapeError, match=message):
        job.fit(df)


def test_a_label_of_text_and_a_feature_of_text(keras, df, no_job):
    text = df.withColumn("label", F.lit("a"))
    with pytest.raises(errors.ColumnTypeError, match=r"'label' holds string; a loss needs numbers.*StringIndexer"):
        KerasEstimator(model=network(keras)).fit(text)
    with pytest.raises(errors.SignatureError, match=r"'label' holds string, but the model's input expects float32"):
        KerasEstimator(model=network(keras), featuresCol="label", labelCol="features").fit(text)
    weights = df.withColumns({"a": F.lit("1"), "b": F.array(F.lit(1.0))})
    with pytest.raises(errors.ColumnTypeError, match="Weight column 'a' holds string; a weight is one number a row"):
        KerasEstimator(model=network(keras), weightCol="a").fit(weights)
    with pytest.raises(
        errors.ColumnTypeError, match=r"'b' holds arrays of 1 level\(s\); a weight is one number a row\."
    ):
        KerasEstimator(model=network(keras), weightCol="b").fit(weights)
    with pytest.raises(errors.ColumnNotFoundError, match="no label column"):
        KerasEstimator(model=network(keras)).fit(df.drop("label"))


def test_metrics_and_layers_that_another_process_cannot_rebuild(keras, df, no_job):
    lock = threading.Lock()

    def closeness(y_true, y_pred):
        with lock:
            return y_pred

    class Odd(keras.layers.Dense):
        @classmethod
        def from_config(cls, config):
            raise ValueError("not here")

    model = network(keras)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[closeness])
    with pytest.raises(errors.TrainFnPickleError, match=r"function in the model .* cannot pickle '_thread.lock'"):
        KerasEstimator(model=model).fit(df)
    odd = keras.Sequential([keras.layers.Input((4,)), Odd(1)])
    odd.compile("sgd", "mse")
    with pytest.raises(errors.ModelError, match=r"The nodes cannot load the model.*KerasEstimator\(model=make_model\)"):
        KerasEstimator(model=odd).fit(df)


def test_a_lookup_layer_without_a_vocabulary_in_an_instance(keras, df):
    layers = [keras.layers.StringLookup(name="words"), keras.layers.Embedding(9, 1), keras.layers.Flatten()]
    words = keras.Sequential([keras.layers.Input((1,), dtype="string"), *layers])
    words.compile("sgd", "mse")
    with pytest.raises(errors.ModelError, match=r"vocabulary is empty\. Adapt the layer .* function .* adaptLayers\.$"):
        KerasEstimator(model=words, featuresCol="text", adaptLayers=["words"]).fit(df.withColumn("text", F.lit("a")))


def test_lambdas_and_normalization_of_the_users_own_program(keras, df):
    bias = 0.25
    layers = [keras.layers.Normalization(name="bare"), keras.layers.Lambda(lambda x: x + bias), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(keras.optimizers.SGD(0.0), loss=lambda y, p: keras.ops.mean(keras.ops.square(y - p), axis=-1))
    with pytest.warns(UserWarning, match=r"\['bare'\] have mean 0 and variance 1, so they change nothing"):
        fitted = KerasEstimator(model=model, verbose=0).fit(df)
    rows = np.ones((2, 4), "float32")
    found = fitted.predict(rows)["prediction"]
    np.testing.assert_allclose(found, model.predict(rows, verbose=0)[:, 0], rtol=1e-6)


def test_custom_objects_go_along(keras, df):
    @keras.saving.register_keras_serializable("tests")
    class Twice(keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    model = keras.Sequential([keras.layers.Input((4,)), Twice(), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    fitted = KerasEstimator(model=model, customObjects={"tests>Twice": Twice}, verbose=0).fit(df)
    assert fitted.transform(df).count() == 30


def test_roles_and_params_that_exclude_each_other(keras, df, no_job):
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


def test_a_model_directory_in_other_use(keras, df, no_job, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(errors.DestinationError, match=r"modelDir='.*' holds other files: \['thesis.tex'\]"):
        KerasEstimator(model=network(keras), modelDir=str(tmp_path)).fit(df)


def test_a_model_of_tf_keras(df):
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
    with pytest.raises(errors.ModelError, match="tf_keras .Keras 2.*TFEstimator"):
        KerasEstimator(model=model)


def test_a_callback_that_watches_validation_rows_that_there_are_not(keras, df):
    job = KerasEstimator(model=network(keras), verbose=0, callbacks=[keras.callbacks.EarlyStopping()])
    with pytest.warns(UserWarning, match="EarlyStopping watches 'val_loss', but there are no validation rows"):
        job.fit(df)
