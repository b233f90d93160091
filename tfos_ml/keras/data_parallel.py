"""Exact data parallelism: each worker's Keras model takes its share of a global-batch step.

Every worker runs ``Model.fit`` on its own rows of each step. What makes the result the same
for any number of workers:

- ``train_step`` and ``test_step`` are wrapped: the wrapper counts the rows, works out this
  worker's *share* of the global batch, and leaves the pass out where there is no row.
- ``optimizer.apply`` first sums share-weighted gradients over the workers, so that clipping,
  accumulation, loss scaling and weight averaging see the gradient of the global batch.
- A loss that is a mean over rows needs no more. One with another denominator (``"sum"``,
  ``"mean_with_sample_weight"``, masks) is divided by the denominator of all workers.
- Up to Keras 3.12 the activity regularizer of a layer adds a sum over rows, which is divided by
  the share; later Keras divides it by the rows, and it needs no more.

All wrappers are attributes of instances; :meth:`DataParallel.close` takes them off again, and
no class is changed, so what the model saves meanwhile is plain Keras.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
import wrapt

from tfos_ml.errors import ModelError
from tfos_ml.keras.collectives import WorkerGroup
from tfos_ml.worker import keras_privates

NO_STEP = -1
_MEAN_OF_ROWS = ("sum_over_batch_size", "mean")


class Stage:
    """Counts the steps of one pass, and knows how many rows all workers have in each."""

    def __init__(self, name: str, total: int, batch_size: int):
        self.name = name
        self.total = total
        self.batch_size = batch_size
        self.next_step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def rewind(self) -> None:
        """Begin a new pass."""
        self.next_step.assign(0)

    def advance(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Number of the step that begins, and the rows all workers have in it."""
        step = self.next_step.assign_add(1) - 1
        return step, tf.minimum(tf.constant(self.batch_size, tf.int64), self.total - step * self.batch_size)


class DataParallel:
    """Makes a built, compiled model train in step with those of the other workers; it is wrapped until :meth:`close`.

    ``bad_step`` is the first step of the pass in which this worker's own loss was not finite; -1 if none.
    ``tracing_seconds`` is how long TensorFlow has traced training steps.
    """

    def __init__(self, model: keras.Model, group: WorkerGroup, train: Stage, test: Stage):
        self._model = model
        self._group = group
        self._share: tf.Tensor | None = None
        self._step: tf.Tensor | None = None
        self._gradients: list[Any] | None = None
        self._denominators: list[str] = []
        self._wrapped: list[tuple[Any, str]] = []
        self._plain_regularizers: list[tuple[keras.Layer, Any]] = []
        self._plain_losses: list[Any] | None = None
        self.bad_step = tf.Variable(NO_STEP, dtype=tf.int64, trainable=False)
        self.tracing_seconds = 0.0
        self._train, self._test = train, test
        self._wrap(model, "compute_loss", self._watching_loss(model.compute_loss))
        step = self._step_of(train, model.train_step)
        self._wrap(model, "train_step", step if model.run_eagerly else self._timed(step))
        if group.size > 1:
            self._wrap(model, "test_step", self._step_of(test, model.test_step))
            self._wrap(model.optimizer, "apply", self._reducing_apply(model.optimizer.apply))
            self._wrap_losses()
            self._wrap_activity_regularizers()

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name))

    def close(self) -> None:
        """Give the model back as it was."""
        for owner, name in self._wrapped:
            delattr(owner, name)
        self._wrapped.clear()
        for layer, regularizer in self._plain_regularizers:
            layer.activity_regularizer = regularizer
        if self._plain_losses is not None:
            keras_privates.set_losses_of_outputs(keras_privates.compiled_loss(self._model), self._plain_losses)
        self._model.make_train_function(force=True)
        self._model.make_test_function(force=True)

    # Steps

    def _timed(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The step, which runs as Python only where TensorFlow traces it."""

        def timed(data: Any) -> Any:
            began = time.monotonic()
            logs = step(data)
            self.tracing_seconds += time.monotonic() - began
            return logs

        return timed

    def _step_of(self, stage: Stage, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def step(data: Any) -> Any:
            number, total = stage.advance()
            self._step = number if stage is self._train else None
            if self._group.size == 1:
                return original(data)
            rows = _row_count(tf.nest.flatten(data)[0])
            self._share = tf.cast(rows, tf.float32) / tf.cast(total, tf.float32)
            self._gradients, self._denominators = None, []
            logs: list[Any] = []

            def work() -> Any:
                logs.append(original(data))
                return logs[0]

            # TensorFlow traces the first branch first, so the second knows what the first does.
            result = tf.cond(rows > 0, work, lambda: self._idle(logs[0]))
            self._share = None
            return result

        return step

    def _idle(self, logs: Any) -> Any:
        """A step without rows: join the others' reductions, and take over their update."""
        for name in list(self._denominators):
            self._group.all_reduce(tf.zeros([1], tf.float32), name)
        if self._gradients is not None:
            variables = [v for _, v in self._gradients]
            zeros = [_zero_gradient(g, v) for g, v in self._gradients]
            self._gradients = None
            self._model.optimizer.apply(zeros, variables)
        return tf.nest.map_structure(lambda value: tf.zeros(value.shape, value.dtype), logs)

    def _reducing_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            if self._share is None:
                raise ModelError("optimizer.apply() was called outside of train_step; only train_step may, once a step")
            if self._gradients is not None:
                raise ModelError(
                    "train_step called optimizer.apply() more than once. KerasEstimator trains models whose train_step "
                    "updates once a step; use TFEstimator with a training loop of your own for others."
                )
            grads = list(grads)
            variables = list(trainable_variables or keras_privates.optimizer_variables(self._model.optimizer))
            self._gradients = list(zip(grads, variables, strict=True))
            shapes = [tf.TensorShape(v.shape) for v in variables]
            return original(self._group.sum_gradients(grads, self._share, shapes), variables)

        return apply

    # Losses

    def _watching_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Notes the step in which the loss of this worker is not a finite number."""

        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            loss = original(*args, **kwargs)
            if kwargs.get("training", True) and self._step is not None and loss is not None:
                finite = tf.reduce_all(tf.math.is_finite(tf.cast(loss, tf.float32)))
                is_first = tf.logical_and(tf.logical_not(finite), self.bad_step < 0)
                self.bad_step.assign(tf.where(is_first, self._step, self.bad_step))
            return loss

        return compute_loss

    def _wrap_losses(self) -> None:
        compiled = keras_privates.compiled_loss(self._model)
        if compiled is None:
            return
        self._plain_losses = keras_privates.losses_of_outputs(compiled)
        in_step = [
            entry._replace(loss=self._global_loss(entry.loss, f"denominator-{i}"))
            for i, entry in enumerate(self._plain_losses)
        ]
        keras_privates.set_losses_of_outputs(compiled, in_step)
        for metric in compiled.metrics:  # means over steps, of the losses of several outputs
            self._wrap(metric, "update_state", self._share_weighted(metric.update_state))

    def _wrap_activity_regularizers(self) -> None:
        layers = [layer for layer in keras_privates.all_layers(self._model) if layer.activity_regularizer is not None]
        if not layers or not _activity_losses_are_sums():
            return
        self._plain_regularizers = [(layer, layer.activity_regularizer) for layer in layers]
        for layer in layers:
            layer.activity_regularizer = _SumOverWorkers(layer.activity_regularizer, lambda: self._share)

    def _share_weighted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update_state(value: Any, sample_weight: Any = None) -> Any:
            return original(value, sample_weight=self._share)

        return update_state

    def _global_loss(self, loss: Any, name: str) -> Callable[..., Any]:
        """The loss such that its share-weighted mean over the workers is that of the global batch."""

        def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            values: list[Any] = []
            plain = _capturing(loss, values)(y_true, y_pred, sample_weight)
            if self._share is None:
                return plain
            mask = _mask_of(y_pred, values[0])
            own_mean = loss.reduction in _MEAN_OF_ROWS and mask is None
            if own_mean or (loss.reduction == "mean_with_sample_weight" and mask is None and sample_weight is None):
                return plain
            total = _with_reduction(loss, "sum", y_true, y_pred, sample_weight)
            if loss.reduction == "sum":
                return total / tf.cast(self._share, total.dtype)
            weight = sample_weight if loss.reduction == "mean_with_sample_weight" else None
            here = _denominator(values[0], mask, weight)
            self._denominators.append(name)
            denominator = self._group.all_reduce(tf.reshape(here, [1]), name)[0]
            return tf.math.divide_no_nan(total, tf.cast(denominator * self._share, total.dtype))

        return call


class _SumOverWorkers(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A regularizer whose share-weighted sums over the workers are the sum over their rows; saved as the plain one."""

    def __init__(self, regularizer: Any, share: Callable[[], tf.Tensor | None]):
        super().__init__(regularizer)
        self._self_share = share

    def __call__(self, output: Any) -> Any:
        loss, share = self.__wrapped__(output), self._self_share()
        return loss if share is None else loss / tf.cast(share, loss.dtype)


def _activity_losses_are_sums() -> bool:
    """Whether this Keras does not divide what an activity regularizer returns by the rows."""
    layer = keras.layers.ActivityRegularization(l2=1.0)
    layer(tf.ones([2, 1]))
    return float(layer.losses[0]) > 1.5


def _row_count(tensor: Any) -> tf.Tensor:
    if isinstance(tensor, tf.RaggedTensor):
        return tf.cast(tensor.nrows(), tf.int64)
    return tf.shape(tensor, out_type=tf.int64)[0]


def _zero_gradient(gradient: Any, variable: Any) -> Any:
    """No gradient, of the kind of another."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.zeros([0, *variable.shape[1:]], gradient.values.dtype)
        return tf.IndexedSlices(values, tf.zeros([0], gradient.indices.dtype), tf.constant(list(variable.shape)))
    return tf.zeros(variable.shape, gradient.dtype)


def _capturing(loss: Any, values: list[Any]) -> Callable[..., Any]:
    """The loss, which notes what its ``call`` returns for each row before they are reduced."""

    def run(y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        original = loss.call

        def call(*args: Any, **kwargs: Any) -> Any:
            values.append(original(*args, **kwargs))
            return values[-1]

        loss.call = call
        try:
            return loss(y_true, y_pred, sample_weight)
        finally:
            del loss.call

    return run


def _with_reduction(loss: Any, reduction: str, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
    own = loss.reduction
    loss.reduction = reduction
    try:
        return loss(y_true, y_pred, sample_weight)
    finally:
        loss.reduction = own


def _mask_of(y_pred: Any, values: Any) -> Any:
    """The mask that Keras applies to the values of a loss, or None."""
    masks = [m for m in map(keras_privates.mask_of, (y_pred, values)) if m is not None]
    return functools.reduce(operator.and_, masks) if masks else None


def _denominator(values: Any, mask: Any, sample_weight: Any) -> tf.Tensor:
    """What this worker's rows add to the number, or weight, of all values."""
    count = tf.cast(tf.size(values), tf.float32)
    if sample_weight is None:
        if mask is None:
            return count
        return count * tf.reduce_mean(tf.cast(mask, tf.float32))
    weight = tf.cast(sample_weight, tf.float32)
    if mask is not None:
        mask = tf.cast(mask, tf.float32)
        if weight.shape.rank == mask.shape.rank - 1 and mask.shape[-1] != 1:
            weight = weight[..., None]
        weight = weight * mask
    return tf.reduce_sum(weight)
