"""``TFModel.evaluate``: the loss and the metrics of Keras in one process, over any partitions and nodes."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import PipelineModel
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFModel, errors

ROWS, BATCH, STEPS = 403, 64, 7


pytestmark = pytest.mark.usefixtures("keras")


def tokens():
    """Rows of unequal length, padded with 0; a label for each step, one for each row, and weights of both."""
    random = np.random.RandomState(5)
    lengths = random.randint(1, STEPS + 1, ROWS)
    x = np.where(np.arange(STEPS) < lengths[:, None], random.randint(1, 50, (ROWS, STEPS)), 0)
    columns = {
        "features": x.tolist(),
        "tags": (x % 3).tolist(),
        "positive": (x.sum(1) % 2).astype("f"),
        "of_steps": np.where(x > 0, random.uniform(0.2, 2, x.shape), 0.0).tolist(),
        "of_rows": random.uniform(0.2, 2, ROWS),
    }
    return pd.DataFrame({"id": np.arange(ROWS), **columns})


def two_outputs(units=4):
    """A masked model with two outputs, a regularizer of weights and one of activities, and metrics of several kinds."""
    import keras

    keras.utils.set_random_seed(1)
    x = keras.layers.Input((None,), name="features", dtype="int64")
    hidden = keras.layers.Embedding(50, units, mask_zero=True)(x)
    hidden = keras.layers.Dense(units, kernel_regularizer="l2")(hidden)  # keeps the mask
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    pooled = keras.layers.Dense(units, activity_regularizer=keras.regularizers.L2(1e-2))(pooled)
    outputs = {
        "tags": keras.layers.Dense(3, activation="softmax", name="tags")(hidden),
        "positive": keras.layers.Dense(1, activation="sigmoid", name="positive")(pooled),
    }
    model = keras.Model(x, outputs)
    model.compile(
        "adam",
        {"tags": "sparse_categorical_crossentropy", "positive": "binary_crossentropy"},
        loss_weights={"tags": 0.3, "positive": 1.0},
        metrics={"tags": ["accuracy"], "positive": ["accuracy", keras.metrics.AUC(name="auc")]},
        weighted_metrics={"positive": [keras.metrics.Precision(name="precision")]},
    )
    return model


COLUMNS = {
    "inputMapping": {"features": "features"},
    "outputMapping": {"tags": "scored_tags", "positive": "scored"},
    "labelMapping": {"tags": "tags", "positive": "positive"},
    "weightMapping": {"of_steps": "tags", "of_rows": "positive"},
}


def frame(spark, rows):
    df = spark.createDataFrame(rows)
    return df.select(
        "id", *(F.col(name).cast("array<int>") for name in ("features", "tags")), "positive", "of_steps", "of_rows"
    )


def in_one_process(model, rows):
    """What Keras says of a fitted model's weights, in one process."""
    y = {"tags": np.stack(rows.tags), "positive": rows.positive.to_numpy()[:, None]}
    weights = {"tags": np.stack(rows.of_steps).astype("f"), "positive": rows.of_rows.to_numpy().astype("f")}
    return model.evaluate(
        np.stack(rows.features), y, sample_weight=weights, batch_size=BATCH, return_dict=True, verbose=0
    )


def with_weights_of(fitted, model, tmp_path):
    """A Keras model with the weights of a fitted one."""
    path = tmp_path / "fitted.weights.h5"
    path.write_bytes(fitted._packed().member("assets.extra/model.weights.h5"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.load_weights(path)
    return model


def test_evaluate_is_that_of_keras_over_any_partitions_and_nodes(spark, tmp_path):
    rows = tokens()
    df = frame(spark, rows)
    estimator = KerasEstimator(model=two_outputs, batchSize=BATCH, verbose=0, **COLUMNS)
    fitted = estimator.fit(df.coalesce(2))
    expected = in_one_process(with_weights_of(fitted, two_outputs(), tmp_path), rows)
    PipelineModel(stages=[fitted]).write().overwrite().save(f"{tmp_path}/model")
    loaded = PipelineModel.load(f"{tmp_path}/model").stages[0].setFeaturesCol("another")  # not that of inputMapping
    several = df.repartitionByRange(3, "id").sortWithinPartitions("id")  # in the same order
    with_empty = several.where("id >= 0").unionAll(df.where("id < 0"))
    assert len(expected) == 7
    assert loaded.evaluate(with_empty, clusterSize=2) == pytest.approx(expected, abs=1e-6, rel=1e-6)


def of_texts():
    """A model of texts, whose vocabulary is learned, with a metric whose states are not those of all rows."""
    import keras

    class LargestError(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.largest = self.add_weight(initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            error = keras.ops.max(keras.losses.mean_absolute_error(y_true, y_pred))
            self.largest.assign(keras.ops.maximum(self.largest, error))

        def result(self):
            return self.largest

    keras.utils.set_random_seed(2)
    words = keras.layers.TextVectorization(10, output_mode="multi_hot", pad_to_max_tokens=True, name="words")
    model = keras.Sequential([keras.layers.Input((), dtype="string"), words, keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[LargestError(), keras.metrics.RootMeanSquaredError(name="rmse")])
    return model


def test_layers_are_as_adapted_and_metrics_that_do_not_add_up_are_an_error(spark, tmp_path):
    rows = pd.DataFrame({"features": [f"word{i % 5} and word{i % 3}" for i in range(50)], "label": np.arange(50) / 50})
    df = spark.createDataFrame(rows).coalesce(1)
    fitted = KerasEstimator(model=of_texts, adaptLayers=["words"], batchSize=16, verbose=0).fit(df)
    model = of_texts()
    model.get_layer("words").adapt(rows.features.to_numpy())
    expected = with_weights_of(fitted, model, tmp_path).evaluate(
        rows.features.to_numpy(), rows.label.to_numpy(), batch_size=16, return_dict=True, verbose=0
    )
    found = fitted.evaluate(df, {KerasEstimator().batchSize: 7})
    assert found == pytest.approx(expected, abs=1e-6)
    assert fitted.evaluate(df, batchSize=7) == found
    with pytest.raises(errors.ParamError, match="params must be a param map"):
        fitted.evaluate(df, {"batchSize": 7})
    with pytest.raises(errors.ModelError, match=r"Metrics \['largest'\] cannot be combined exactly .* 2 nodes"):
        fitted.evaluate(df, clusterSize=2)
    with pytest.raises(errors.ParamError, match=r"does not take \['epochs'\]"):
        fitted.evaluate(df, epochs=2)
    with pytest.raises(errors.ColumnNotFoundError, match="'truth' does not exist"):
        fitted.evaluate(df, labelCol="truth")
    with pytest.raises(errors.ModelError, match="does not come from a fit of KerasEstimator"):
        TFModel().evaluate(spark.range(1))
