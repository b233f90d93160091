"""The state on which the rest of a training depends: what it is, how it becomes files, and how it is restored."""

from __future__ import annotations

import io
import json
import random
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tfos_ml.data.schema import Array
from tfos_ml.errors import ModelError
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.privates import keep_saving_skipsets, with_unmerged_adapters
from tfos_ml.keras.step.variables import TrainingVariables, digest, value_of

STATE, ARRAYS, CALLBACKS, WEIGHTS = "state.json", "arrays.npz", "callbacks.pkl", "model.weights.h5"


@dataclass
class TrainingState:
    """Everything that the rest of a training depends on, but for the variables in the file of weights."""

    epoch: int  # number of completed epochs
    step: int  # number of completed steps of the next epoch
    stopped: bool  # whether a callback has ended the training
    history: list[dict[str, float]]  # logs of each epoch
    elapsed: float  # seconds of the next epoch
    identity: str  # fingerprint of the model and its settings
    random: dict[str, Any]  # states of the generators of Python and NumPy
    digest: int  # of the variables
    seeds: list[Array] = field(default_factory=list)  # states of Keras's seed generators
    metrics: list[Array] = field(default_factory=list)  # their states after these steps, for all rows
    variables: list[Array] = field(default_factory=list)  # those that the file of weights lacks
    callbacks: bytes = b""  # their states, pickled

    def to_files(self) -> dict[str, bytes]:
        """Contents of files by name: lists of arrays are in one, callbacks in another, and all else in the first."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        lists = {name: values.pop(name) for name in ("seeds", "metrics", "variables")}
        files = {CALLBACKS: callbacks} if (callbacks := values.pop("callbacks")) else {}
        arrays = io.BytesIO()
        np.savez(arrays, **{f"{name}-{i}": array for name, parts in lists.items() for i, array in enumerate(parts)})
        return {STATE: json.dumps(values, indent=1).encode(), ARRAYS: arrays.getvalue(), **files}

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> TrainingState:
        """The reverse of :meth:`to_files`."""
        values = {**json.loads(files[STATE]), "seeds": [], "metrics": [], "variables": []}
        with np.load(io.BytesIO(files[ARRAYS]), allow_pickle=False) as arrays:
            for name in arrays.files:
                values[name.partition("-")[0]].append(arrays[name])
        return cls(**values, callbacks=files.get(CALLBACKS, b""))


def assign_all(variables: Sequence[Any], arrays: Sequence[Array]) -> None:
    """Set variables to arrays, in order."""
    if [tuple(v.shape) for v in variables] != [a.shape for a in arrays]:
        raise ModelError("The checkpoint in modelDir is of another model. Choose another modelDir.")
    for variable, array in zip(variables, arrays, strict=True):
        is_void = array.dtype.kind == "V"  # what npz makes of bfloat16
        variable.assign(array.view(value_of(variable).dtype) if is_void else array)


def broadcast_variables(variables: TrainingVariables, group: WorkerGroup, is_chief: bool) -> None:
    """Give all workers the chief's variables, and the states of its seed generators, where they have others.

    All workers call it once the model is built, when most are alike, and after the chief has loaded a checkpoint.
    """
    everything = [*variables.shared, *variables.seeds]
    own = np.array([digest([variable]) for variable in everything], np.float64)
    for place in np.flatnonzero(group.all_max(own) != -group.all_max(-own)):
        variable = everything[place]
        (value,) = group.broadcast_arrays([value_of(variable)], is_chief)
        if not is_chief:
            variable.assign(value)


def random_state() -> dict[str, Any]:
    """State of Python's and NumPy's global random generators, as JSON has it."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {"python": random.getstate(), "numpy": [name, np.asarray(keys).tolist(), *rest]}


def set_random_state(state: dict[str, Any]) -> None:
    """The reverse of :func:`random_state`."""
    version, numbers, spare = state["python"]
    random.setstate((version, tuple(numbers), spare))
    np.random.set_state(tuple(state["numpy"]))


def save_weights(variables: TrainingVariables, path: Path) -> list[Array]:
    """Save weights and optimizers as ``Model.save_weights`` does; returns the values of variables that it leaves out.

    A kernel with LoRA is saved without the product of LoRA's matrices, which are among the values returned.
    """
    with with_unmerged_adapters(variables.model):
        variables.model.save_weights(str(path))
    keep_saving_skipsets()
    return [np.array(v) for v in _left_out(variables, path)]


def _left_out(variables: TrainingVariables, path: Path) -> list[Any]:
    """Variables that a file of Keras's lacks, such as those that a layer hides from Keras.

    Names do not tell. If the file has fewer arrays of some shape and size than the model, all of these count.
    """
    saved: Counter[Any] = Counter()

    def note(name: str, entry: Any) -> None:
        if isinstance(entry, h5py.Dataset):
            saved[entry.shape, entry.dtype.itemsize] += 1

    with h5py.File(path) as file:
        file.visititems(note)
    kinds = [(array.shape, array.dtype.itemsize) for array in map(value_of, variables.shared)]
    missing = Counter(kinds) - saved
    return [variable for variable, kind in zip(variables.shared, kinds, strict=True) if kind in missing]


def load_weights(variables: TrainingVariables, path: Path, left_out: Sequence[Array], expected: int) -> None:
    """Set the variables to those of a file of Keras's, and to the values that :func:`save_weights` has returned.

    Raises ``ModelError`` if they then have another digest.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            variables.model.load_weights(str(path))
        except ValueError as error:
            raise ModelError(f"The checkpoint in modelDir is of another model: {error}") from None
    assign_all(_left_out(variables, path), left_out)
    if digest(variables.shared) != expected:
        raise ModelError(
            "The checkpoint in modelDir does not restore all variables of the model, because a layer's "
            "save_own_variables() or load_own_variables() leaves some out. Save all of them."
        )
