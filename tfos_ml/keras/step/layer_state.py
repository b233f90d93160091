"""Averages the state of layers that gradients do not train over the workers."""

from __future__ import annotations

import keras
import numpy as np

from tfos_ml.keras.collectives.group import Array, WorkerGroup


class LayerState:
    """State that is not trained by gradients, such as BatchNormalization's moving statistics.

    At the end of an epoch, all workers get the row-weighted mean of their states. State that no worker has changed is
    not averaged, so that it keeps its exact value.
    """

    def __init__(self, model: keras.Model, group: WorkerGroup):
        self._group = group
        self._variables = [v for v in model.non_trainable_variables if "float" in v.dtype] if group.size > 1 else []
        self._before: list[Array] = []

    def begin(self) -> None:
        """Record the state at the beginning of an epoch, when it is the same on all workers."""
        self._before = [np.asarray(v) for v in self._variables]

    def bring_together(self, weight: float) -> None:
        """Give all workers the mean of their states."""
        if not self._variables:
            return
        changes = [
            (np.asarray(v, np.float64) - before) * weight
            for v, before in zip(self._variables, self._before, strict=True)
        ]
        for variable, before, change in zip(
            self._variables, self._before, self._group.sum_arrays(changes), strict=True
        ):
            variable.assign((before + change).astype(before.dtype))
