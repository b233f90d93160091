"""Combines the loss of the global batch from the terms that each worker computes from its own rows.

Gradients of workers are summed with their *share* as weight, the part of a step's rows that a worker has. That is exact
for terms that are means over rows. The other terms:

- Losses with another denominator (``"sum"``, ``"mean_with_sample_weight"``, masks) are divided by the denominator of
  all workers.
- Terms that are sums over rows, such as ``add_loss(reduce_sum(x))`` or a loss function that returns a sum, are divided
  by the share. :mod:`tfos_ml.keras.probe.plan` finds these terms before the first step.
- A loss over all rows together, such as Dice or a contrastive loss, is computed by each worker from the outputs of all
  workers; its gradient flows back to the worker's own outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfos_ml.keras import privates
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.step.random_draws import RowsOfStep

OUTPUT_LOSS = "loss-"  # prefix of the terms that are losses of outputs


class LossTerms:
    """Makes the losses of a compiled model those of the global batch, within :meth:`replaced`.

    While a step is traced, `share` returns this worker's share of the rows, and `rows` their places in the step;
    otherwise `share` returns None. `sums` names the terms that are sums over rows, `together` those that need all rows
    together. ``values`` has the value of each term in the last step, unscaled.
    """

    def __init__(
        self,
        model: keras.Model,
        group: WorkerGroup,
        share: Callable[[], tf.Tensor | None],
        rows: Callable[[], RowsOfStep],
        sums: Collection[str],
        together: Collection[str],
    ):
        self._model, self._group, self._share, self._rows = model, group, share, rows
        self._sums, self._together = frozenset(sums), frozenset(together)
        self.values: dict[str, Any] = {}

    def replaced(self) -> AbstractContextManager[None]:
        """Replace the losses of the model's outputs."""
        return privates.replaced_losses(self._model, lambda loss, i: self._global(loss, f"{OUTPUT_LOSS}{i}"))

    def added(self, loss: Any) -> Any:
        """A total loss whose ``add_loss`` terms are those of the global batch."""
        share = self._share()
        if share is None or loss is None:
            return loss
        for i, term in enumerate(self._model.losses):
            name, value = f"added-{i}", tf.reduce_sum(tf.cast(term, loss.dtype))
            scaled = self._scaled(name, value)
            if name in self._sums:
                loss += scaled - value
        return loss

    def _scaled(self, name: str, value: Any) -> Any:
        """Scale a term so that its share-weighted mean over workers is the term of all rows."""
        share = self._share()
        self.values[name] = value
        return value / tf.cast(share, value.dtype) if name in self._sums and share is not None else value

    def _global(self, loss: Any, name: str) -> Callable[..., Any]:
        def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            if self._share() is None:
                return loss(y_true, y_pred, sample_weight)
            if name in self._together:
                return self._of_all_rows(loss, name, y_true, y_pred, sample_weight)
            return self._scaled(name, self._reduced(loss, name, y_true, y_pred, sample_weight))

        return call

    def _of_all_rows(self, loss: Any, name: str, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        """A loss that every worker computes from the outputs of all workers."""
        share, rows = self._share(), self._rows()
        assert share is not None
        labels, outputs, weights = (
            None if part is None else self._outputs_of_all(part, rows, share, f"{name}-{number}")
            for number, part in enumerate((y_true, y_pred, sample_weight))
        )
        return self._scaled(name, tf.convert_to_tensor(loss(labels, outputs, weights)))

    def _outputs_of_all(self, own: Any, rows: RowsOfStep, share: tf.Tensor, name: str) -> tf.Tensor:
        """The workers' values for their rows, ordered by the rows' places, shape ``(rows of all, ...)``."""
        group = self._group

        @tf.custom_gradient
        def of_all(own: tf.Tensor) -> Any:
            counting = tf.where(share > 0, own, tf.zeros_like(own))
            shape = tf.concat([[rows.total], tf.shape(own, out_type=tf.int64)[1:]], 0)
            placed = tf.ensure_shape(tf.scatter_nd(rows.places[:, None], counting, shape), [None, *own.shape[1:]])

            def backward(gradient: tf.Tensor) -> tf.Tensor:
                return tf.math.divide_no_nan(tf.gather(gradient, rows.places), tf.cast(share, gradient.dtype))

            # Outside of all branches by rows, so all workers exchange, in the order of the model's losses.
            return group.all_reduce(placed, name), backward

        own = tf.convert_to_tensor(own)
        return of_all(tf.cast(own, tf.int32) if own.dtype == tf.bool else own)

    def _reduced(self, loss: Any, name: str, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        """A loss with the denominator of all workers, if Keras reduces its values by another one than the rows."""
        with privates.noted_reductions() as reductions:
            plain = tf.convert_to_tensor(loss(y_true, y_pred, sample_weight))
        last = reductions[-1] if reductions else None  # those before belong to losses that this one calls
        if last is None or last.result is not plain or last.values.shape.rank == 0:  # only a try of a step can show how
            return plain
        weight = last.sample_weight if last.reduction == "mean_with_sample_weight" else None
        if last.reduction != "sum" and last.mask is None and weight is None:
            return plain
        share, total = self._share(), last.again(last.values, last.sample_weight, "sum", last.dtype)
        assert share is not None
        if last.reduction == "sum":
            return total / tf.cast(share, total.dtype)
        ones = tf.ones_like(last.values, tf.float64)  # which counts beyond 2**24
        sum_of_ones, mean_of_ones = (last.again(ones, weight, how, "float64") for how in ("sum", last.reduction))
        here = tf.where(share > 0, tf.math.divide_no_nan(sum_of_ones, mean_of_ones), 0.0)
        # Outside of all branches by rows, so all workers exchange, in the order of the model's losses.
        denominator = self._group.all_reduce(tf.reshape(here, [1]), name)[0]
        return tf.math.divide_no_nan(total, tf.cast(denominator * share, total.dtype))
