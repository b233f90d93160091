"""Checks that all workers still have the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras.collectives.group import WorkerGroup

_TOLERANCE = 1e-3  # of a variable's norm; processors of different makes round differently


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
