"""Weights that become NaN or infinite are found at the end of an epoch, by name."""

import keras
import numpy as np
import pytest

from tfos_ml.errors import NonFiniteTrainingError
from tfos_ml.keras.callbacks import _check_weights


@pytest.fixture
def model():
    layers = [keras.layers.Dense(2, activation="relu", name="hidden"), keras.layers.BatchNormalization(name="scale")]
    return keras.Sequential([keras.layers.Input((3,)), *layers])


@pytest.mark.parametrize(
    ("name", "value"), [("hidden/bias", np.nan), ("hidden/bias", -np.inf), ("scale/moving_mean", np.nan)]
)
def test_weights_that_are_not_finite_are_named(model, name, value):
    _check_weights(model, 0)
    (variable,) = [v for v in model.weights if v.path.endswith(name)]
    variable.assign([0.0, value])
    with pytest.raises(NonFiniteTrainingError, match=f"not finite after epoch 3: .*{name} has 1 of 2 values"):
        _check_weights(model, 2)


def test_a_constant_may_be_infinite(model):
    model.get_layer("scale").moving_mean.assign([0.0, -np.inf])
    _check_weights(model, 0)
    model.get_layer("hidden").kernel.assign(np.full((3, 2), np.nan))
    with pytest.raises(NonFiniteTrainingError, match="hidden/kernel has 6 of 6 values"):
        _check_weights(model, 0)
