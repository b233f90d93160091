"""Takes the state of a training between two steps, and restores it."""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfos_ml.errors import ModelError
from tfos_ml.keras.collectives.group import Array, WorkerGroup
from tfos_ml.keras.step.variables import TrainingVariables


def assign_all(variables: Sequence[Any], arrays: Sequence[Array]) -> None:
    """Set variables to arrays, in order."""
    if [tuple(v.shape) for v in variables] != [a.shape for a in arrays]:
        raise ModelError("The checkpoint in modelDir is of another model. Choose another modelDir.")
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def start_alike(variables: TrainingVariables, group: WorkerGroup, is_chief: bool) -> None:
    """Give all workers the chief's variables, and the states of its seed generators."""
    everything = [*variables.shared, *variables.seeds]
    arrays = group.broadcast_arrays([np.asarray(v) for v in everything], is_chief)
    if not is_chief:
        assign_all(everything, arrays)


def random_state() -> dict[str, Any]:
    """State of Python's and NumPy's global random generators."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def set_random_state(state: dict[str, Any]) -> None:
    """The reverse of :func:`random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def load_weights(variables: TrainingVariables, path: Path, arrays: Sequence[Array], expected: int) -> None:
    """Set the variables to those of a file of Keras's, or to `arrays`, if given.

    Raises ``ModelError`` if they then have another digest.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            variables.model.load_weights(str(path))
        except ValueError as error:
            raise ModelError(f"The checkpoint in modelDir is of another model: {error}") from None
    if arrays:
        assign_all(variables.shared, arrays)
    if digest([np.asarray(variable) for variable in variables.shared]) != expected:
        raise ModelError(
            "The checkpoint in modelDir does not restore all variables of the model, because a layer's "
            "save_own_variables() or load_own_variables() leaves some out. Save all of them."
        )


def digest(arrays: Sequence[Array]) -> int:
    """A checksum of arrays."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, found)
    return found
