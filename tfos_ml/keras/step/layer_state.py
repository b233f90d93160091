"""Averages the state of layers that gradients do not train over the workers."""

from __future__ import annotations

import keras
import numpy as np

from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.step.variables import digest, value_of


class LayerState:
    """State that is not trained by gradients, such as BatchNormalization's moving statistics.

    At the end of an epoch, all workers get the row-weighted mean of their states. State that no worker has changed,
    such as frozen weights, is neither sent nor copied, and keeps its exact value.
    """

    def __init__(self, model: keras.Model, group: WorkerGroup):
        self._group = group
        self._variables = [v for v in model.non_trainable_variables if "float" in v.dtype] if group.size > 1 else []
        self._before: list[int] = []

    def begin(self) -> None:
        """Note the state at the beginning of an epoch, when it is the same on all workers."""
        self._before = self._checksums()

    def all_mean(self, weight: float) -> None:
        """Give all workers the mean of their states; all call it after the last step of an epoch."""
        if not self._variables:  # on no worker
            return
        has_changed = np.not_equal(self._checksums(), self._before)
        places = np.flatnonzero(self._group.all_max(has_changed.astype(np.int32)))
        changed = [self._variables[i] for i in places]
        means = self._group.all_sum([value_of(v).astype(np.float64) * weight for v in changed])
        for variable, mean in zip(changed, means, strict=True):
            variable.assign(mean)

    def _checksums(self) -> list[int]:
        return [digest([variable]) for variable in self._variables]
