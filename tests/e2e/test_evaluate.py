"""``TFModel.evaluate``: the loss and the metrics of Keras in one process, over any partitions and nodes."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import PipelineModel

from tfos_ml import KerasEstimator, TFModel, errors


@pytest.fixture(scope="module", autouse=True)
def keras():
    """Keras on the driver; it changes the environment when it is imported, which is not ours to undo."""
    import keras

    return keras


def with_weights_of(fitted, model, tmp_path):
    """A Keras model with the weights of a fitted one."""
    path = tmp_path / "fitted.weights.h5"
    path.write_bytes(fitted._packed().member("assets.extra/model.weights.h5"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.load_weights(path)
    return model


def of_texts():
    """A model of texts, whose vocabulary is learned."""
    import keras

    keras.utils.set_random_seed(2)
    text = keras.layers.Input((), dtype="string", name="text")
    words = keras.layers.TextVectorization(10, output_mode="multi_hot", pad_to_max_tokens=True, name="words")
    hidden = keras.layers.Dense(1, kernel_regularizer="l2")(words(text))
    model = keras.Model(text, hidden)
    rmse = keras.metrics.RootMeanSquaredError(name="rmse")
    model.compile("sgd", "mse", metrics=[rmse], weighted_metrics=["mae"])
    return model


def test_evaluate_is_that_of_keras_over_any_partitions_and_nodes(spark, tmp_path):
    """With layers as adapted; models of other kinds are in ``unit/test_evaluation.py``."""
    rows = pd.DataFrame({"text": [f"word{i % 5} and word{i % 3}" for i in range(50)], "label": np.arange(50) / 50})
    df = spark.createDataFrame(rows.assign(weight=1 + np.arange(50) % 3 / 2)).coalesce(1)
    columns = {"inputMapping": {"text": "text"}, "weightCol": "weight"}
    fitted = KerasEstimator(model=of_texts, adaptLayers=["words"], batchSize=16, verbose=0, **columns).fit(df)
    model = of_texts()
    model.get_layer("words").adapt(rows.text.to_numpy())
    weighted = {"sample_weight": 1 + np.arange(50) % 3 / 2, "batch_size": 16, "return_dict": True, "verbose": 0}
    model = with_weights_of(fitted, model, tmp_path)
    expected = model.evaluate(rows.text.to_numpy(), rows.label.to_numpy(), **weighted)
    found = fitted.evaluate(df, {KerasEstimator().batchSize: 7})
    assert found == pytest.approx(expected, abs=1e-6)
    assert fitted.evaluate(df, batchSize=7) == found
    PipelineModel(stages=[fitted]).write().overwrite().save(f"{tmp_path}/model")
    loaded = PipelineModel.load(f"{tmp_path}/model").stages[0].setFeaturesCol("another")  # not that of inputMapping
    with_empty = df.repartition(3).unionAll(df.where("label < 0"))
    assert loaded.evaluate(with_empty, clusterSize=2) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(errors.ParamError, match="params must be a param map"):
        fitted.evaluate(df, {"batchSize": 7})
    with pytest.raises(errors.ParamError, match=r"does not take \['epochs'\]"):
        fitted.evaluate(df, epochs=2)
    with pytest.raises(errors.ColumnNotFoundError, match="'truth' does not exist"):
        fitted.evaluate(df, labelCol="truth")
    with pytest.raises(errors.ModelError, match="does not come from a fit of KerasEstimator"):
        TFModel().evaluate(spark.range(1))
