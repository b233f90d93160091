"""On one worker tfos_ml refuses nothing that Keras trains, and ends like it."""

from __future__ import annotations

import keras
import keras_worker
import numpy as np
import pytest
from keras_processes import plain_fit
from keras_programs import numbers, small

from tfos_ml.data import spool
from tfos_ml.keras.build import KerasFit
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.model.inspection import describe
from tfos_ml.keras.model.source import ModelSource
from tfos_ml.keras.training import fit_model

pytestmark = pytest.mark.slow
X, Y = np.ones((3, 4), "f"), np.ones(3, "f")


class Between(keras.callbacks.Callback):
    """Trains, tests and evaluates on rows of its own."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.train_on_batch(X, Y)
            self.model.test_on_batch(X, Y)
            self.model.evaluate(X, Y, verbose=0)


def test_callbacks_may_train_between_the_steps(tmp_path, monkeypatch):
    program = lambda: {**numbers(), "callbacks": lambda: [Between()]}, lambda: small(metrics=["mae"])
    monkeypatch.setitem(keras_worker.CASES, "between", program)
    data, model = keras_worker.make("between")
    context = keras_worker.worker_context(data, 0, 1, False, spool.SpoolDirectories(tmp_path, tmp_path))
    context.epochs = keras_worker.EPOCHS
    task = KerasFit(
        ModelSource(function=lambda: keras_worker.make("between")[1]),
        describe(model),
        callbacks=data["callbacks"](),
    )
    weights = fit_model(task, context, WorkerGroup(0, 1, 10.0)).get_weights()
    for own, plain in zip(weights, plain_fit("between")[0], strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-6)
