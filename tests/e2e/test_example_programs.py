"""Layers that a fit adapts, and programs on KerasHub, end through Spark like plain Keras here.

Programs of all kinds that keras.io shows are in ``unit/test_exactness.py``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from example_programs import hub, tables

from tfos_ml import KerasEstimator, TFModel

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.filterwarnings("ignore:(?s).*The structure of `inputs` doesn't match:UserWarning"),
]
SIZES = pytest.mark.parametrize("size", [1, 2])
FIXED = {"batchSize": 8, "epochs": 2, "shuffle": False, "verbose": 0}


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


def seeded(program, **arguments):
    """The compiled model of a program, the same each time."""
    import keras

    keras.utils.set_random_seed(1)
    return program(**arguments)


def as_frame(spark, columns):
    cells = {name: values.tolist() if values.ndim > 1 else values for name, values in columns.items()}
    return spark.createDataFrame(pd.DataFrame({**cells, "row": np.arange(len(next(iter(cells.values()))))})).coalesce(2)


def plain(model, x, y):
    """Fit in place; returns the history, and what the model predicts then."""
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return history, model.predict(x, verbose=0)


def check(fitted, df, history, expected, column="probability"):
    rows = fitted.transform(df).select("row", column).sort("row").collect()
    found = np.stack([row[1].toArray() for row in rows])
    np.testing.assert_allclose(found[:, -expected.shape[1] :], expected, atol=1e-5)
    assert set(fitted.summary.history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(fitted.summary.history[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert fitted.summary.warnings == []


def patients_model(adapted_on=None):
    """What FeatureSpace makes of columns, by layers that ``adaptLayers`` can name."""
    import keras

    layers = keras.layers
    kinds = {"age": "float32", "vessels": "int32", "pain": "string", "pressure": "float32"}
    inputs = {name: layers.Input((1,), name=name, dtype=kind) for name, kind in kinds.items()}
    encoders = {
        "age": layers.Discretization(num_bins=5, output_mode="multi_hot", name="age_bins"),
        "vessels": layers.IntegerLookup(output_mode="multi_hot", max_tokens=6, pad_to_max_tokens=True, name="counts"),
        "pain": layers.StringLookup(output_mode="multi_hot", max_tokens=5, pad_to_max_tokens=True, name="kinds"),
        "pressure": layers.Normalization(name="scale"),
    }
    for name, values in (adapted_on or {}).items():
        encoders[name].adapt(values)
    encoded = [encoder(inputs[name]) for name, encoder in encoders.items()]
    encoded.append(layers.HashedCrossing(8, output_mode="one_hot")((inputs["vessels"], inputs["pain"])))
    hidden = layers.Dropout(0.5)(layers.Dense(8, "relu")(layers.Concatenate()(encoded)))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


@SIZES
def test_preprocessing_layers_that_a_fit_adapts(spark, size):
    import tensorflow as tf  # plain Keras takes no text as NumPy has it

    x, y = tables.patients()
    given = {name: tf.constant(values.reshape(-1, 1).tolist()) for name, values in x.items()}
    history, expected = plain(seeded(patients_model, adapted_on=given), given, y)
    layers = ["age_bins", "counts", "kinds", "scale"]
    job = KerasEstimator(
        model=lambda: seeded(patients_model),
        inputMapping={name: name for name in x},
        adaptLayers=layers,
        clusterSize=size,
        **FIXED,
    )
    df = as_frame(spark, {**x, "label": y})
    check(job.fit(df), df, history, expected)


@pytest.mark.skipif(not hub.IS_INSTALLED, reason="keras-hub is not installed")
@SIZES
def test_a_classifier_of_kerashub(spark, tmp_path, size):
    x, y = hub.sentences()
    model = seeded(hub.bert)
    job = KerasEstimator(model=model, inputMapping={name: name for name in x}, clusterSize=size, **FIXED)
    history, expected = plain(model, x, y)
    df = as_frame(spark, {**x, "label": y})
    fitted = job.fit(df)
    check(fitted, df, history, expected, "rawPrediction")
    fitted.save(str(tmp_path / "m"))
    check(TFModel.load(str(tmp_path / "m")), df, history, expected, "rawPrediction")
