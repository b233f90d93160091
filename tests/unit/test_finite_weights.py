"""Weights that become NaN or infinite are found at the end of an epoch, by name."""

import keras
import numpy as np
import pytest

from tfos_ml.errors import NonFiniteTrainingError
from tfos_ml.keras.callbacks import _check_weights


def test_weights_that_are_not_finite_are_named_but_a_constant_may_be():
    layers = [keras.layers.Dense(2, activation="relu", name="hidden"), keras.layers.BatchNormalization(name="scale")]
    model = keras.Sequential([keras.layers.Input((3,)), *layers])
    layers[1].moving_mean.assign([0.0, -np.inf])
    _check_weights(model, 0)
    layers[1].moving_mean.assign([0.0, np.nan])
    with pytest.raises(NonFiniteTrainingError, match="after epoch 3: .*scale/moving_mean has 1 of 2 values"):
        _check_weights(model, 2)
