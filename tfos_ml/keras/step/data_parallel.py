"""Exact data parallelism: each worker's Keras model takes its share of a global-batch step.

Every worker runs ``Model.fit`` on its own rows of each step. The result is the same for any number of workers, because:

- ``train_step`` and ``test_step`` are wrapped: the wrapper counts the rows, computes this worker's *share* of the
  global batch, and skips the computation in steps without rows.
- Every optimizer's ``apply`` first sums share-weighted gradients over the workers, so that clipping, accumulation, loss
  scaling and weight averaging see the gradient of the global batch (:mod:`tfos_ml.keras.step.optimizers`).
- Weights that a step changes otherwise are made the same on all workers, or the step fails
  (:mod:`tfos_ml.keras.step.other_writes`).
- Losses are those of the global batch (:mod:`tfos_ml.keras.step.losses`).
- A :class:`ReductionPlan` describes everything else that is not combined by rows.

All other wrappers are attributes of instances. :meth:`DataParallel.close` removes all of them.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.step.batch_normalization import StepWeights, global_moments, is_batch_normalization
from tfos_ml.keras.step.losses import LossTerms
from tfos_ml.keras.step.metrics import MetricSums
from tfos_ml.keras.step.optimizers import Update, intercepted
from tfos_ml.keras.step.other_writes import OtherWrites
from tfos_ml.keras.step.random_draws import NOT_BY_ROW, RowsOfStep
from tfos_ml.keras.step.reduction_plan import PassReductions, ReductionPlan
from tfos_ml.keras.step.variables import TrainingVariables, metric_variables
from tfos_ml.worker.global_batches import Step

NO_STEP = -1
_ALIKE = 1e-4  # values of workers may differ by as much, relative to the largest: their processors may differ
NOT_EXCHANGED = (
    "A training step changes these weights in another way than with an optimizer of Keras, and to other values on each "
    "worker. Let a keras.optimizers.Optimizer change them, or use clusterSize=1:"
)
_COMPILED_WITHIN = (
    "A callback has called compile() within an epoch, and several workers train. Call it in on_epoch_end, in "
    "on_epoch_begin or in on_train_begin"
)


def not_exchanged(error: tf.errors.OpError) -> ModelError | None:
    """The error of a step that workers cannot take as one would; None for any other."""
    if not isinstance(error, tf.errors.InvalidArgumentError):
        return None
    begin = max(error.message.find(NOT_EXCHANGED), error.message.find(NOT_BY_ROW))
    return None if begin < 0 else ModelError(error.message[begin:].partition("\n\t [[")[0].strip().removesuffix("]"))


class DataParallel:
    """Makes a built, compiled model train in step with those of the other workers; wraps it until :meth:`close`.

    A step may update variables several times, with several optimizers. ``bad_step`` is the first step of the pass in
    which this worker's own loss was not finite; -1 if there is none. ``last_share`` is the part of the rows of the last
    step that this worker had. ``tracing_seconds`` is the time that TensorFlow has spent tracing training steps.
    ``train_metrics`` and ``test_metrics`` end passes. ``rows_of_step`` are those of the last step.

    Batches come with their :class:`~tfos_ml.worker.global_batches.Step`; a step on others is plain Keras's.
    `stand_in` returns a batch of one row, for training or for a test, to compute on in steps without rows of this
    worker; it has no weight. `rows_of` makes :class:`RowsOfStep`.
    """

    def __init__(
        self,
        variables: TrainingVariables,
        group: WorkerGroup,
        plan: ReductionPlan,
        stand_in: Callable[[bool], Any],
        agrees_on_saves: bool = False,
        rows_of: Callable[[tf.Tensor, tf.Tensor], RowsOfStep] = RowsOfStep,
    ):
        self._agrees_on_saves = agrees_on_saves
        model = self._model = variables.model
        self._compiled = privates.compiled_parts(model)
        self._group = group
        self._plan = plan
        self._share: tf.Tensor | None = None
        self._step: tf.Tensor | None = None
        self.rows_of_step: Any = None
        self.updated: list[str] = []  # paths of the variables whose gradients the step has summed, in order
        self._applied = 0  # how often it has updated variables
        self._moments = 0  # computed in the step that is being traced
        self._other_writes = OtherWrites(model)
        self._stack = contextlib.ExitStack()
        self.bad_step = tf.Variable(NO_STEP, dtype=tf.int64, trainable=False)
        self.tracing_seconds = 0.0
        self.save_requested = tf.Variable(0.0, trainable=False)  # 1: this worker asks all to save, or end, after a step
        self._save_agreed = tf.Variable(0.0, trainable=False)
        self.last_share = tf.Variable(1.0, dtype=tf.float64, trainable=False)
        self._stand_in, self._rows_of = stand_in, rows_of
        self.terms: LossTerms | None = None
        if group.size > 1:
            self.terms = LossTerms(
                model, group, lambda: self._share, lambda: self.rows_of_step, plan.sums, plan.together
            )
        self.train_metrics = MetricSums(model, group, plan.train)
        self.test_metrics = MetricSums(model, group, plan.test)
        self._assigned = [variables.of_program[i] for i in plan.assigned] if group.size > 1 else []
        self._wrap_model()

    def _wrap_model(self) -> None:
        model = self._model
        self._wrap(model, "compute_loss", self._watching_loss(model.compute_loss))
        step = self._step_of(True, model.train_step)
        self._wrap(model, "train_step", step if model.run_eagerly else self._timed(step))
        self._wrap(model, "test_step", self._step_of(False, model.test_step))
        if self._group.size == 1:
            return
        assert self.terms is not None
        self._stack.enter_context(self.terms.replaced())
        self._wrap(model, "evaluate", self._evaluating(model.evaluate))
        for name in ("fit", "train_on_batch", "test_on_batch"):
            self._wrap(model, name, _refusing(name))
        self._stack.enter_context(intercepted(self._update))
        for layer in privates.all_layers(model):
            if is_batch_normalization(layer) and not self._plan.has_local_statistics:
                moments = functools.partial(global_moments, layer, group=self._group, weights=self._weights)
                self._stack.enter_context(privates.replaced_moments(layer, moments))

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        setattr(owner, name, wrapper)
        self._stack.callback(delattr, owner, name)

    def has_agreed_to_save(self) -> bool:
        """Whether a worker has asked all to save or end with the step that is done; the same on all workers."""
        if not self._agrees_on_saves:
            return False
        return float(self.save_requested if self._group.size == 1 else self._save_agreed) > 0

    @property
    def is_compiled_again(self) -> bool:
        """Whether a callback has compiled the model again, or has set another optimizer."""
        return any(a is not b for a, b in zip(privates.compiled_parts(self._model), self._compiled, strict=True))

    def withdraw_save_request(self) -> None:
        """Go on, all workers together, after a step with which they have agreed to save."""
        self.save_requested.assign(0.0)
        self._save_agreed.assign(0.0)

    def close(self) -> None:
        """Restore the model, and the classes of optimizers."""
        self._stack.close()
        self._model.train_function = self._model.test_function = None  # Keras makes them again

    # Steps

    def _timed(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The step, which runs as Python only where TensorFlow traces it."""

        def timed(data: Any) -> Any:
            began = time.monotonic()
            logs = step(data)
            self.tracing_seconds += time.monotonic() - began
            return logs

        return timed

    def _step_of(self, trains: bool, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        reductions = self._plan.train if trains else self._plan.test

        def step(batch: Any) -> Any:
            data, place = batch if _has_step(batch) else (batch, None)
            if place is None:
                return original(data)
            self._step = place.number if trains else None
            try:
                if self._group.size == 1:
                    return original(data)
                if privates.compiled_parts(self._model)[1:] != self._compiled[1:]:
                    raise ModelError(_COMPILED_WITHIN)
                rows = tf.size(place.places, out_type=tf.int64)
                self._share = tf.cast(rows, tf.float64) / tf.cast(place.total, tf.float64)
                self.last_share.assign(self._share)
                places = tf.cond(rows > 0, lambda: place.places, lambda: tf.constant([0], tf.int64))
                self.rows_of_step = self._rows_of(places, place.total)
                self.rows_of_step.known = reductions.draws
                with self.rows_of_step.draws():
                    return self._shared_step(original, data, trains, reductions)
            finally:
                self._share = self._step = None

        return step

    def _shared_step(self, original: Callable[[Any], Any], data: Any, trains: bool, reductions: PassReductions) -> Any:
        """A step on the rows of this worker; if it has none, on the stand-in, which has no weight."""
        assert self._share is not None
        has_rows, stand_in = self._share > 0, self._stand_in(trains)
        if stand_in is not None:
            data = tf.cond(has_rows, lambda: data, lambda: tf.nest.map_structure(_sized_as, data, stand_in))
        self.updated, self._applied, self._moments = [], 0, 0
        self._other_writes.begin()
        variables = metric_variables(self._model)
        state = {id(v): v for v in variables}
        by_step = {id(v) for metric in privates.metrics_of_losses(self._model) for v in metric.variables}
        by_step |= {id(variables[i]) for i in reductions.by_step}
        before = {key: tf.identity(tf.convert_to_tensor(v)) for key, v in state.items()}
        result = original(data)
        for key, variable in state.items():
            after = tf.convert_to_tensor(variable)
            if key in by_step:  # one worker adds what is counted, the one with the first row
                part = self._share if after.dtype.is_floating else self.rows_of_step.places[0] == 0
                after = before[key] + (after - before[key]) * tf.cast(part, after.dtype)
            variable.assign(tf.where(has_rows, after, before[key]))
        if trains:
            self._share_assigned()
        return result

    def _weights(self) -> StepWeights | None:
        """The share of this worker in the step that is being traced; None outside of steps."""
        if self._share is None:
            return None
        loss = tf.cast(self._share > 0, tf.float32) if self._plan.gradient_is_sum else self._share
        self._moments += 1
        return StepWeights(tf.cast(self._share > 0, tf.float32), loss, f"moments-{self._moments}")

    def _share_assigned(self) -> None:
        """Give all workers the row-weighted mean of the values that the step has assigned."""
        unexpected = self._other_writes.end(self._assigned)
        variables = [*self._assigned, *unexpected]
        if not variables:
            return
        assert self._share is not None
        values = list(map(tf.convert_to_tensor, variables))
        shapes = [tf.TensorShape(v.shape) for v in variables]
        # All workers trace one step of one model, so they exchange in one order; also those without rows.
        means = self._group.all_sum_gradients(values, self._share, shapes, name="assigned")
        if unexpected:
            self._check_alike(unexpected, means[len(self._assigned) :])
        for variable, value in zip(variables, means, strict=True):
            variable.assign(value)

    def _check_alike(self, variables: Sequence[Any], means: Sequence[tf.Tensor]) -> None:
        """Fail in this step, on all workers, if variables have not the same value on all workers with rows."""
        assert self._share is not None
        off = [
            tf.reduce_max(tf.abs(tf.convert_to_tensor(v) - mean)) / (tf.reduce_max(tf.abs(mean)) + _ALIKE)
            for v, mean in zip(variables, means, strict=True)
        ]
        worst = tf.reduce_max(tf.stack([tf.cast(part, tf.float32) for part in off]))
        worst = self._group.all_reduce(tf.reshape(tf.where(self._share > 0, worst, 0.0), [1]), "alike", "Max")[0]
        tf.debugging.Assert(worst < _ALIKE, [NOT_EXCHANGED, *(v.path for v in variables)])

    def _update(self, update: Update, optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Update variables with the gradients of all workers."""
        if self._share is None:
            if {id(v) for v in variables}.isdisjoint(id(v) for v in self._model.trainable_variables):
                return update(grads, variables)  # another model's, in a callback
            raise ModelError("optimizer.apply() was called outside of train_step; only train_step may call it")
        first, number = len(self.updated), self._applied
        self.updated += [getattr(v, "path", v.name) for v in variables]
        self._applied += 1
        whole = {i - first for i in self._plan.whole_slices}
        weight = tf.cast(self._share > 0, tf.float32) if self._plan.gradient_is_sum else self._share
        counting = [_counting(gradient, self._share) for gradient in grads]
        shapes = [tf.TensorShape(v.shape) for v in variables]
        if self._agrees_on_saves and not number:  # in the same exchange; a worker without rows waits for a step with
            request = tf.convert_to_tensor(self.save_requested)
            counting.append(tf.math.divide_no_nan(request, tf.cast(weight, tf.float32)))
            shapes.append(tf.TensorShape([]))
        # As many updates on all workers, in the order of the program, also in its branches.
        summed = self._group.all_sum_gradients(counting, weight, shapes, whole, f"gradients-{number}")
        if len(summed) > len(variables):
            self._save_agreed.assign(summed.pop())
        with self._other_writes.allowed(variables):
            return update(summed, variables)

    # What the user calls in between

    def _evaluating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """An ``evaluate`` that callbacks may call: plain Keras, since its batches have no :class:`Step`.

        Within an epoch the metrics go on from what it has left in them: on one worker, since they are added up.
        """

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            results = original(*args, **kwargs)
            if self._group.rank and not privates.is_validation_of_fit(kwargs):
                self._model.reset_metrics()
            return results

        return evaluate

    def _watching_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Records the step in which the loss of this worker is not finite."""
        is_keras = getattr(original, "__func__", None) is keras.Model.compute_loss

        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            loss = original(*args, **kwargs)
            if self.terms is not None and is_keras:
                loss = self.terms.added(loss)
            if kwargs.get("training", True) and self._step is not None and loss is not None:
                finite = tf.reduce_all(tf.math.is_finite(tf.cast(loss, tf.float32)))
                if self._share is not None:
                    finite = tf.logical_or(finite, self._share <= 0)
                is_first = tf.logical_and(tf.logical_not(finite), self.bad_step < 0)
                self.bad_step.assign(tf.where(is_first, self._step, self.bad_step))
            return loss

        return compute_loss


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ModelError(
            f"A callback calls model.{name}(), which several workers cannot do as one does. Evaluate with "
            "model.evaluate(), and train in a train_step of the model; or use clusterSize=1."
        )

    return refuse


def _has_step(batch: Any) -> bool:
    return isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], Step)


def _sized_as(rows: Any, row: Any) -> Any:
    """A row cut, or filled with zeros, to the lengths of others, as all workers pad the rows of a step."""
    if isinstance(row, tf.RaggedTensor) or rows.shape[1:].is_fully_defined():
        return row
    lengths = tf.shape(rows)[1:]
    cut = tf.minimum(lengths, tf.shape(row)[1:])
    row = tf.slice(row, tf.zeros_like(tf.shape(row)), tf.concat([[1], cut], 0))
    missing = tf.concat([[0], lengths - cut], 0)
    return tf.ensure_shape(tf.pad(row, tf.stack([tf.zeros_like(missing), missing], 1)), [1, *rows.shape[1:]])


def _counting(gradient: Any, share: tf.Tensor) -> Any:
    """A gradient, without any slices if the worker has no rows in the step; a dense one has no weight then."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    count = tf.where(share > 0, tf.shape(gradient.indices)[0], 0)
    return tf.IndexedSlices(gradient.values[:count], gradient.indices[:count], gradient.dense_shape)
