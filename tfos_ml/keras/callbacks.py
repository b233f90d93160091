"""The callbacks before and after the user's: they begin and end epochs, and make decisions, on all workers together."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfos_ml.common.timeouts import TRAINED_SECONDS
from tfos_ml.errors import NonFiniteTrainingError, PreemptedError
from tfos_ml.keras.checkpoint.state import TrainingState, assign_all
from tfos_ml.keras.checkpoint.store import SaveRequest, StateStore
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.step.data_parallel import NO_STEP, DataParallel
from tfos_ml.keras.step.epoch_end import LayerState, all_check_equal
from tfos_ml.keras.step.metrics import numbers
from tfos_ml.keras.step.variables import metric_variables
from tfos_ml.keras.training_data import TrainingData

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHIEF_ONLY = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    *([keras.callbacks.OrbaxCheckpoint] if hasattr(keras.callbacks, "OrbaxCheckpoint") else []),
)
_QUIET = (*CHIEF_ONLY, keras.callbacks.History, keras.callbacks.ProgbarLogger, keras.callbacks.EarlyStopping)


def runs_here(callback: Any, is_chief: bool) -> bool:
    """Whether a callback of the user's runs on this worker: those that write files run only on the chief.

    Other callbacks can request this with an attribute ``chief_only = True``.
    """
    return is_chief or not getattr(callback, "chief_only", isinstance(callback, CHIEF_ONLY))


def acts_on_batches(callbacks: Sequence[Any]) -> bool:
    """Whether a callback may make decisions at the beginning or the end of a batch."""
    hooks = ("on_batch_end", "on_train_batch_end", "on_batch_begin", "on_train_batch_begin")
    return any(_has_hook(c, hook, _QUIET) for c in callbacks for hook in hooks)


def reads_logs_of_batches(callbacks: Sequence[Any]) -> bool:
    """Whether a callback may make decisions by the logs of a batch, which then have to be those of all workers."""
    quiet = (*_QUIET, keras.callbacks.TerminateOnNaN)
    hooks = ("on_batch_end", "on_train_batch_end")
    return any(_has_hook(c, hook, quiet) for c in callbacks for hook in hooks)


def _has_hook(callback: Any, hook: str, quiet: Sequence[type]) -> bool:
    """Whether a class that is not `quiet` has a callback's hook, or, as of a ``LambdaCallback``, the object itself."""
    owner = next((kind for kind in type(callback).__mro__ if hook in vars(kind)), keras.callbacks.Callback)
    return hook in vars(callback) or owner not in (keras.callbacks.Callback, *quiet)


@dataclass
class EpochState:
    """The state that the first and the last callback share."""

    group: WorkerGroup
    data: TrainingData
    store: StateStore
    parallel: DataParallel  # another one once a callback has compiled the model again
    resumed: TrainingState | None  # what the training continues from
    stops_on_nan: bool  # whether a callback ends the training where a loss is not finite; else that is an error
    shares_logs: bool  # whether the logs of batches are the same on all workers, since a callback may decide by them
    agrees_on_batches: bool  # whether callbacks may stop the training within an epoch
    requested: SaveRequest = SaveRequest.NOTHING  # what this worker has requested of all
    fulfilled: SaveRequest = SaveRequest.NOTHING  # what all have done
    stops_for_epoch: bool = False  # whether ``stop_training`` only keeps Keras from looking for further batches
    logs: dict[str, Any] = field(default_factory=dict)  # of the last step, on this worker's rows


class EpochStartSync(keras.callbacks.Callback):
    """The first callback: begins epochs, and makes logs the same on all workers before others see them."""

    def __init__(self, state: EpochState):
        super().__init__()
        self._state = state

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        state = self._state
        resumed = state.resumed if state.resumed is not None and state.resumed.epoch == epoch else None
        state.data.all_begin_epoch(epoch, resumed.step if resumed else 0)
        if resumed and resumed.metrics and state.group.rank == 0:  # those of all rows, to which the others add theirs
            assign_all(metric_variables(self.model), resumed.metrics)
        state.parallel.bad_step.assign(NO_STEP)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        request = self._state.store.request()
        if request > self._state.fulfilled:
            self._state.requested = request
            self._state.parallel.save_requested.assign(1.0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._state.logs = dict(logs)
        if self._state.shares_logs:
            parallel = self._state.parallel
            share = float(parallel.last_share)
            # All workers: whether logs are shared follows from the callbacks, chief_only ones included.
            logs.update(parallel.train_metrics.all_results(self._state.data.train, share, self._state.logs))
        if self._state.stops_on_nan:  # on all workers, which have the same callbacks, after each step
            own = int(self._state.parallel.bad_step)
            if self._state.group.all_max_number(own) > NO_STEP:
                logs["loss"] = float("nan")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._state.stops_for_epoch:
            self._state.stops_for_epoch = self.model.stop_training = False
        parallel = self._state.parallel
        logs.update(parallel.train_metrics.replaced)
        logs.update({f"val_{name}": value for name, value in parallel.test_metrics.replaced.items()})


class EpochEndSync(keras.callbacks.Callback):
    """The last callback: synchronizes the workers at the end of each pass.

    ``epoch_begins(epoch)`` is called after the callbacks of the user, and ``epoch_done(epoch, logs, seconds, stopped)``
    when an epoch has ended on all workers.
    """

    def __init__(
        self,
        state: EpochState,
        epoch_begins: Callable[[int], None],
        epoch_done: Callable[[int, dict[str, float], float, bool], None],
    ):
        super().__init__()
        self._state = state
        self._epoch_begins = epoch_begins
        self._epoch_done = epoch_done
        self._elapsed = 0.0 if state.resumed is None else state.resumed.elapsed  # seconds of the epoch that is resumed
        self._began = self._reported_at = 0.0
        self._epoch = self._step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._state.store.restore_what_begins()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._step = epoch, self._state.data.first_step
        if self._step:  # the epoch had begun before
            self._state.store.restore_what_begins()
        self._began, self._elapsed = time.monotonic() - self._elapsed, 0.0
        self._all_agree_to_stop()
        self._epoch_begins(epoch)
        self._layer_state = LayerState(self.model, self._state.group)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._state.agrees_on_batches:
            self._all_agree_to_stop()
        first, steps = self._state.data.first_step, self._state.data.train.steps
        before, self._step = self._step, min(first + batch + 1, steps)
        self._report_position()
        if self._step == steps or self.model.stop_training:
            self._all_end_pass()
            if first and not self.model.stop_training:
                self._state.stops_for_epoch = self.model.stop_training = True
            return
        is_requested = self._state.parallel.has_agreed_to_save()
        every = self._state.store.steps_between
        is_due = every and _crosses(self._epoch * steps, before, self._step, every)
        if is_requested or is_due:
            if not self._state.stops_on_nan:
                self._all_check_finite()
            self._state.store.save(self._epoch, self._step, False, time.monotonic() - self._began)
        if is_requested:
            self._end_or_continue()

    def _report_position(self) -> None:
        if self._state.group.rank == 0 and time.monotonic() - self._reported_at > TRAINED_SECONDS:
            self._reported_at = time.monotonic()
            self._state.store.note_position(self._epoch, self._step)

    def _end_or_continue(self) -> None:
        """End with the state that was saved, if a worker has been told to end; else go on."""
        self._state.store.wait()
        # All workers, since they have agreed in the sum of the gradients of this step. They end together: the driver,
        # which hears of one's end, might else end the chief too soon.
        if self._state.group.all_max_number(float(self._state.requested)) < SaveRequest.END:
            self._state.fulfilled = SaveRequest.SAVE
            self._state.parallel.withdraw_save_request()
            return
        if self._state.requested == SaveRequest.END:
            raise PreemptedError(
                f"the node was told to end, in epoch {self._epoch + 1} after step {self._step} of "
                f"{self._state.data.train.steps}. The state is in modelDir: fit again, or set minClusterSize or "
                "maxRestarts, with which the fit goes on by itself"
            )
        raise tf.errors.AbortedError(None, None, "another worker was told to end")

    def _all_end_pass(self) -> None:
        """All workers call it after the last step of an epoch, or the step after which they have agreed to stop."""
        if not self._state.stops_on_nan:
            self._all_check_finite()
        batches = self._state.data.train
        parallel = self._state.parallel
        parallel.train_metrics.all_end_pass(batches, float(parallel.last_share), self._state.logs)
        self._layer_state.all_mean(len(batches) / batches.total)
        if not self._state.stops_on_nan or not self.model.stop_training:  # else TerminateOnNaN has seen it
            _check_weights(self.model, self._epoch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        batches = self._state.data.validation
        if batch >= batches.steps - 1:
            parallel = self._state.parallel
            parallel.test_metrics.all_end_pass(batches, float(parallel.last_share), logs or {})

    def _all_check_finite(self) -> None:
        """Raise if a loss was not finite, on the worker where it happened first; the others end because of it.

        All workers call it after the same step: the last one, or one after which they save.
        """
        group, own = self._state.group, int(self._state.parallel.bad_step)
        place = own * group.size + group.rank if own > NO_STEP else math.inf
        first = -group.all_max_number(-place)
        if first == math.inf:
            return
        if first == place:
            raise NonFiniteTrainingError(
                f"the loss is not a finite number in epoch {self._epoch + 1}, step {own + 1} of "
                f"{self._state.data.train.steps}. Look for NaN or infinity in the rows, and lower the learning rate or "
                "clip gradients. keras.callbacks.TerminateOnNaN() ends the training there instead"
            )
        raise tf.errors.AbortedError(None, None, "another worker's loss is not finite")

    def _all_agree_to_stop(self) -> None:
        """All workers call it at the same places of an epoch, and after each step if a callback may stop there."""
        self.model.stop_training = bool(self._state.group.all_max_number(float(self.model.stop_training)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        all_check_equal(self.model, self._state.group, epoch)
        self._all_agree_to_stop()
        values = numbers(logs or {})
        self._epoch_done(epoch, values, time.monotonic() - self._began, self.model.stop_training)
        if self._state.parallel.has_agreed_to_save():
            self._end_or_continue()


def _check_weights(model: keras.Model, epoch: int) -> None:
    """Raise ``NonFiniteTrainingError`` for bad weights after an epoch, counted from 0.

    A ReLU may hide NaN from the loss. Weights that gradients do not train, such as a mask, may be infinite.
    """
    trained = {id(v) for v in model.trainable_variables}
    for variable in (v for v in model.weights if tf.as_dtype(v.dtype).is_floating):
        value = variable.value
        is_bad = ~tf.math.is_finite(value) if id(variable) in trained else tf.math.is_nan(value)
        if count := int(tf.math.count_nonzero(is_bad)):
            raise NonFiniteTrainingError(
                f"weights of the model are not finite after epoch {epoch + 1}: {variable.path} has {count} of "
                f"{int(tf.size(value))} values that are not, although the loss is finite. Look for NaN or infinity in "
                "the rows (handleInvalid='error'), and for divisions by zero, logarithms of 0 and the like in the "
                "model; lower the learning rate or clip gradients"
            )


def _crosses(start: int, before: int, after: int, every: int) -> bool:
    """Whether a multiple of a number lies among the steps from `before` to `after`, counted from `start`."""
    return (start + after) // every > (start + before) // every
