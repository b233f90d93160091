"""Makes a model on a node, with all its variables before its training, and their initial values; and its rows."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.keras.model import adapt
from tfos_ml.keras.training_data import TrainingData

if TYPE_CHECKING:
    from tfos_ml.keras.collectives.group import WorkerGroup
    from tfos_ml.keras.model.inspection import ModelDescription
    from tfos_ml.keras.model.source import ModelSource
    from tfos_ml.worker.node_context import NodeContext


@dataclass(frozen=True)
class KerasFit:
    """Everything a node needs to train the model of a ``KerasEstimator``."""

    source: ModelSource
    description: ModelDescription  # what the driver knows of the model
    callbacks: list[Any] = field(default_factory=list)
    class_weight: Mapping[int, float] = field(default_factory=dict)  # by class; empty for none
    has_local_statistics: bool = False  # batchStatistics="local"
    adapted: bytes | None = None  # state of preprocessing layers
    initial_weights: str | None = None  # name of the weights to start from, which are in the program's file "weights"
    has_model_file: bool = False  # whether the model is the program's file "model"


def build_model(task: KerasFit, ctx: NodeContext, group: WorkerGroup, notices: list[str]) -> tuple[Any, TrainingData]:
    """The model with all its variables, and the rows of this worker; adds to `notices` of settings that it changes."""
    keras.utils.set_random_seed(ctx._node.settings.seed % 2**32)
    source = task.source
    if task.has_model_file:
        source = replace(source, archive=Path(ctx._node.program_files["model"]))
    model = source.build_for_process()
    if task.adapted:
        adapt.load_assets(model, task.adapted)
    data = TrainingData(ctx, group, model, task.description, task.class_weight)
    name = task.initial_weights
    initial_weights = None if name is None else (name, ctx._node.program_files["weights"])
    build(model, data, task.description.has_call, task.adapted, initial_weights)
    settle_execution(model, group, notices)
    notices += filter(None, [privates.untried(keras.__version__) if group.size > 1 else None])
    return model, data


def settle_execution(model: Any, group: WorkerGroup, notices: list[str]) -> None:
    """Switch off settings that do not work with collective operations."""
    if group.size == 1:
        return
    if model.jit_compile:  # with GPUs also by Keras's "auto"
        notices.append("jit_compile=True was switched off: XLA cannot compile what workers exchange within a step.")
        model.jit_compile = False
    if model.run_eagerly:
        notices.append("run_eagerly=True was switched off: several workers trained.")
        model.run_eagerly = False


def build(
    model: keras.Model,
    data: TrainingData,
    has_call: bool,
    adapted: bytes | None = None,
    initial_weights: tuple[str, str] | None = None,
) -> None:
    """Create the variables of a compiled model, its metrics, loss and optimizer, and set their initial values.

    If the model takes only that, `data` has the only input by name from now on. `has_call` is whether the model defines
    ``call``, `adapted` the state of preprocessing layers, `initial_weights` name and path of a file to start from.
    """
    try:
        _create_variables(model, data, has_call)
    except Exception:
        if not data.names_inputs():
            raise
        _create_variables(model, data, has_call)
    if adapted:
        adapt.load_variables(model, adapted)
    if initial_weights:
        _load_weights(model, *initial_weights)


def _create_variables(model: keras.Model, data: TrainingData, has_call: bool) -> None:
    """Create them as ``Model.fit`` does first, or by steps of the model's own.

    A loss that only ``train_step`` calls need not fit labels and outputs. A ``test_step`` is traced too, so that its
    errors come before the training.
    """
    own = {name for name in ("train_step", "test_step") if _defines(model, name)}
    is_built = False
    if has_call:
        with contextlib.suppress(Exception) if own else contextlib.nullcontext():
            privates.symbolic_build(model, data.element_spec())
            is_built = True
    if not is_built:
        _trace(model.train_step, data)
    if data.validation.total and "test_step" in own:
        _trace(model.test_step, data)
    elif data.validation.total and not is_built:
        _check_default_test_step(model, data)
    model.built = True


def _check_default_test_step(model: keras.Model, data: TrainingData) -> None:
    try:
        _trace(model.test_step, data)
    except Exception as error:
        reason = str(error).strip().splitlines()[-1].strip()  # below the calls that led to it
        raise ModelError(
            "The model has a train_step of its own, but no test_step, and that of Keras fails on the validation rows. "
            f"Define test_step, or set neither validationSplit nor validationIndicatorCol. {reason}"
        ) from error


def _trace(step: Callable[[Any], Any], data: TrainingData) -> None:
    tf.function(step).get_concrete_function(data.element_spec())


def _defines(model: keras.Model, name: str) -> bool:
    """Whether the model has a method of its own in the place of Keras's."""
    return getattr(type(model), name) is not getattr(keras.Model, name)


def _load_weights(model: keras.Model, name: str, file: str) -> None:
    """Load only the weights of a file; Keras would also load the optimizer's state, including its learning rate.

    Keras goes by its name, which is not that of the path.
    """
    with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory:
        path = os.path.join(directory, name)
        os.symlink(file, path)
        optimizer, model.optimizer = model.optimizer, None
        try:
            model.load_weights(path)
        except ValueError as error:
            raise ModelError(f"initialWeights does not fit the model: {error}") from None
        finally:
            model.optimizer = optimizer
