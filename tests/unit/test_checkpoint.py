import contextlib
import itertools
import json
import os
import random
import subprocess
import tempfile
import threading
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import open_for

from tfos_ml.errors import DestinationError, ModelDirError, ModelError, SupersededError
from tfos_ml.keras.checkpoint.directory import FOLDER, check_model_dir


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


@pytest.fixture
def checkpoints(tmp_path):
    """Those of a run."""
    from tfos_ml.keras.checkpoint.files import Checkpoints

    with contextlib.ExitStack() as stack:
        yield lambda run_id="run", **options: stack.enter_context(Checkpoints(str(tmp_path), run_id, **options))


@pytest.fixture
def state_of():
    from tfos_ml.keras.checkpoint.state import TrainingState

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
            metrics=[np.array(0.5, np.float32), np.ones((2, 3))],
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


SILENT = "has not answered for feedTimeout=0.2 s. Check the store, or raise feedTimeout"


@contextlib.contextmanager
def hanging(path):
    """A file whose opening waits: a pipe that no one reads."""
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        open_for(path)


def folders(directory):
    return sorted(path.name for path in (directory / FOLDER).iterdir() if path.is_dir())


def folder(directory, epoch, run_id="run", step=0):
    return directory / FOLDER / f"epoch-{epoch:05d}-step-{step:06d}-{run_id}"


FILES = ("state.json", "arrays.npz", "callbacks.pkl", "model.weights.h5")
DAMAGES = [
    *itertools.product(FILES, ["missing", "truncated", "empty"]),
    *itertools.product(FILES[1:], ["changed"]),
]


def damage(folder, file, how):
    path = folder / file
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "changed":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def assert_same(found, state, weights=b"weights"):
    loaded = found.load()
    assert found.weights_file.read_bytes() == weights
    assert repr(loaded) == repr(state)  # as NaN is not equal to itself


class TestCheckpoints:
    def test_come_back_as_they_were_saved(self, checkpoints, state_of):
        state = state_of(3, 140, stopped=True)
        save(checkpoints(), state, b"1234" * 500_000)
        assert_same(checkpoints("next"), state, b"1234" * 500_000)

    def test_the_furthest_one_is_taken_and_two_are_kept(self, checkpoints, state_of, tmp_path):
        for epoch, step in ((0, 50), (0, 100), (1, 0), (1, 50)):
            save(checkpoints(), state_of(epoch, step))
        assert folders(tmp_path) == ["epoch-00001-step-000000-run", "epoch-00001-step-000050-run"]
        assert_same(checkpoints(), state_of(1, 50))

    def test_of_two_attempts_the_later_one_writes_and_goes_on_from_what_counted(self, checkpoints, state_of, tmp_path):
        cut_off = checkpoints("first")
        save(cut_off, state_of(1))
        restarted = checkpoints("second")
        assert restarted.load().epoch == 1
        with pytest.raises(SupersededError, match="taken over by a later attempt"):
            save(cut_off, state_of(2))
        save(restarted, state_of(2))
        assert folders(tmp_path) == ["epoch-00001-step-000000-first", "epoch-00002-step-000000-second"]

    def test_what_a_cut_off_attempt_completes_late_is_passed_over(self, checkpoints, state_of, tmp_path):
        cut_off = checkpoints("first")
        save(cut_off, state_of(1))
        save(cut_off, state_of(5))
        late = tmp_path / "late"
        folder(tmp_path, 5, "first").rename(late)
        restarted = checkpoints("second")
        assert restarted.load().epoch == 1
        late.rename(folder(tmp_path, 5, "first"))
        assert checkpoints("third").load().epoch == 1

    def test_a_store_that_does_not_answer_is_an_error_after_a_time(self, checkpoints, state_of, tmp_path):
        with hanging(folder(tmp_path, 1) / "model.weights.h5"), pytest.raises(ModelDirError, match=SILENT):
            save(checkpoints(timeout=0.2), state_of(1))

    def test_a_store_that_does_not_answer_at_the_beginning_is_one_too(self, checkpoints, tmp_path):
        with hanging(tmp_path / FOLDER / "attempt-000001-run"), pytest.raises(ModelDirError, match=SILENT):
            checkpoints(timeout=0.2).load()

    def test_of_another_format_are_refused_by_name(self, checkpoints, state_of, tmp_path):
        save(checkpoints(), state_of(1))
        path = folder(tmp_path, 1) / "state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
        with pytest.raises(ModelDirError, match="checkpoint of format 9, written by another version"):
            checkpoints().load()

    def test_nothing_is_left_beside_the_directory(self, state_of, tmp_path, monkeypatch):
        from tfos_ml.keras.checkpoint.files import Checkpoints

        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
        (tmp_path / "scratch").mkdir()
        with Checkpoints(str(tmp_path / "model"), "run") as checkpoints:
            save(checkpoints, state_of(1))
            assert checkpoints.load()
        assert not list((tmp_path / "scratch").iterdir())

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint32", "bool"])
    def test_keep_every_dtype_and_shape(self, checkpoints, state_of, dtype):
        arrays = [np.ones(shape, dtype) for shape in [(), (0,), (3,), (2, 1, 2)]]
        save(checkpoints(), state_of(1, metrics=arrays))
        found = checkpoints().load().metrics
        assert [(a.dtype, a.shape, a.tobytes()) for a in found] == [(a.dtype, a.shape, a.tobytes()) for a in arrays]

    def test_that_a_full_directory_has_no_room_for_are_a_typed_error(self, checkpoints, state_of, tmp_path):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr}")
        try:
            save(checkpoints(), state_of(1))
            with pytest.raises(ModelDirError, match=rf"modelDir='{tmp_path}' cannot be written: .*No space left"):
                save(checkpoints(), state_of(2), bytes(1 << 21))
            assert not list(folder(tmp_path, 2).glob("state*"))
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)

    @pytest.mark.parametrize(("file", "how"), DAMAGES)
    def test_that_are_damaged_give_way_to_the_one_before(self, checkpoints, state_of, tmp_path, file, how):
        for epoch in (1, 2):
            save(checkpoints(), state_of(epoch))
        damage(folder(tmp_path, 2), file, how)
        with pytest.warns(UserWarning, match="Checkpoint epoch-00002-step-000000-run .* is incomplete and is skipped"):
            assert_same(checkpoints(), state_of(1))


class TestModelDir:
    def test_directory_of_an_earlier_fit_is_taken(self, checkpoints, state_of, tmp_path):
        save(checkpoints(), state_of(1))
        (tmp_path / "notes.txt").touch()
        check_model_dir(str(tmp_path))

    def test_directory_of_other_things_is_refused_with_their_names(self, tmp_path):
        for name in "gfedcba":
            (tmp_path / name).touch()
        with pytest.raises(DestinationError) as caught:
            check_model_dir(str(tmp_path))
        assert str(caught.value) == (
            f"modelDir='{tmp_path}' holds other files: ['a', 'b', 'c', 'd', 'e']. Choose a new directory, or one of "
            "an earlier fit."
        )


def states_of(callbacks):
    """A function that takes the states of callbacks as a checkpoint does, and sets them for others."""
    from tfos_ml.keras.checkpoint.callback_state import CallbackStates, by_key, set_callback_states

    states = CallbackStates(by_key(callbacks))

    def take():
        pickled, notices = states.take()
        return SimpleNamespace(
            pickled=pickled, notices=notices, given_to=lambda *fresh: set_callback_states(by_key(fresh), pickled)
        )

    return take


def stand_in(**values):
    """As much of a model as callbacks look at between epochs."""
    optimizer = SimpleNamespace(learning_rate=0.5)
    return SimpleNamespace(optimizer=optimizer, stop_training=False, get_weights=lambda: [np.ones(2)], **values)


class TestCallbacks:
    def test_early_stopping_goes_on_counting(self, keras):
        def make():
            callback = keras.callbacks.EarlyStopping(monitor="loss", patience=2, mode="min", restore_best_weights=True)
            callback.set_model(stand_in())
            callback.on_train_begin()
            return callback

        first, second = make(), make()
        take = states_of([first])
        for epoch, loss in enumerate([1.0, 0.5, 0.6]):
            first.on_epoch_end(epoch, {"loss": loss})
        take().given_to(second)
        assert (second.wait, second.best, second.best_epoch) == (1, 0.5, 1)
        np.testing.assert_array_equal(second.best_weights, first.best_weights)
        second.on_epoch_end(3, {"loss": 0.7})
        assert second.model.stop_training
        assert not first.model.stop_training

    @pytest.mark.parametrize("is_subclass", [False, True])
    def test_a_plateau_goes_on_counting(self, keras, is_subclass):
        """Keras changes the sign of its ``min_delta`` when it chooses the function that compares, so only once."""

        class Own(keras.callbacks.ReduceLROnPlateau):
            pass

        def make():
            kind = Own if is_subclass else keras.callbacks.ReduceLROnPlateau
            callback = kind(monitor="loss", patience=2, min_delta=0.5)
            callback.set_model(stand_in())
            callback.on_train_begin()
            return callback

        first, second = make(), make()
        take = states_of([first])
        first.on_epoch_end(0, {"loss": 3.0})
        take().given_to(second)
        for epoch, loss in enumerate([2.8, 2.7], 1):
            second.on_epoch_end(epoch, {"loss": loss})
        assert second.best == 3.0
        assert float(second.model.optimizer.learning_rate) < 0.5

    def test_settings_are_those_of_the_new_fit(self, keras):
        first = keras.callbacks.EarlyStopping("val_loss", patience=3)
        take = states_of([first])
        first.wait, first.best = 2, 0.5
        other = keras.callbacks.EarlyStopping("val_loss", patience=10, min_delta=0.1)
        take().given_to(other)
        assert (other.patience, other.min_delta, other.wait, other.best) == (10, 0.1, 2, 0.5)

    def test_the_best_value_of_one_metric_is_not_that_of_another(self, keras):
        first = keras.callbacks.EarlyStopping("val_loss")
        take = states_of([first])
        first.wait, first.best = 2, 0.5
        other = keras.callbacks.EarlyStopping("val_auc", mode="max")
        take().given_to(other)
        assert (other.monitor, other.wait, other.best) == ("val_auc", 0, None)

    def test_state_finds_its_class_in_another_list(self, keras, tmp_path):
        losses, stopping = loss_history(keras)(), keras.callbacks.EarlyStopping("loss")
        take = states_of([losses, stopping, second := loss_history(keras)()])
        losses.losses, stopping.wait, second.losses = [1.0], 4, [2.0]
        logger, new = keras.callbacks.CSVLogger(str(tmp_path / "log")), keras.callbacks.EarlyStopping("loss")
        fresh = [logger, new, loss_history(keras)(), loss_history(keras)()]
        take().given_to(*fresh)
        assert not hasattr(logger, "wait")
        assert (new.wait, fresh[2].losses, fresh[3].losses) == (4, [1.0], [2.0])

    def test_state_is_a_copy_of_the_moment(self, keras):
        history = loss_history(keras)()
        take = states_of([history])
        history.losses = [1.0, 2.0]
        history.by_name = {"loss": history.losses}
        state = take()
        history.losses.append(3.0)
        fresh = loss_history(keras)()
        for _ in range(2):  # when the training, and when its epoch begins
            state.given_to(fresh)
            assert fresh.losses == [1.0, 2.0]
            fresh.losses.append(4.0)
        assert fresh.by_name["loss"] is fresh.losses

    def test_what_callbacks_share_they_share_again(self, keras):
        first, second, *fresh = (loss_history(keras)() for _ in range(4))
        take = states_of([first, second])
        first.losses = second.losses = [1.0]
        take().given_to(*fresh)
        assert fresh[0].losses == [1.0]
        assert fresh[0].losses is fresh[1].losses

    @pytest.mark.parametrize("is_subclass", [False, True])
    def test_a_class_may_say_what_its_state_is(self, keras, is_subclass):
        class Own(keras.callbacks.EarlyStopping if is_subclass else keras.callbacks.Callback):
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
        assert (fresh.seen, fresh.log, getattr(fresh, "wait", 0)) == (5, [], 2 if is_subclass else 0)

    def test_attributes_that_did_not_change_are_settings(self, keras):
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

    def test_what_cannot_be_saved_is_said(self, keras):
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

    @pytest.mark.parametrize(
        "name", ["EarlyStopping", "History", "ModelCheckpoint", "ReduceLROnPlateau", "TensorBoard"]
    )
    def test_keras_has_the_attributes_with_its_state(self, keras, tmp_path, name):
        from tfos_ml.keras.checkpoint.callback_state import OF_KERAS

        kind = getattr(keras.callbacks, name)
        callback = kind(str(tmp_path / "log.keras")) if name in ("ModelCheckpoint", "TensorBoard") else kind()
        callback.set_model(keras.Sequential())
        callback.on_train_begin()
        assert {*OF_KERAS[name]} <= {*vars(callback)}


def loss_history(keras):
    """The callback of Keras's guide."""

    class LossHistory(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.losses = []

        def on_train_batch_end(self, batch, logs=None):
            self.losses.append(logs["loss"])

    return LossHistory


class TestVariables:
    @pytest.fixture
    def model(self, keras):
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_weights_come_back_with_the_optimizers_state(self, keras, tmp_path, dtype):
        from tfos_ml.keras.checkpoint.state import load_weights, save_weights
        from tfos_ml.keras.step.variables import TrainingVariables, digest

        layers = [keras.layers.Dense(3, "relu"), keras.layers.Dense(3), keras.layers.Dropout(0.5)]
        model = keras.Sequential([keras.layers.Input((3,), dtype=dtype), *layers])
        for layer in layers:
            layer.dtype_policy = dtype
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        trained, path = TrainingVariables(model, [model.optimizer], []), tmp_path / "model.weights.h5"
        for _ in range(2):
            variables = [np.array(variable) for variable in trained.shared]
            assert save_weights(trained, path)
            model.fit(np.ones((8, 3)), np.arange(24).reshape(8, 3), verbose=0)
            load_weights(trained, path, [], digest(variables))
            for variable, value in zip(trained.shared, variables, strict=True):
                np.testing.assert_array_equal(np.asarray(variable), value)
            model.fit(np.ones((8, 3)), np.arange(24).reshape(8, 3), verbose=0)

    def test_variables_that_keras_does_not_save_are_saved_all_the_same(self, keras, tmp_path, state_of):
        from tfos_ml.keras.checkpoint.state import TrainingState, load_weights, save_weights
        from tfos_ml.keras.step.variables import TrainingVariables, digest

        class Forgetful(keras.layers.Dense):
            def save_own_variables(self, store):
                store["0"] = self.kernel

            def load_own_variables(self, store):
                self.kernel.assign(store["0"])

        model = keras.Sequential([keras.layers.Input((3,)), Forgetful(2, dtype="bfloat16")])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        trained, path = TrainingVariables(model, [model.optimizer], []), tmp_path / "model.weights.h5"
        model.layers[0].bias.assign([1.0, 2.0])
        assert not save_weights(trained, path)
        state = state_of(1, variables=[np.array(variable) for variable in trained.shared])
        saved, expected = TrainingState.from_files(state.to_files()), digest(trained.shared)
        model.layers[0].bias.assign([0.0, 0.0])
        with pytest.raises(ModelError, match="does not restore all variables"):
            load_weights(trained, path, [], expected)
        load_weights(trained, path, saved.variables, expected)
        assert np.asarray(model.layers[0].bias).tolist() == [1.0, 2.0]

    def test_random_generators_go_on(self):
        from tfos_ml.keras.checkpoint.state import random_state, set_random_state

        state = json.loads(json.dumps(random_state()))
        drawn = random.random(), np.random.normal()
        set_random_state(state)
        assert (random.random(), np.random.normal()) == drawn

    def test_of_another_model_are_refused(self, model):
        from tfos_ml.keras.checkpoint.state import assign_all

        kernel, bias = model.trainable_variables
        assign_all([kernel, bias], [np.ones((3, 2)), np.ones(2)])
        assert np.asarray(kernel).sum() == 6
        with pytest.raises(ModelError, match="The checkpoint in modelDir is of another model"):
            assign_all([kernel, bias], [np.zeros((3, 2)), np.zeros(3)])
        assert np.asarray(kernel).sum() == 6
