"""Builds the model of a fit with the same variables on all workers."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras import adapt
from tfos_ml.keras.checkpoint import assign_all, split_variables
from tfos_ml.keras.training_data import TrainingData
from tfos_ml.keras.worker_group import WorkerGroup
from tfos_ml.worker import keras_privates

if TYPE_CHECKING:
    from tfos_ml.keras.training import KerasFit
    from tfos_ml.worker.node_context import NodeContext


def build_variables(model: Any, data: TrainingData, task: KerasFit) -> None:
    """Create all variables of model, metrics, loss and optimizer, and set their initial values."""
    if task.description.has_call:
        try:
            keras_privates.symbolic_build(model, data.element_spec())
        except Exception:
            if not data.names_inputs():
                raise
            keras_privates.symbolic_build(model, data.element_spec())
    else:  # only the train step creates the variables
        tf.function(model.train_step).get_concrete_function(data.element_spec())
        model.built = True
    if task.adapted:
        adapt.load_variables(model, task.adapted)
    if task.initial_weights:
        _load_weights(model, *task.initial_weights)


def _load_weights(model: Any, name: str, content: bytes) -> None:
    """Load only the weights of a file; Keras would also load the optimizer's state, including its learning rate."""
    before = [np.asarray(v) for v in model.optimizer.variables]
    with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        path = os.path.join(directory, name)
        with open(path, "wb") as file:
            file.write(content)
        try:
            model.load_weights(path)
        except ValueError as error:
            raise ModelError(f"initialWeights does not fit the model: {error}") from None
    for variable, value in zip(model.optimizer.variables, before, strict=True):
        variable.assign(value)


def settle_execution(model: Any, group: WorkerGroup, notices: list[str]) -> None:
    """Switch off settings that do not work with collective operations."""
    if group.size == 1:
        return
    if model.jit_compile and not tf.config.list_physical_devices("GPU"):
        notices.append(
            "jit_compile=True was switched off: XLA has no collective operations on CPUs, and several workers trained."
        )
        model.jit_compile = False
    if model.run_eagerly:
        notices.append("run_eagerly=True was switched off: several workers trained.")
        model.run_eagerly = False


def start_alike(model: Any, group: WorkerGroup, ctx: NodeContext) -> None:
    """Copy the variables and the states of seed generators from the chief to all workers."""
    shared, seeds = split_variables(model)
    variables = [*shared, *seeds, keras_privates.global_seed_state()]
    arrays = group.broadcast_arrays([np.asarray(v) for v in variables], ctx.is_chief)
    if not ctx.is_chief:
        assign_all(variables, arrays)
