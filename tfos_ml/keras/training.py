"""Trains the model of a ``KerasEstimator``: ``Model.fit`` on every worker, in step."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfos_ml.data.spool import full_disk_as_error
from tfos_ml.errors import ModelError
from tfos_ml.inference.prediction import PREDICTION_SPEC_FILE
from tfos_ml.keras import privates
from tfos_ml.keras.build import KerasFit, build, build_model, settle_execution
from tfos_ml.keras.callbacks import (
    EpochEndSync,
    EpochStartSync,
    EpochState,
    acts_on_batches,
    reads_logs_of_batches,
    runs_here,
)
from tfos_ml.keras.checkpoint.callback_state import by_key
from tfos_ml.keras.checkpoint.state import (
    broadcast_variables,
    random_state,
    set_random_state,
)
from tfos_ml.keras.checkpoint.store import StateStore
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.filled_lists import FilledLists
from tfos_ml.keras.model.source import ADAPTED_FILE, WEIGHTS_FILE
from tfos_ml.keras.probe.known_layers import is_row_by_row
from tfos_ml.keras.probe.plan import find_plan
from tfos_ml.keras.step.batch_normalization import is_batch_normalization
from tfos_ml.keras.step.data_parallel import DataParallel, not_exchanged
from tfos_ml.keras.step.reduction_plan import ReductionPlan
from tfos_ml.keras.step.variables import TrainingVariables
from tfos_ml.keras.training_data import TrainingData

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext


def train(task: KerasFit, ctx: NodeContext) -> None:
    """Train the model with the other workers; the chief exports it."""
    with workers_of(ctx) as group:
        model = fit_model(task, ctx, group)
    path = ctx.export_saved_model(model)
    if path is not None:
        _add_to_export(path, model, task)


def workers_of(ctx: NodeContext) -> WorkerGroup:
    """The connected workers of a run."""
    settings = ctx._node.settings
    group = WorkerGroup.start(
        ctx.worker_num,
        ctx._node.worker_addresses,
        settings.feed_timeout,
        settings.communication,
        ctx._node.secret,
        settings.encrypts,
        settings.allows_plaintext,
    )
    ctx._node.coordinates.append("KerasEstimator")
    return group


def fit_model(task: KerasFit, ctx: NodeContext, group: WorkerGroup) -> Any:
    """Build and train the model; returns it as plain Keras knows it."""
    notices: list[str] = []
    model, data = build_model(task, ctx, group, notices)
    variables = _variables_of(model, data, group, ctx)
    broadcast_variables(variables, group, ctx.is_chief)
    notices += _prepare_export(model, data, task, ctx)
    training = _Training(task, ctx, group, variables, data, notices)
    with training.store:
        training.run()
    return model


def _variables_of(model: Any, data: TrainingData, group: WorkerGroup, ctx: NodeContext) -> TrainingVariables:
    """What the training changes; a step of parts of Keras alone changes nothing that Keras does not know."""
    is_shared = group.size > 1 or bool(ctx.checkpoint_dir)
    return TrainingVariables.of_step(model, data.element_spec() if is_shared and not is_row_by_row(model) else None)


def _with_local_statistics(plan: ReductionPlan, model: keras.Model) -> ReductionPlan:
    """The plan of a training in which BatchNormalization knows only the rows of its worker."""
    layers = sum(map(is_batch_normalization, privates.all_layers(model)))
    if not layers:
        return plan
    notice = (
        f"batchStatistics='local': {layers} BatchNormalization layers use the mean and variance of each worker's rows, "
        "so the result depends on clusterSize. Their moving statistics are averaged over workers after each epoch."
    )
    return replace(plan, has_local_statistics=True, notices=(*plan.notices, notice))


def _prepare_export(model: Any, data: TrainingData, task: KerasFit, ctx: NodeContext) -> list[str]:
    """Prepare the export before the first step; returns a notice about a model that cannot be exported."""
    state = random_state()
    reason = ctx._node.prepare_export(model, data.inputs)
    set_random_state(state)
    if not reason or not task.description.can_be_served:  # the driver has told the user
        return []
    ctx.log(reason)
    return [reason]


class _Training:
    """One run of ``Model.fit``, from the last checkpoint if there is one."""

    def __init__(
        self,
        task: KerasFit,
        ctx: NodeContext,
        group: WorkerGroup,
        variables: TrainingVariables,
        data: TrainingData,
        notices: list[str],
    ):
        self._task, self._ctx, self._group, self._data = task, ctx, group, data
        self._variables, self._model = variables, variables.model
        self._notices = notices
        self._filled = FilledLists(task.callbacks)
        tensorboard = [keras.callbacks.TensorBoard(ctx.log_dir, write_graph=False)] if _wants_logs(task, ctx) else []
        self._callbacks = {
            key: callback
            for key, callback in by_key([*task.callbacks, *tensorboard]).items()
            if runs_here(callback, ctx.is_chief)
        }
        self._history: list[dict[str, float]] = []
        self._seconds: list[float] = []
        self._tracing_seconds = 0.0
        self.store = StateStore(ctx, group, variables, data, self._callbacks, self._history, notices)

    def run(self) -> None:
        """Train the remaining epochs."""
        resumed = self.store.load()
        given = self._task.callbacks
        epochs = EpochState(
            self._group,
            self._data,
            self.store,
            self._keep_in_step(),
            resumed,
            stops_on_nan=any(isinstance(callback, keras.callbacks.TerminateOnNaN) for callback in given),
            shares_logs=self._group.size > 1 and reads_logs_of_batches(given),
            agrees_on_batches=acts_on_batches(given),
        )
        first = 0 if resumed is None else resumed.epoch
        if resumed is not None and resumed.stopped:
            first = max(first, self._ctx.epochs)
        is_within_epoch = resumed is not None and resumed.step > 0
        # Keras reads beyond the last step of a shorter epoch if it executes several steps at once.
        has_cardinality = not is_within_epoch or self._model.steps_per_execution == 1
        try:
            type(self._model).fit(  # the instance's own refuses callbacks
                self._model,
                self._data.dataset("train", has_cardinality),
                epochs=max(self._ctx.epochs, first),
                initial_epoch=first,
                callbacks=self._callbacks_in_order(epochs),
                validation_data=self._data.dataset("validation") if self._data.validation.total else None,
                shuffle=False,
                verbose=0,
            )
        except tf.errors.OpError as error:
            raise self._data.range_error(error) or not_exchanged(error) or error from None
        finally:
            epochs.parallel.close()
        self._tracing_seconds += epochs.parallel.tracing_seconds
        self._summarize()

    def _callbacks_in_order(self, epochs: EpochState) -> list[keras.callbacks.Callback]:
        """Those of the user, between the ones that begin and end epochs on all workers together."""
        look = functools.partial(self._look_at_model, epochs)
        return [EpochStartSync(epochs), *self._callbacks.values(), EpochEndSync(epochs, look, self._epoch_done)]

    def _keep_in_step(self) -> DataParallel:
        """Find the plan of the training, and wrap the model; all workers do so together."""
        validates = bool(self._data.validation.total)
        plan = find_plan(self._variables, self._data, self._group, validates)
        if self._task.has_local_statistics and self._group.size > 1:
            plan = _with_local_statistics(plan, self._model)
        self._note(plan.notices)
        stand_in, saves = functools.cache(self._data.stand_in), self.store.has_model_dir
        parallel = DataParallel(self._variables, self._group, plan, stand_in, agrees_on_saves=saves)
        self._note_limits({*parallel.train_metrics.inexact, *(parallel.test_metrics.inexact if validates else ())})
        return parallel

    def _look_at_model(self, epochs: EpochState, epoch: int) -> None:
        """Begin anew with the model if a callback has compiled it again; all workers ask this together."""
        before = epochs.parallel
        has_changed = before.is_compiled_again
        # All workers, at the beginning of each epoch, whatever their own callbacks have done.
        if bool(self._group.all_max_number(float(has_changed))) != has_changed:
            raise ModelError(
                f"In epoch {epoch + 1}, a callback has compiled the model of some workers again, but not of all. It "
                "must decide alike on all workers: remove chief_only, and decide by the epoch and its logs"
            )
        if not has_changed:
            return
        before.close()
        self._tracing_seconds += before.tracing_seconds
        build(self._model, self._data, self._task.description.has_call)
        settle_execution(self._model, self._group, self._notices)
        self._variables = _variables_of(self._model, self._data, self._group, self._ctx)
        self.store.renew(self._variables, epoch)
        epochs.parallel = self._keep_in_step()
        self._model.make_train_function()

    def _note(self, notices: Iterable[str]) -> None:
        self._notices += [notice for notice in notices if notice not in self._notices]

    def _note_limits(self, inexact: set[str]) -> None:
        """Warn if the result depends on the number of workers, or if the training will be slow."""
        notices = []
        if inexact:
            notices.append(
                f"Metrics {sorted(inexact)} cannot be combined exactly from the workers' results: their values are "
                "averages over workers, weighted by rows."
            )
        vectors = [name for name, value in self._model.get_metrics_result().items() if np.ndim(value)]
        if vectors:
            notices.append(
                f"Metrics {vectors} are vectors and missing in the history, which has only numbers. Use their mean, "
                "such as average='macro', or one metric per class."
            )
        if self._ctx._node.settings.shuffle and (notice := self._ctx._node.rows.shuffle_notice()):
            notices.append(notice)
        self._note(notices)

    def _epoch_done(self, epoch: int, logs: dict[str, float], seconds: float, stopped: bool) -> None:
        self._history.append(logs)
        self._seconds.append(seconds)
        if self._ctx.is_chief:
            self._ctx.report(logs, epoch=epoch)
            self._ctx._node.log_upload.run()
        self.store.save(epoch + 1, 0, stopped)

    def _summarize(self) -> None:
        if names := self._filled.names():
            self._notices.append(
                f"Callbacks have filled {', '.join(names)} on the node. Your objects on the driver stay as they were, "
                "since the nodes have copies. Add numbers to the logs in on_epoch_end, which model.summary.history "
                "has, or write a file."
            )
        spent = sum(self._seconds)
        self._ctx.summarize(
            {
                "steps": self._data.train.steps * len(self._seconds),
                "epoch_seconds": [round(s, 4) for s in self._seconds],
                "tracing_seconds": round(self._tracing_seconds, 4),  # of the first epoch's
                "warnings": self._notices,
                "restored_epoch": restored_epoch(self._task.callbacks),
                "rows_per_second": round(len(self._data.train) * len(self._seconds) / spent, 1) if spent else 0.0,
            }
        )


def restored_epoch(callbacks: Sequence[keras.callbacks.Callback]) -> int | None:
    """The epoch whose weights an ``EarlyStopping`` has restored at the end of the training; None if none has."""
    stops = [c for c in callbacks if isinstance(c, keras.callbacks.EarlyStopping) and c.restore_best_weights]
    return next((int(c.best_epoch) for c in stops if c.best_weights is not None), None)


def _wants_logs(task: KerasFit, ctx: NodeContext) -> bool:
    """Whether logs for TensorBoard are requested and no callback of the user writes them."""
    writes = any(isinstance(callback, keras.callbacks.TensorBoard) for callback in task.callbacks)
    return bool(ctx._node.settings.tensorboard or ctx._node.settings.log_dir) and not writes


def _add_to_export(path: str, model: Any, task: KerasFit) -> None:
    """Files beside the SavedModel: weights for another training, and the meaning of the output."""
    with full_disk_as_error("the model", path):
        weights = os.path.join(path, WEIGHTS_FILE)
        os.makedirs(os.path.dirname(weights), exist_ok=True)
        _save_weights(model, weights)
        if task.adapted:
            with open(os.path.join(path, ADAPTED_FILE), "wb") as file:
                file.write(task.adapted)
        with open(os.path.join(path, PREDICTION_SPEC_FILE), "w") as spec:
            json.dump(asdict(task.description.prediction_spec), spec)


def _save_weights(model: Any, path: str) -> None:
    """Save the weights and no state of the optimizer, which is twice as large for Adam, and which nothing reads.

    An optimizer as it was compiled takes its place, so a model compiled alike loads the file without a warning.
    """
    trained = model.optimizer
    try:
        model.optimizer = type(trained).from_config(trained.get_config())
    except Exception:  # a class of the user's that has no configuration
        model.optimizer = trained
    try:
        model.save_weights(path)
    finally:
        model.optimizer = trained
