"""Programs of the kinds that keras.io shows, and what an estimator adds to them, end like plain Keras here.

What each adds has another test in make test, of itself.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from example_programs import hub, tables, vision
from keras_worker import masked_steps, step_data

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


def plain(model, x, y, **options):
    """Fit in place; returns the history, and what the model predicts then."""
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, **options).history
    return history, model.predict(x, verbose=0)


def as_tensors(columns, shape=(-1,)):
    """Columns for plain Keras, which takes no text as NumPy has it."""
    import tensorflow as tf

    return {name: tf.constant(values.reshape(shape).tolist()) for name, values in columns.items()}


def check(fitted, df, history, expected, column="probability"):
    rows = fitted.transform(df).select("row", column).sort("row").collect()
    found = np.stack([row[1].toArray() for row in rows])
    np.testing.assert_allclose(found[:, -expected.shape[1] :], expected, atol=1e-5)
    assert set(fitted.summary.history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(fitted.summary.history[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert fitted.summary.warnings == []


@SIZES
def test_weights_of_rare_classes_by_an_estimator_that_was_loaded(spark, tmp_path, size):
    """The model is an instance with dropout: the states of its random generators are saved, too."""
    data = tables.frauds()
    x, y, held_out, weights = (data[key] for key in ("x", "y", "val", "class_weight"))
    model = seeded(tables.class_imbalance)
    columns = {"featuresCol": "x", "labelCol": "y", "validationIndicatorCol": "held_out"}
    KerasEstimator(model=model, **columns, classWeight=weights, clusterSize=size, **FIXED).save(str(tmp_path / "e"))
    validation = (x[held_out], y[held_out])
    history, _ = plain(model, x[~held_out], y[~held_out], validation_data=validation, class_weight=weights)
    df = as_frame(spark, {"x": x, "y": y, "held_out": held_out})
    check(KerasEstimator.load(str(tmp_path / "e")).fit(df), df, history, model.predict(x, verbose=0))


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
    x, y = tables.patients()
    given = as_tensors(x, shape=(-1, 1))
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


@SIZES
def test_a_feature_space_in_a_model(spark, size):
    x, y = tables.patients()
    given = as_tensors(x)
    model = seeded(tables.feature_space)
    job = KerasEstimator(model=model, inputMapping={name: name for name in x}, clusterSize=size, **FIXED)
    history, expected = plain(model, given, y)
    df = as_frame(spark, {**x, "label": y})
    check(job.fit(df), df, history, expected)


@SIZES
def test_transfer_learning_in_two_fits(spark, tmp_path, size):
    """The second fit begins with the weights of the first, and trains the base as well."""
    x, y = vision.images()
    df = as_frame(spark, {"x": x, "label": y})
    head, whole = seeded(vision.frozen_base), seeded(vision.frozen_base, trains_base=True)
    fixed = {"model": lambda **arguments: seeded(vision.frozen_base, **arguments), "featuresCol": "x", **FIXED}
    exported = str(tmp_path / "export")
    first = KerasEstimator(exportDir=exported, clusterSize=size, **fixed).fit(df)
    check(first, df, *plain(head, x, y))
    whole.set_weights(head.get_weights())
    second = KerasEstimator(modelArgs={"trains_base": True}, initialWeights=exported, clusterSize=size, **fixed)
    check(second.fit(df), df, *plain(whole, x, y))


@SIZES
def test_a_weight_for_each_word_of_rows_of_any_length(spark, size):
    data = step_data()
    x, y, w, lengths = (data[key] for key in ("x", "y", "w", "lengths"))
    columns = {"featuresCol": "x", "labelCol": "y", "weightCol": "w"}
    job = KerasEstimator(model=lambda: seeded(masked_steps), **columns, clusterSize=size, **FIXED)
    rows = {name: [row[:n].tolist() for row, n in zip(data[name], lengths, strict=True)] for name in "xyw"}
    fitted = job.fit(spark.createDataFrame(pd.DataFrame(rows)).coalesce(2))
    history, _ = plain(seeded(masked_steps), x, y, sample_weight=w)
    assert set(fitted.summary.history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(fitted.summary.history[name], values, rtol=1e-5, err_msg=name)


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
