"""Rows that would silently spoil a model, or its answers: of a wrong length, with NaN, with labels out of range."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, errors

ROWS = 40


pytestmark = pytest.mark.usefixtures("keras")


@pytest.fixture
def df(spark):
    random = np.random.RandomState(0)
    rows = pd.DataFrame({"features": random.randn(ROWS, 4).tolist(), "label": np.arange(ROWS) % 3})
    return spark.createDataFrame(rows).coalesce(1)


def network(keras):
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(8, activation="relu", name="hidden")
    inputs = keras.layers.Input((4,), name="pixels")
    model = keras.Sequential([inputs, hidden, keras.layers.Dense(3, activation="softmax", name="classes")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def network_without_nan(keras):
    """What is NaN becomes zero, and the loss does not show it; ReLU does that on some processors only."""
    inputs = keras.layers.Input((4,), name="pixels")
    hidden = keras.ops.nan_to_num(keras.layers.Dense(8, name="hidden")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(hidden))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def estimator(model, **params):
    return KerasEstimator(**{"model": model, "batchSize": 8, "verbose": 0, **params})


def with_nan(df):
    """The rows of label 1 with NaN as their second feature."""
    spoiled = F.transform("features", lambda x, i: F.when(i == 1, float("nan")).otherwise(x))
    return df.withColumn("features", F.when(F.col("label") == 1, spoiled).otherwise(df.features))


def test_rows_with_nan_are_skipped_and_counted(keras, df):
    job = estimator(network(keras), shuffle=False, handleInvalid="skip")
    with pytest.warns(UserWarning, match=r"handleInvalid='skip' left out 13 of 40 rows \(summary.skippedRows\)"):
        fitted = job.fit(with_nan(df))
    assert (fitted.summary.rows, fitted.summary.skippedRows) == (27, 13)
    clean = df.where("label != 1").toPandas()
    alone = network(keras)
    alone.fit(np.stack(clean.features), clean.label.to_numpy(), batch_size=8, shuffle=False, verbose=0)
    expected = alone.predict(np.stack(clean.features), verbose=0)

    scored = fitted.transform(with_nan(df)).collect()  # with the policy of the fit
    assert {r.label for r in scored} == {0, 2}
    np.testing.assert_allclose([r.probability.toArray() for r in scored], expected, rtol=1e-4)
    kept = fitted.copy({fitted.handleInvalid: "keep"}).transform(with_nan(df)).where("label = 1").collect()
    assert len(kept) == 13


def test_weights_that_are_not_finite_end_the_fit_and_are_not_tried_again(keras, df):
    """Labels and widths are in ``unit/test_row_checks.py``."""
    wide = r"'features' has rows of 3 elements, but the model's input 'pixels' is float32\(batch, 4\): 4 in each row"
    with pytest.raises(errors.ShapeError, match=wide):
        estimator(network(keras)).fit(df.withColumn("features", F.slice("features", 1, 3)))
    job = estimator(network_without_nan(keras), handleInvalid="keep", epochs=3, maxRestarts=2)
    with pytest.raises(errors.NonFiniteTrainingError, match=r"after epoch 1: .*hidden/kernel has \d+ of 32 values"):
        job.fit(with_nan(df))


def test_rows_of_any_length_are_scored_as_they_were_trained_whatever_comes_with_them(keras, spark):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((None,)), keras.layers.Reshape((-1, 1)), keras.layers.Dense(4, activation="tanh")]
    layers += [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]  # to which padding matters
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    lists = [[float(n)] * n for n in (3, 1, 5, 2, 3, 4, 5, 1)]
    df = spark.createDataFrame([(row, float(len(row))) for row in lists], "features array<float>, label float")
    fitted = estimator(model, shuffle=False, epochs=2).fit(df.coalesce(1))
    padded = np.array([row + [0.0] * (5 - len(row)) for row in lists], "f")
    model.fit(padded, np.array([len(row) for row in lists]), epochs=2, batch_size=8, shuffle=False, verbose=0)
    expected = model.predict(padded, verbose=0)[:, 0]
    for rows_in_a_call in (1, 3, 100):
        rows = fitted.copy({fitted.predictBatchSize: rows_in_a_call}).transform(df).collect()
        np.testing.assert_allclose([r.prediction for r in rows], expected, rtol=1e-4)
    np.testing.assert_allclose(fitted.predict({"features": lists})["prediction"], expected, rtol=1e-4)
