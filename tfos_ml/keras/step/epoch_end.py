"""What all workers do with the model's variables at the end of an epoch, beside the metrics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.step.variables import digest, value_of

_TOLERANCE = 1e-3  # of a variable's norm; processors of different makes round differently


class LayerState:
    """State that is not trained by gradients, such as BatchNormalization's moving statistics, in one epoch.

    At its beginning, when this object is made, the state is the same on all workers; at its end, they get the
    row-weighted mean of their states. State that no worker has changed, such as frozen weights, is neither sent nor
    copied, and keeps its exact value.
    """

    def __init__(self, model: keras.Model, group: WorkerGroup):
        self._group = group
        self._variables = [v for v in model.non_trainable_variables if "float" in v.dtype] if group.size > 1 else []
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


def all_check_equal(model: Any, group: WorkerGroup, epoch: int) -> None:
    """Raise ``ModelError`` if weights differ between workers after an epoch, counted from 0.

    All workers must call this together. Steps keep the weights alike; a callback may not.
    """
    variables = model.trainable_variables
    if group.size == 1 or not variables:
        return
    norms = np.array([tf.norm(tf.cast(v.value, tf.float32)) for v in variables], np.float64)
    largest, smallest = np.split(group.all_max(np.concatenate([norms, -norms])), [len(norms)])
    off = np.flatnonzero(largest + smallest > _TOLERANCE * largest)
    if len(off):
        raise ModelError(
            f"The workers have different weights after epoch {epoch + 1}: {[variables[i].path for i in off[:3]]}, "
            f"{len(off)} of {len(norms)} variables. A callback has changed them on each worker in another way, for "
            "instance with random numbers without a seed, or on the chief only. It must change them alike on all "
            "workers: remove chief_only, and draw with a seed"
        )
