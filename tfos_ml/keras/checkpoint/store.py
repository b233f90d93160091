"""Saves and loads the state of a training, for all workers together."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import threading
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from tfos_ml.common.redact import redact
from tfos_ml.data.schema import Array
from tfos_ml.errors import ModelError
from tfos_ml.keras.checkpoint.callback_state import CallbackStates, keys_with_state, set_callback_states
from tfos_ml.keras.checkpoint.files import Checkpoints
from tfos_ml.keras.checkpoint.state import (
    TrainingState,
    assign_all,
    broadcast_variables,
    load_weights,
    random_state,
    save_weights,
    set_random_state,
)
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.step.variables import TrainingVariables, digest, metric_variables
from tfos_ml.keras.training_data import TrainingData
from tfos_ml.protocol.codec import decode, encode
from tfos_ml.protocol.training_position import Position

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext


class SaveRequest(IntEnum):
    """What a worker is asked to do, since it is to leave: to save the state after a step, or also to end then."""

    NOTHING = 0
    SAVE = 1
    END = 2


class StateStore:
    """The state of one training in ``modelDir``, if there is one; a context manager around the training.

    All workers call :meth:`load` and :meth:`save` together; the chief reads and writes. `callbacks` are those of this
    worker by their keys, and `history` has the logs of each epoch.
    """

    def __init__(
        self,
        ctx: NodeContext,
        group: WorkerGroup,
        variables: TrainingVariables,
        data: TrainingData,
        callbacks: Mapping[str, Any],
        history: list[dict[str, float]],
        notices: list[str],
    ):
        self._ctx, self._group, self._variables, self._data = ctx, group, variables, data
        self._callbacks, self._history, self._notices = callbacks, history, notices
        self._checkpoints: Checkpoints | None = None  # on the chief
        self._states: CallbackStates | None = None  # there, too
        self._terminated: list[int] = []  # signals that ask this process to end
        self._loaded: tuple[TrainingState, list[Array]] | None = None  # what it resumes from; scalars of its optimizers
        self._compiled_again = ""
        self._stack = contextlib.ExitStack()

    def renew(self, variables: TrainingVariables, epoch: int) -> None:
        """Go on with the variables of a model that a callback has compiled again before an epoch, counted from 0."""
        self.wait()
        self._variables = variables
        self._compiled_again = f", compiled again by a callback before epoch {epoch + 1}"

    @property
    def has_model_dir(self) -> bool:
        """Whether there is a ``modelDir``."""
        return bool(self._ctx.checkpoint_dir)

    @property
    def steps_between(self) -> int | None:
        """After how many steps the state is saved within an epoch; None for never."""
        return self._ctx._node.settings.checkpoint_steps

    def __enter__(self) -> StateStore:
        if self.has_model_dir:
            self._stack.enter_context(_terminations(self._terminated))
        if self.has_model_dir and self._ctx.is_chief:
            uri = self._ctx._node.settings.model_store or str(self._ctx.checkpoint_dir)
            timeout = self._ctx._node.settings.feed_timeout
            checkpoints = Checkpoints(uri, self._ctx.run_id, self._note_saved, timeout)
            self._checkpoints = self._stack.enter_context(checkpoints)
            self._states = CallbackStates(self._callbacks)
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)

    def request(self) -> SaveRequest:
        """What this worker has been asked to do soon."""
        if not self.has_model_dir:
            return SaveRequest.NOTHING
        if self._terminated or self._ctx.is_preempted():
            return SaveRequest.END
        return SaveRequest.SAVE if self._ctx._node.should_save() else SaveRequest.NOTHING

    @property
    def _identity(self) -> str:
        """What a checkpoint must have in common with the fit that continues from it."""
        shapes = [(tuple(v.shape), str(v.dtype)) for v in self._variables.shared]
        digest_of_shapes = hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]
        optimizer = type(self._variables.model.optimizer).__name__
        settings, block = self._ctx._node.settings, self._data.stores["train"].shuffle_block
        order = f"seed {settings.seed}" if settings.shuffle else "not shuffled"
        if settings.shuffle and block is not None:
            order += f", in blocks of {block} rows"
        batch_size = self._ctx.batch_size
        return f"variables {digest_of_shapes}, {optimizer}, batchSize {batch_size}, {order}{self._compiled_again}"

    def load(self) -> TrainingState | None:
        """The state to resume from, with its variables in the model; None if there is none."""
        if not self.has_model_dir:
            return None
        found = self._checkpoints.load() if self._checkpoints else None
        files = encode(found.to_files() if found else {})
        # All workers load before the first epoch, and those without the files learn here whether there are any.
        contents = decode(dict[str, bytes], self._group.broadcast_bytes(files, self._ctx.is_chief))
        if not contents:
            if self._ctx.is_chief:
                self.note_position(0, 0, is_saved=True)
            return None
        state = TrainingState.from_files(contents)
        self._check(state)
        if self._checkpoints:
            self._note_saved(state)
            load_weights(self._variables, self._checkpoints.weights_file, state.variables, state.digest)
            assign_all(self._variables.seeds, state.seeds)
        broadcast_variables(self._variables, self._group, self._ctx.is_chief)
        state.variables.clear()  # the model has them now, and they may be as large as all of it
        set_random_state(state.random)
        self._loaded = state, [np.array(v) for v in self._variables.scalars]
        self._history.extend(state.history)
        if self._ctx.is_chief:
            for epoch, logs in enumerate(self._history):
                self._ctx.report(logs, epoch=epoch)
        return state

    def _check(self, state: TrainingState) -> None:
        """Raise ``ModelError`` if the state is of another training; else note that this one continues from it."""
        place = f"modelDir={redact(self._ctx.checkpoint_dir)!r}"
        if state.identity != self._identity:
            raise ModelError(
                f"{place} holds checkpoints of another model, or of other settings ({state.identity}; this fit has "
                f"{self._identity}). Choose another modelDir."
            )
        steps = self._data.train.steps
        if state.step >= max(1, steps):
            raise ModelError(
                f"{place} has a checkpoint after step {state.step} of an epoch, and the rows of this fit make {steps} "
                "steps. Fit on the rows of before, or choose another modelDir."
            )
        if self._ctx.is_chief:
            self._notices += self._remarks(state, place)

    def _remarks(self, state: TrainingState, place: str) -> Iterator[str]:
        """What a user may not expect of a training that resumes, or is complete."""
        is_complete = state.stopped or state.epoch >= self._ctx.epochs
        if is_complete and not self._ctx.restart_count:
            how = "in which a callback ended the training" if state.stopped else f"and epochs={self._ctx.epochs}"
            yield (
                f"Nothing was trained: {place} has the state after epoch {state.epoch}, {how}. Choose another modelDir "
                "to train from the beginning."
            )
        elif not self._ctx.restart_count:
            step = f" and {state.step} steps" if state.step else ""
            yield (
                f"Training continued from a checkpoint in {place}, after epoch {state.epoch}{step}, with the learning "
                "rate and the rest of the optimizer's state. Choose another modelDir to train from the beginning."
            )
        if unused := keys_with_state(state.callbacks) - {*self._callbacks}:
            yield (
                f"{place} has states of callbacks that this fit does not have: {sorted(unused)}. It has "
                f"{sorted(self._callbacks)}."
            )

    def restore_what_begins(self) -> None:
        """Restore what callbacks have just reset, at the beginning of the training or of the epoch that it resumes."""
        if self._loaded is not None:
            state, scalars = self._loaded
            assign_all(self._variables.scalars, scalars)
            set_callback_states(self._callbacks, state.callbacks)

    def note_position(self, epoch: int, step: int, is_saved: bool = False) -> None:
        """Have the driver know how far the training is, or with `is_saved` the saved state; the chief calls this."""
        self._ctx._node.note_position(Position(epoch, step, self._data.train.steps), is_saved)

    def _note_saved(self, state: TrainingState) -> None:
        self.note_position(state.epoch, state.step, is_saved=True)

    def save(self, epoch: int, step: int, stopped: bool, seconds: float = 0.0) -> None:
        """Begin to save the state after `step` steps of an epoch, which have taken so many seconds."""
        metrics: list[Array] = []
        if step:  # all workers, after the same step
            metrics = self._group.all_sum([np.asarray(v) for v in metric_variables(self._variables.model)])
        if self._checkpoints is None or self._states is None:
            return
        self._checkpoints.wait()
        left_out = save_weights(self._variables, self._checkpoints.weights_file)
        callbacks, notices = self._states.take()
        self._notices += [notice for notice in notices if notice not in self._notices]
        state = TrainingState(
            epoch=epoch,
            step=step,
            stopped=stopped,
            history=list(self._history),
            elapsed=seconds,
            identity=self._identity,
            random=random_state(),
            digest=digest(self._variables.shared),
            seeds=[np.array(v) for v in self._variables.seeds],
            metrics=metrics,
            variables=left_out,
            callbacks=callbacks,
        )
        self._checkpoints.save(state)

    def wait(self) -> None:
        """Wait until what was saved is complete."""
        if self._checkpoints is not None:
            self._checkpoints.wait()


@contextlib.contextmanager
def _terminations(noted: list[int]) -> Iterator[None]:
    """Note SIGTERM in this process, a node's own, instead of ending; unless the program handles it itself."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
