"""Takes the state of a training between two steps, and restores it."""

from __future__ import annotations

import random
import warnings
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
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


def save_weights(model: keras.Model, path: Path) -> list[Array]:
    """Save variables of a model and its optimizers as Keras does; returns all of them if the file lacks some.

    Keras saves what it finds among the attributes of layers; a model may hide some from it.
    """
    model.save_weights(str(path))
    shared = [np.asarray(v) for v in split_variables(model)[0]]
    return [] if not Counter(a.shape for a in shared) - _shapes(path) else shared


def _shapes(path: Path) -> Counter[tuple[int, ...]]:
    """How many arrays of each shape a file has."""
    shapes: Counter[tuple[int, ...]] = Counter()
    with h5py.File(path) as file:
        file.visititems(lambda _, entry: shapes.update([entry.shape] if isinstance(entry, h5py.Dataset) else []))
    return shapes


def load_weights(model: keras.Model, path: Path, variables: Sequence[Array], digest: int) -> None:
    """The reverse of :func:`save_weights`; raises ``ModelError`` if variables differ from those with a digest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.load_weights(str(path))
        except ValueError as error:
            raise ModelError(f"The checkpoint in modelDir is of another model: {error}") from None
    if variables:
        assign_all(split_variables(model)[0], variables)
    if digest_of(model) != digest:
        raise ModelError(
            "The checkpoint in modelDir does not restore all variables of the model, because a layer's "
            "save_own_variables() or load_own_variables() leaves some out. Save all of them."
        )


def digest_of(model: keras.Model) -> int:
    """A checksum of the variables of a model and its optimizers."""
    digest = 0
    for variable in split_variables(model)[0]:
        digest = zlib.crc32(np.ascontiguousarray(np.asarray(variable)).view(np.uint8).data, digest)
    return digest
