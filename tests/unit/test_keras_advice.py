"""Warnings about a last layer that does not go with the loss, with which Keras trains all the same."""

from __future__ import annotations

import warnings

import keras
import pytest

from tfos_ml.errors import ModelError
from tfos_ml.keras.model.inspection import describe
from tfos_ml.stages.keras_advice import refuse_unreduced, warn_of_activations

SPARSE = "sparse_categorical_crossentropy"
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def described(loss, *layers):
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile("sgd", loss)
    return describe(model)


@pytest.mark.parametrize(
    ("loss", "activation", "units", "advice"),
    [
        (SPARSE, None, 5, "no activation, .* Give its layer activation='softmax', or compile .* from_logits=True"),
        ("binary_crossentropy", "softmax", 1, "softmax over one unit, which is always 1"),
        (LOGITS, "softmax", 5, "Compile it without from_logits"),
    ],
)
def test_a_loss_that_does_not_go_with_the_last_layer(loss, activation, units, advice):
    with pytest.warns(UserWarning, match=advice):
        warn_of_activations(described(loss, keras.layers.Dense(units, activation)))


def test_nothing_is_said_of_what_may_go_together():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_activations(described(SPARSE, keras.layers.Dense(5, "softmax")))
        warn_of_activations(described(SPARSE, type("Own", (keras.layers.Dense,), {})(5)))
        warn_of_activations(described(LOGITS, keras.layers.Dense(5)))


def test_a_loss_without_reduction():
    with pytest.raises(ModelError, match=r"\['MeanSquaredError'\] have reduction=None"):
        refuse_unreduced(described(keras.losses.MeanSquaredError(reduction=None), keras.layers.Dense(1)))
