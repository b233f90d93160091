"""Saves the variables of a model as ``Model.save_weights`` does, but mostly in a thread.

Keras takes 15 ms for a small model, most of it to look through the attributes of layers. So the first file is Keras's
own. Later ones are the same file with new values: a dataset belongs to the variable that had its value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tfos_ml.keras.collectives.group import Array
from tfos_ml.keras.step.variables import TrainingVariables


class WeightsFile:
    """A file with the variables of a model and its optimizers, which is written again and again.

    ``is_complete`` is whether it has all of them; Keras may not find those that a layer hides.
    """

    def __init__(self, variables: TrainingVariables, path: Path):
        self._variables, self._path = variables, path
        self._places: list[tuple[list[str], list[int]]] | None = None  # datasets, and positions of their variables
        self.is_complete = True

    def take(self) -> tuple[list[Array], Callable[[], None]]:
        """Copies of the variables, and a function that writes them to the file, for any thread."""
        arrays = [np.array(np.asarray(variable)) for variable in self._variables.shared]
        if self._places is not None and all(_are_equal([arrays[i] for i in where]) for _, where in self._places):
            return arrays, lambda: self._write(arrays)
        self._variables.model.save_weights(str(self._path))
        self._places = self._learn(arrays)
        return arrays, lambda: None

    def _learn(self, arrays: list[Array]) -> list[tuple[list[str], list[int]]] | None:
        """Which datasets have which variables; several together if they are equal now. None if that is not known."""
        datasets: dict[Hashable, list[str]] = defaultdict(list)
        variables: dict[Hashable, list[int]] = defaultdict(list)

        def note(name: str, entry: Any) -> None:
            if isinstance(entry, h5py.Dataset):
                datasets[_content(entry[()])].append(name)

        with h5py.File(self._path) as file:
            file.visititems(note)
        for i, array in enumerate(arrays):
            variables[_content(array)].append(i)
        self.is_complete = all(len(datasets[key]) >= len(where) for key, where in variables.items())
        if not all(len(names) == len(variables[key]) for key, names in datasets.items()):
            return None
        return [(names, variables[key]) for key, names in datasets.items()]

    def _write(self, arrays: list[Array]) -> None:
        assert self._places is not None
        with h5py.File(self._path, "r+") as file:
            for names, where in self._places:
                for name, i in zip(names, where, strict=True):
                    dataset = file[name]
                    dataset[...] = arrays[i] if arrays[i].dtype == dataset.dtype else arrays[i].view(dataset.dtype)


def _content(array: Any) -> Hashable:
    return np.shape(array), np.asarray(array).dtype.itemsize, np.ascontiguousarray(array).tobytes()


def _are_equal(arrays: list[Array]) -> bool:
    return len(arrays) == 1 or len({array.tobytes() for array in arrays}) == 1
