"""Checks that a model's weights are finite. NaN before a ReLU leaves the loss finite, but makes the model useless."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfos_ml.errors import NonFiniteTrainingError


class WeightWatch:
    """Looks for NaN and infinity in the weights of a built model.

    Weights that gradients do not train, and that are not finite at the start (a mask, say), may stay so.
    """

    def __init__(self, model: Any):
        trained = {id(v) for v in model.trainable_variables}
        floating = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
        self._weights = [v for v in floating if id(v) in trained or np.isfinite(np.asarray(v, np.float32)).all()]
        self._all_finite = tf.function(
            lambda: tf.stack([tf.reduce_all(tf.math.is_finite(v.value)) for v in self._weights]), autograph=False
        )

    def check(self, epoch: int) -> None:
        """Raise ``NonFiniteTrainingError`` if weights are not finite after an epoch, counted from 0."""
        if not self._weights:
            return
        bad = np.flatnonzero(~self._all_finite().numpy())
        if not len(bad):
            return
        first = self._weights[bad[0]]
        values = np.asarray(first, np.float64)
        raise NonFiniteTrainingError(
            f"weights of the model are not finite after epoch {epoch + 1}: {first.path} has "
            f"{np.count_nonzero(~np.isfinite(values))} of {values.size} values that are NaN or infinite"
            + (f", and so have {len(bad) - 1} more of {len(self._weights)} variables" if len(bad) > 1 else "")
            + ", although the loss is finite. Look for NaN or infinity in the rows (handleInvalid='error'), and for "
            "divisions by zero, logarithms of 0 and the like in the model; lower the learning rate or clip gradients"
        )
