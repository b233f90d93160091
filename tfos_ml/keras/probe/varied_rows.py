"""Chooses rows that differ, on which a step is tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfos_ml.data.row_order import Int64s
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.training_data import TrainingData, as_tensors
from tfos_ml.worker.row_store import spread


def gather_varied_rows(data: TrainingData, rows: int, group: WorkerGroup) -> Any:
    """At most `rows` training rows that differ, of several workers, as a batch; see :func:`varied`.

    All workers must call this together.
    """
    own = _varied_rows(data.spread(), rows)
    parts = [_of_worker(own, group, rank) for rank in spread(group.size, rows)]
    return as_tensors(_varied_rows(tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts), rows))


def _varied_rows(element: Any, count: int) -> Any:
    at = varied(element, count)
    return tf.nest.map_structure(lambda values: values[at], element)


def _of_worker(element: Any, group: WorkerGroup, rank: int) -> Any:
    """The element of one worker, on all workers; it has the same structure on each."""
    arrays = tf.nest.flatten(element)
    packed = tf.stack([tf.io.serialize_tensor(tf.constant(values)) for values in arrays])
    data = group.broadcast_bytes(tf.io.serialize_tensor(packed).numpy(), group.rank == rank)
    sent = zip(tf.unstack(tf.io.parse_tensor(data, tf.string)), arrays, strict=True)
    return tf.nest.pack_sequence_as(element, [tf.io.parse_tensor(s, tf.constant(a).dtype).numpy() for s, a in sent])


def varied(element: Any, count: int) -> Int64s:
    """Positions of at most `count` rows of a batch, from those with the most zeros to those with the fewest.

    A loss that is divided by the number of tokens, or of positive labels, looks like a mean over rows if all rows have
    the same number of them. So zeros in labels count first, then those in weights and inputs, then the size of labels.

    Parameters
    ----------
    element : nested structure of numpy.ndarray
        Inputs, labels and weights, as ``fit`` takes them.
    count : int
        How many rows.

    Returns
    -------
    numpy.ndarray
        Positions, int64, shape ``(rows,)``.
    """
    x, y, weights = keras.utils.unpack_x_y_sample_weight(element)
    rows = len(tf.nest.flatten(element)[0])
    keys = [sum(_by_row(part, np.not_equal), np.zeros(rows)) for part in (y, weights, x)]
    keys.append(sum(_by_row(y, np.subtract), np.zeros(rows)))
    order = np.lexsort(keys[::-1])
    if rows <= count:
        return order
    edge = 3 * count // 8  # three rare rows: dividing by one positive label would change nothing
    between = order[edge : rows - edge]
    return np.concatenate([order[:edge], between[spread(len(between), count - 2 * edge)], order[rows - edge :]])


def _by_row(part: Any, from_zero: np.ufunc) -> Iterator[Any]:
    """For each array of numbers: how many of its values are not zero, or their sum, by row."""
    for values in tf.nest.flatten(part):
        if values is not None and values.dtype.kind in "biuf":
            axes = tuple(range(1, values.ndim))
            yield from_zero(values.astype(np.float64), 0).sum(axis=axes)
