"""A worker looks at the outputs of its first rows before it trains; spool, row store and model are real."""

from __future__ import annotations

from pathlib import Path

import pytest
from keras_worker import class_data, worker_context

from tfos_ml.data.spool import SpoolDirectories
from tfos_ml.errors import ModelError
from tfos_ml.inference.prediction import PredictionSpec


@pytest.fixture
def fit(tmp_path):
    """Train a model of no declared outputs, which only its values give away."""
    import keras

    from tfos_ml.keras.collectives import WorkerGroup
    from tfos_ml.keras.inspection import describe
    from tfos_ml.keras.model_source import ModelSource
    from tfos_ml.keras.training import KerasFit, fit_model

    class Own(keras.Model):
        def __init__(self, units, activation):
            super().__init__()
            self.dense = keras.layers.Dense(units, activation=activation)

        def call(self, x):
            return self.dense(x)

    def fit(units, activation, loss):
        def make():
            model = Own(units, activation)
            model.compile("sgd", loss)
            return model

        ctx = worker_context(class_data(), 0, 1, False, SpoolDirectories(Path(tmp_path), Path(tmp_path)))
        told = {}
        ctx.summarize = told.update
        fit_model(
            KerasFit(ModelSource(function=make), describe(make()), PredictionSpec()),
            ctx,
            WorkerGroup.start(0, [""], 60.0),
        )
        return told["warnings"]

    return fit


def test_values_that_are_no_probabilities(fit):
    with pytest.raises(ModelError, match=r"values from -.* for the first batch.*from_logits=True"):
        fit(3, None, "sparse_categorical_crossentropy")


def test_probabilities_that_do_not_add_up(fit):
    (notice,) = fit(3, "sigmoid", "sparse_categorical_crossentropy")
    assert "add up to 1; Keras rescales them" in notice


@pytest.mark.parametrize(("activation", "loss"), [("softmax", "sparse_categorical_crossentropy"), (None, "mse")])
def test_nothing_is_said_of_what_is_right(fit, activation, loss):
    assert fit(3 if activation else 1, activation, loss) == []
