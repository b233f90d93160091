"""Creates all variables of a model before its training, and sets their initial values."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.keras.model import adapt

if TYPE_CHECKING:
    from tfos_ml.keras.training_data import TrainingData


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
    is_built = has_call and _build_from_call(model, data, can_fail=bool(own))
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


def _build_from_call(model: keras.Model, data: TrainingData, can_fail: bool) -> bool:
    """Call the model, its loss and its metrics on symbols; returns whether they can be called."""
    try:
        privates.symbolic_build(model, data.element_spec())
    except Exception:
        if not can_fail:
            raise
        return False
    return True


def _load_weights(model: keras.Model, name: str, file: str) -> None:
    """Load only the weights of a file; Keras would also load the optimizer's state, including its learning rate.

    Keras goes by its name, which is not that of the path.
    """
    before = [tf.convert_to_tensor(v) for v in model.optimizer.variables]
    with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        path = os.path.join(directory, name)
        os.symlink(file, path)
        try:
            model.load_weights(path)
        except ValueError as error:
            raise ModelError(f"initialWeights does not fit the model: {error}") from None
    for variable, value in zip(model.optimizer.variables, before, strict=True):
        variable.assign(value)
