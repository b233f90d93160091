"""Trainings on one worker: one that goes on from a checkpoint, and one whose callbacks train between its steps.

They end like plain Keras. Rows are shuffled, so that one that goes on has those of that epoch.
"""

from __future__ import annotations

from pathlib import Path

import keras
import keras_worker
import numpy as np
import pytest
from keras_processes import plain_fit
from keras_programs import numbers, small
from optimizer_programs import OPTIMIZERS, frozen_first, thaw, with_callback

from tfos_ml.data import spool
from tfos_ml.errors import ModelError
from tfos_ml.keras.build import KerasFit
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.model.inspection import describe
from tfos_ml.keras.model.source import ModelSource
from tfos_ml.keras.training import fit_model

pytestmark = pytest.mark.slow


def trained(program, directory: Path, epochs, model_dir=None, shuffle=True):
    """The weights after some epochs, from the last checkpoint if there is one."""
    make_data, make = program
    data = {**make_data(), "epochs": epochs}
    ctx = keras_worker.worker_context(data, 0, 1, shuffle, spool.SpoolDirectories(directory, directory))
    ctx.checkpoint_dir = model_dir and str(model_dir)
    ctx.is_preempted = ctx._node.should_save = lambda: False
    task = KerasFit(ModelSource(function=make), describe(make()), callbacks=data.get("callbacks", list)())
    return fit_model(task, ctx, WorkerGroup(0, 1, 10.0)).get_weights()


@pytest.mark.parametrize("name", ["gathered", pytest.param("of_the_module", marks=pytest.mark.chaos)])
def test_a_resumed_training_ends_like_an_undisturbed_one(name, tmp_path):
    """Other optimizers than the compiled one, and variables of TensorFlow's own, are in the checkpoint."""
    expected = trained(OPTIMIZERS[name], tmp_path, 4)
    trained(OPTIMIZERS[name], tmp_path, 1, tmp_path / "model")
    keras.utils.clear_session()
    for own, plain in zip(trained(OPTIMIZERS[name], tmp_path, 4, tmp_path / "model"), expected, strict=True):
        np.testing.assert_array_equal(own, plain)


def test_beyond_a_second_compile_it_is_an_error_that_says_so(tmp_path):
    program = with_callback(thaw), frozen_first
    trained(program, tmp_path, 2, tmp_path / "model")
    with pytest.raises(ModelError, match="compiled again by a callback before epoch 2"):
        trained(program, tmp_path, 3, tmp_path / "model")


class Between(keras.callbacks.Callback):
    """Trains, tests and evaluates on rows of its own."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            x, y = np.ones((3, 4), "f"), np.ones(3, "f")
            self.model.train_on_batch(x, y)
            self.model.test_on_batch(x, y)
            self.model.evaluate(x, y, verbose=0)


def test_callbacks_may_train_between_the_steps(tmp_path, monkeypatch):
    """On one worker tfos_ml refuses nothing that Keras trains."""
    case = lambda: {**numbers(), "callbacks": lambda: [Between()]}, lambda: small(metrics=["mae"])
    monkeypatch.setitem(keras_worker.CASES, "between", case)
    program = [lambda part=part: keras_worker.make("between")[part] for part in range(2)]
    weights = trained(program, tmp_path, keras_worker.EPOCHS, shuffle=False)
    for own, plain in zip(weights, plain_fit("between")[0], strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-6)
