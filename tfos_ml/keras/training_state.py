"""Takes the state of a training between two steps, and restores it."""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfos_ml.errors import ModelError
from tfos_ml.keras.worker_group import Array, WorkerGroup
from tfos_ml.worker import keras_privates


def split_variables(model: keras.Model) -> tuple[list[Any], list[Any]]:
    """The variables of a model and its optimizers, and the states of Keras's seed generators."""
    variables = [*model.variables, *(v for o in keras_privates.optimizers(model) for v in o.variables)]
    seeds = keras_privates.seed_states(model)
    shared = [v for v in variables if all(v is not seed for seed in seeds)]
    return shared, [*seeds, keras_privates.global_seed_state()]


def assign_all(variables: Sequence[Any], arrays: Sequence[Array]) -> None:
    """Set variables to arrays, in order."""
    if [tuple(v.shape) for v in variables] != [a.shape for a in arrays]:
        raise ModelError("The checkpoint in modelDir is of another model. Choose another modelDir.")
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def start_alike(model: keras.Model, group: WorkerGroup, is_chief: bool) -> None:
    """Give all workers the chief's variables, and the states of its seed generators."""
    shared, seeds = split_variables(model)
    arrays = group.broadcast_arrays([np.asarray(v) for v in [*shared, *seeds]], is_chief)
    if not is_chief:
        assign_all([*shared, *seeds], arrays)


def random_state() -> dict[str, Any]:
    """State of Python's and NumPy's global random generators."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def set_random_state(state: dict[str, Any]) -> None:
    """The reverse of :func:`random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def optimizer_scalars(model: keras.Model) -> list[Any]:
    """Variables of the optimizers that are single numbers, such as the learning rate."""
    return [v for o in keras_privates.optimizers(model) for v in o.variables if not v.shape]


def load_weights(model: keras.Model, path: Path, variables: Sequence[Array], expected: int) -> None:
    """Set the variables of a model and its optimizers to those of a file of Keras's, or to `variables`, if given.

    Raises ``ModelError`` if they then have another digest.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.load_weights(str(path))
        except ValueError as error:
            raise ModelError(f"The checkpoint in modelDir is of another model: {error}") from None
    if variables:
        assign_all(split_variables(model)[0], variables)
    if digest_of(model) != expected:
        raise ModelError(
            "The checkpoint in modelDir does not restore all variables of the model, because a layer's "
            "save_own_variables() or load_own_variables() leaves some out. Save all of them."
        )


def digest_of(model: keras.Model) -> int:
    """The :func:`digest` of the variables of a model and its optimizers."""
    return digest([np.asarray(variable) for variable in split_variables(model)[0]])


def digest(arrays: Sequence[Array]) -> int:
    """A checksum of arrays."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, found)
    return found
