import contextlib
import json
import os
import random
import threading
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from conftest import open_for

from tfos_ml.errors import ModelDirError, ModelError, SupersededError
from tfos_ml.keras.checkpoint.callback_state import OF_KERAS, CallbackStates, by_key, set_callback_states
from tfos_ml.keras.checkpoint.directory import FOLDER
from tfos_ml.keras.checkpoint.files import Checkpoints
from tfos_ml.keras.checkpoint.state import (
    TrainingState,
    assign_all,
    load_weights,
    random_state,
    save_weights,
    set_random_state,
)
from tfos_ml.keras.step.variables import TrainingVariables, digest


@pytest.fixture
def checkpoints(tmp_path):
    """Those of a run."""
    with contextlib.ExitStack() as stack:
        yield lambda run_id="run", **options: stack.enter_context(Checkpoints(str(tmp_path), run_id, **options))


@pytest.fixture
def state_of():
    def state_of(epoch, step=0, **changes):
        state = TrainingState(
            epoch=epoch,
            step=step,
            stopped=False,
            history=[{"loss": 1 / (e + 3), "val_loss": float("nan")} for e in range(epoch)],
            elapsed=0.25,
            identity="model",
            seeds=[np.array([epoch, 7], np.uint32)],
            random={"python": [3, [1, 2], None], "numpy": ["MT19937", [0, 1, 2, 3], 624, 0, 0.0]},
            digest=11,
            metrics=[np.array(0.5, np.float32), np.zeros(0, bool), np.ones((2, 1, 3))],
            callbacks=b"x",
        )
        return replace(state, **changes)

    return state_of


def save(checkpoints, state, weights=b"weights"):
    """Write a checkpoint and wait until it is there."""
    checkpoints.wait()
    checkpoints.weights_file.write_bytes(weights)
    checkpoints.save(state)
    checkpoints.wait()


def folders(directory):
    return sorted(path.name for path in (directory / FOLDER).iterdir() if path.is_dir())


def folder(directory, epoch, run_id="run", step=0):
    return directory / FOLDER / f"epoch-{epoch:05d}-step-{step:06d}-{run_id}"


FILES = ("state.json", "arrays.npz", "callbacks.pkl", "model.weights.h5")


def assert_same(found, state, weights=b"weights"):
    loaded = found.load()
    assert found.weights_file.read_bytes() == weights
    assert repr(loaded) == repr(state)  # as NaN is not equal to itself


class TestCheckpoints:
    def test_the_furthest_one_is_taken_and_two_are_kept(self, checkpoints, state_of, tmp_path):
        for epoch, step in ((0, 50), (0, 100), (1, 0), (1, 50)):
            save(checkpoints(), state_of(epoch, step))
        assert folders(tmp_path) == ["epoch-00001-step-000000-run", "epoch-00001-step-000050-run"]
        assert_same(checkpoints("next"), state_of(1, 50))

    def test_of_two_attempts_the_later_one_writes_and_goes_on_from_what_counted(self, checkpoints, state_of, tmp_path):
        cut_off = checkpoints("first")
        save(cut_off, state_of(1))
        restarted = checkpoints("second")
        assert restarted.load().epoch == 1
        with pytest.raises(SupersededError, match="taken over by a later attempt"):
            save(cut_off, state_of(2))
        save(restarted, state_of(2))
        assert folders(tmp_path) == ["epoch-00001-step-000000-first", "epoch-00002-step-000000-second"]

    def test_of_another_format_are_refused_by_name(self, checkpoints, state_of, tmp_path):
        save(checkpoints(), state_of(1))
        path = folder(tmp_path, 1) / "state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
        with pytest.raises(ModelDirError, match="checkpoint of format 9, written by another version"):
            checkpoints().load()

    def test_that_cannot_be_written_are_a_typed_error(self, checkpoints, state_of, tmp_path):
        save(checkpoints(), state_of(1))
        folder(tmp_path, 2).write_text("in the way")
        with pytest.raises(ModelDirError, match=rf"modelDir='{tmp_path}' cannot be written"):
            save(checkpoints(), state_of(2))
        assert_same(checkpoints("next"), state_of(1))

    def test_a_store_that_does_not_answer_is_an_error_after_a_time(self, checkpoints, state_of, tmp_path):
        pipe = folder(tmp_path, 1) / "model.weights.h5"
        pipe.parent.mkdir(parents=True)
        os.mkfifo(pipe)  # which waits for a reader
        try:
            with pytest.raises(ModelDirError, match=r"not answered for feedTimeout=0\.2 s\. Check the store, or raise"):
                save(checkpoints(timeout=0.2), state_of(1))
        finally:
            open_for(pipe)

    @pytest.mark.parametrize("file", FILES)
    def test_that_are_damaged_give_way_to_the_one_before(self, checkpoints, state_of, tmp_path, file):
        for epoch in (1, 2):
            save(checkpoints(), state_of(epoch))
        path = folder(tmp_path, 2) / file
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.warns(UserWarning, match="Checkpoint epoch-00002-step-000000-run .* is incomplete and is skipped"):
            assert_same(checkpoints(), state_of(1))


def states_of(callbacks):
    """A function that takes the states of callbacks as a checkpoint does, and sets them for others."""
    states = CallbackStates(by_key(callbacks))

    def take():
        pickled, notices = states.take()
        return SimpleNamespace(
            pickled=pickled, notices=notices, given_to=lambda *fresh: set_callback_states(by_key(fresh), pickled)
        )

    return take


class LossHistory(keras.callbacks.Callback):
    """After Keras's guide."""

    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


class TestCallbacks:
    def test_settings_are_those_of_the_new_fit_and_a_best_value_is_of_its_metric(self):
        first = keras.callbacks.EarlyStopping("val_loss", patience=3)
        take = states_of([first])
        first.wait, first.best = 2, 0.5
        state = take()
        other = keras.callbacks.EarlyStopping("val_loss", patience=10, min_delta=0.1)
        state.given_to(other)
        assert (other.patience, other.min_delta, other.wait, other.best) == (10, 0.1, 2, 0.5)
        other = keras.callbacks.EarlyStopping("val_auc", mode="max")
        state.given_to(other)
        assert (other.monitor, other.wait, other.best) == ("val_auc", 0, None)

    def test_state_finds_its_class_in_another_list(self, tmp_path):
        losses, stopping = LossHistory(), keras.callbacks.EarlyStopping("loss")
        take = states_of([losses, stopping, second := LossHistory()])
        losses.losses, stopping.wait, second.losses = [1.0], 4, [2.0]
        logger, new = keras.callbacks.CSVLogger(str(tmp_path / "log")), keras.callbacks.EarlyStopping("loss")
        fresh = [logger, new, LossHistory(), LossHistory()]
        take().given_to(*fresh)
        assert not hasattr(logger, "wait")
        assert (new.wait, fresh[2].losses, fresh[3].losses) == (4, [1.0], [2.0])

    def test_state_is_a_copy_of_the_moment(self):
        history = LossHistory()
        take = states_of([history])
        history.losses = [1.0, 2.0]
        history.by_name = {"loss": history.losses}
        state = take()
        history.losses.append(3.0)
        fresh = LossHistory()
        for _ in range(2):  # when the training, and when its epoch begins
            state.given_to(fresh)
            assert fresh.losses == [1.0, 2.0]
            fresh.losses.append(4.0)
        assert fresh.by_name["loss"] is fresh.losses

    def test_a_class_may_say_what_its_state_is(self):
        class Own(keras.callbacks.EarlyStopping):
            def __init__(self):
                super().__init__()
                self.seen, self.log = 0, []

            def get_state(self):
                return self.seen

            def set_state(self, state):
                self.seen = state

        first, fresh = Own(), Own()
        take = states_of([first])
        first.seen, first.log, first.wait = 5, ["a"], 2
        take().given_to(fresh)
        assert (fresh.seen, fresh.log, fresh.wait) == (5, [], 2)

    def test_attributes_that_did_not_change_are_settings(self):
        class Counting(keras.callbacks.Callback):
            def __init__(self, every):
                super().__init__()
                self.every, self.count, self.name = every, 0, {"of": [every]}
                self.lock, self.rule = threading.Lock(), lambda epoch: epoch

        first, fresh = Counting(3), Counting(7)
        take = states_of([first])
        first.count, first.seen = 5, deque("a")
        state = take()
        state.given_to(fresh)
        assert (fresh.every, fresh.count, fresh.name, fresh.seen) == (7, 5, {"of": [7]}, deque("a"))
        assert fresh.lock is not first.lock
        assert not state.notices

    def test_what_cannot_be_saved_is_said(self):
        class Averaging(keras.callbacks.Callback):
            def __init__(self):
                super().__init__()
                self.mean, self.teacher = keras.metrics.Mean(), keras.layers.Dense(1)

            def on_train_begin(self, logs=None):
                self.lock, self.sums = threading.Lock(), [keras.Variable(0.0)]

        callback = Averaging()
        take = states_of([callback])
        callback.on_train_begin()
        callback.mean.update_state(2.0)
        assert take().notices == [
            "Averaging: checkpoints are without its ['mean', 'lock', 'sums'], which cannot be pickled or hold "
            "variables. Give the class get_state() and set_state(state), so that a fit can resume."
        ]

    def test_keras_has_the_attributes_with_its_state(self, tmp_path):
        for name in ("EarlyStopping", "History", "ModelCheckpoint", "ReduceLROnPlateau", "TensorBoard"):
            kind = getattr(keras.callbacks, name)
            callback = kind(str(tmp_path / "log.keras")) if name in ("ModelCheckpoint", "TensorBoard") else kind()
            callback.set_model(keras.Sequential())
            callback.on_train_begin()
            assert {*OF_KERAS[name]} <= {*vars(callback)}


class TestVariables:
    def test_weights_come_back_with_the_optimizers_state(self, tmp_path):
        layers = [keras.layers.Dense(3, "relu"), keras.layers.Dense(3), keras.layers.Dropout(0.5)]
        model = keras.Sequential([keras.layers.Input((3,), dtype="bfloat16"), *layers])
        for layer in layers:
            layer.dtype_policy = "bfloat16"
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        trained, path = TrainingVariables(model, [model.optimizer], []), tmp_path / "model.weights.h5"
        for _ in range(2):
            variables = [np.array(variable) for variable in trained.shared]
            assert save_weights(trained, path) == []
            model.fit(np.ones((8, 3)), np.arange(24).reshape(8, 3), verbose=0)
            load_weights(trained, path, [], digest(variables))
            for variable, value in zip(trained.shared, variables, strict=True):
                np.testing.assert_array_equal(np.asarray(variable), value)
            model.fit(np.ones((8, 3)), np.arange(24).reshape(8, 3), verbose=0)

    def test_variables_that_keras_does_not_save_are_saved_all_the_same(self, tmp_path, state_of):
        class Forgetful(keras.layers.Dense):
            def save_own_variables(self, store):
                store["0"] = self.kernel

            def load_own_variables(self, store):
                self.kernel.assign(store["0"])

        model = keras.Sequential([keras.layers.Input((3,)), Forgetful(2, dtype="bfloat16"), keras.layers.Dense(2)])
        model.layers[1].enable_lora(1)
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        trained, path = TrainingVariables(model, [model.optimizer], []), tmp_path / "model.weights.h5"
        for variable in model.weights:
            variable.assign(np.ones(variable.shape))
        state, expected = state_of(1, variables=save_weights(trained, path)), digest(trained.shared)
        assert sorted(value.shape for value in state.variables) == [(1, 2), (2,), (2, 1)]
        saved = TrainingState.from_files(state.to_files()).variables
        for variable in model.weights:
            variable.assign(np.zeros(variable.shape))
        with pytest.raises(ModelError, match="does not restore all variables"):
            load_weights(trained, path, [np.zeros(value.shape) for value in saved], expected)
        load_weights(trained, path, saved, expected)
        assert all(np.all(weights == 1) for weights in model.get_weights())

    def test_random_generators_go_on(self):
        state = json.loads(json.dumps(random_state()))
        drawn = random.random(), np.random.normal()
        set_random_state(state)
        assert (random.random(), np.random.normal()) == drawn

    def test_of_another_model_are_refused(self):
        kernel, bias = keras.Variable(np.zeros((3, 2))), keras.Variable(np.zeros(2))
        assign_all([kernel, bias], [np.ones((3, 2)), np.ones(2)])
        assert np.asarray(kernel).sum() == 6
        with pytest.raises(ModelError, match="The checkpoint in modelDir is of another model"):
            assign_all([kernel, bias], [np.zeros((3, 2)), np.zeros(3)])
        assert np.asarray(kernel).sum() == 6
