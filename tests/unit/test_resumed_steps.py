"""A training that goes on from a checkpoint ends like one that was not interrupted, whatever its steps change.

Its rows are shuffled, so that it goes on with those of that epoch.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from keras_worker import worker_context
from optimizer_programs import OPTIMIZERS, frozen_first, thaw, with_callback

from tfos_ml.data import spool
from tfos_ml.errors import ModelError
from tfos_ml.keras.build import KerasFit
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.model.inspection import describe
from tfos_ml.keras.model.source import ModelSource
from tfos_ml.keras.training import fit_model

pytestmark = pytest.mark.slow


def trained(program, directory: Path, epochs, model_dir=None):
    """The weights after some epochs, from the last checkpoint if there is one."""
    make_data, make = program
    data = {**make_data(), "epochs": epochs}
    ctx = worker_context(data, 0, 1, True, spool.SpoolDirectories(directory, directory))
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
