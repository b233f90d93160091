"""Weights that become NaN or infinite are found at the end of an epoch, by name."""

import keras
import numpy as np
import pytest

from tfos_ml.errors import NonFiniteTrainingError
from tfos_ml.keras.finite_weights import WeightWatch


@pytest.fixture
def model():
    layers = [keras.layers.Dense(2, activation="relu", name="hidden"), keras.layers.BatchNormalization(name="scale")]
    return keras.Sequential([keras.layers.Input((3,)), *layers])


def test_finite_weights_are_fine(model):
    WeightWatch(model).check(0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["hidden/bias", "scale/moving_mean"])
def test_the_first_weights_that_are_not_are_named(model, name, value):
    watch = WeightWatch(model)
    watch.check(0)
    (variable,) = [v for v in model.weights if v.path.endswith(name)]
    variable.assign([0.0, value])
    with pytest.raises(NonFiniteTrainingError, match=f"after epoch 3: .*{name} has 1 of 2 values"):
        watch.check(2)


def test_a_constant_that_never_was_finite_may_stay_so(model):
    mask = model.get_layer("scale").moving_mean
    mask.assign([0.0, -np.inf])
    watch = WeightWatch(model)
    watch.check(0)
    model.get_layer("hidden").kernel.assign(np.full((3, 2), np.nan))
    with pytest.raises(NonFiniteTrainingError, match="hidden/kernel has 6 of 6 values"):
        watch.check(0)
