"""BatchNormalization over the rows of all workers: mean and variance of the whole step, forward and backward.

Each worker computes the moments of its own rows. Their sums over workers, weighted by the number of values, are the
moments of all rows (in float64, because a variance is a difference of two sums). In the backward pass, the gradients
with respect to the global moments are summed over workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfos_ml.keras.collectives.group import WorkerGroup


class StepWeights(NamedTuple):
    """The weights of one worker in one step, for one call of a layer.

    `rows` is 1.0 if the worker has rows in the step, else 0.0. `loss` is the factor of its loss in the step's loss.
    `name` names the call, and is the same on all workers.
    """

    rows: tf.Tensor
    loss: tf.Tensor
    name: str


def is_batch_normalization(layer: Any) -> bool:
    """Whether the layer normalizes with the statistics of a batch."""
    return isinstance(layer, keras.layers.BatchNormalization)


def global_moments(
    layer: Any, plain: Callable[..., Any], group: WorkerGroup, weights: Callable[[], StepWeights | None]
) -> Callable[..., Any]:
    """``_moments`` of a BatchNormalization, of the rows of all workers; as `plain` where `weights` are None."""

    def moments(inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = plain(inputs, mask)
        step = weights()
        if step is None:
            return mean, variance
        values = _count(layer, inputs, mask) * tf.cast(step.rows, tf.float64)
        return _over_workers(mean, variance, values, step, group)

    return moments


def _count(layer: Any, inputs: Any, mask: Any) -> tf.Tensor:
    """The number of values per channel."""
    if mask is not None:
        return tf.reduce_sum(tf.cast(mask, tf.float64))
    channels = tf.shape(inputs, out_type=tf.int64)[layer.axis]
    return tf.cast(tf.size(inputs, out_type=tf.int64) // channels, tf.float64)


def _over_workers(mean: Any, variance: Any, count: tf.Tensor, step: StepWeights, group: WorkerGroup) -> Any:
    shape, loss_weight = mean.shape, step.loss

    @tf.custom_gradient
    def combine(mean: tf.Tensor, variance: tf.Tensor) -> Any:
        own_mean, own_variance = (tf.reshape(tf.cast(t, tf.float64), [-1]) for t in (mean, variance))
        sums = tf.concat([[count], count * own_mean, count * (own_variance + own_mean**2)], 0)
        # All workers, in the order in which the model calls its layers; backward in the reverse order.
        sums = group.all_reduce(tf.ensure_shape(_finite(sums, count), [1 + 2 * shape.num_elements()]), step.name)
        all_mean, squares = tf.split(sums[1:] / sums[0], 2)
        all_variance = tf.maximum(squares - all_mean**2, 0)
        part = tf.math.divide_no_nan(count / sums[0], tf.cast(loss_weight, tf.float64))

        def backward(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            flat = tf.concat([tf.reshape(of_mean, [-1]), tf.reshape(of_variance, [-1])], 0)
            weighted = _finite(tf.cast(flat, tf.float64) * tf.cast(loss_weight, tf.float64), count)
            total = group.all_reduce(tf.ensure_shape(weighted, [2 * shape.num_elements()]), f"{step.name}-gradient")
            by_mean, by_variance = tf.split(total, 2)
            by_mean = part * (by_mean + 2 * (own_mean - all_mean) * by_variance)
            return _like(by_mean, mean), _like(part * by_variance, variance)

        return (_like(all_mean, mean), _like(all_variance, variance)), backward

    return combine(mean, variance)


def _finite(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The value, or zeros if the worker has no rows."""
    return tf.where(count > 0, values, tf.zeros_like(values))


def _like(values: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.cast(values, other.dtype), other.shape)
