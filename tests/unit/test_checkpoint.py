import itertools
import subprocess
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tfos_ml.errors import DestinationError, ModelDirError, ModelError, SupersededError
from tfos_ml.keras.model_dir import FOLDER, check_model_dir


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


@pytest.fixture
def checkpoints(tmp_path):
    """Those of a run, by default of the only worker."""
    from tfos_ml.keras.checkpoint import Checkpoints
    from tfos_ml.keras.collectives import WorkerGroup

    def checkpoints(run_id="run", uri=None, is_chief=True, rank=0):
        return Checkpoints(str(tmp_path) if uri is None else uri, run_id, WorkerGroup(rank, 1, 60.0), is_chief)

    return checkpoints


@pytest.fixture
def state_of():
    from tfos_ml.keras.checkpoint import TrainingState

    def state_of(epoch, **changes):
        state = TrainingState(
            epoch=epoch,
            stopped=False,
            history=[{"loss": 1 / (e + 3), "val_loss": float(e)} for e in range(epoch)],
            identity="model",
            fingerprint="rows",
            shared=[np.full((2, 3), epoch, np.float32), np.array(epoch)],
            own={"random": [epoch], "callbacks": [b"x", None]},
        )
        return replace(state, **changes)

    return state_of


def folders(directory):
    return sorted(path.name for path in (directory / FOLDER).iterdir() if path.is_dir())


def epoch_folder(directory, epoch, run_id="run"):
    return directory / FOLDER / f"epoch-{epoch:05d}-{run_id}"


DAMAGES = [
    *itertools.product(["COMPLETE.json", "shared.npz", "worker-0.pkl"], ["missing", "truncated", "empty"]),
    *itertools.product(["shared.npz", "worker-0.pkl"], ["changed"]),
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


def assert_same(found, state):
    assert {**vars(found), "shared": None} == {**vars(state), "shared": None}
    assert len(found.shared) == len(state.shared)
    for one, other in zip(found.shared, state.shared, strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)


class TestCheckpoints:
    def test_come_back_as_they_were_saved(self, checkpoints, state_of):
        checkpoints().save(state_of(3, stopped=True))
        assert_same(checkpoints("next").load(), state_of(3, stopped=True))

    def test_of_two_attempts_the_later_one_writes_and_goes_on_from_what_counted(self, checkpoints, state_of, tmp_path):
        cut_off = checkpoints("first")
        cut_off.save(state_of(1))
        restarted = checkpoints("second")
        assert restarted.load().epoch == 1
        with pytest.raises(SupersededError, match="taken over by a later attempt"):
            cut_off.save(state_of(2))
        restarted.save(state_of(2))
        assert folders(tmp_path) == ["epoch-00001-first", "epoch-00002-second"]

    def test_what_a_cut_off_attempt_completes_late_is_passed_over(self, checkpoints, state_of, tmp_path):
        cut_off = checkpoints("first")
        cut_off.save(state_of(1))
        cut_off.save(state_of(5))
        late = tmp_path / "late"
        epoch_folder(tmp_path, 5, "first").rename(late)
        restarted = checkpoints("second")
        assert restarted.load().epoch == 1
        late.rename(epoch_folder(tmp_path, 5, "first"))
        assert checkpoints("third").load().epoch == 1

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint32", "bool"])
    def test_keep_every_dtype_and_shape(self, checkpoints, state_of, dtype):
        arrays = [np.ones(shape, dtype) for shape in [(), (0,), (3,), (2, 1, 2)]]
        checkpoints().save(state_of(1, shared=arrays))
        assert_same(checkpoints().load(), state_of(1, shared=arrays))

    def test_that_a_full_directory_has_no_room_for_are_a_typed_error(self, checkpoints, state_of, tmp_path):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr}")
        try:
            checkpoints().save(state_of(1))
            with pytest.raises(ModelDirError, match=rf"modelDir='{tmp_path}' cannot be written: .*No space left"):
                checkpoints().save(state_of(2, shared=[np.zeros(1 << 18)]))
            assert not list(epoch_folder(tmp_path, 2).glob("COMPLETE*"))
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)

    @pytest.mark.parametrize(("file", "how"), DAMAGES)
    def test_that_are_damaged_give_way_to_the_one_before(self, checkpoints, state_of, tmp_path, file, how):
        for epoch in (1, 2):
            checkpoints().save(state_of(epoch))
        damage(epoch_folder(tmp_path, 2), file, how)
        with pytest.warns(UserWarning, match="Checkpoint epoch-00002-run .* is incomplete and is skipped"):
            found = checkpoints().load()
        assert_same(found, state_of(1))

    def test_of_fewer_workers_give_a_new_worker_the_random_states_of_another(self, checkpoints, state_of):
        checkpoints().save(state_of(1))
        assert_same(checkpoints(rank=1).load(), state_of(1))


class TestModelDir:
    def test_directory_of_an_earlier_fit_is_taken(self, checkpoints, state_of, tmp_path):
        checkpoints().save(state_of(1))
        (tmp_path / "notes.txt").touch()
        check_model_dir(str(tmp_path))

    def test_directory_of_other_things_is_refused_with_their_names(self, tmp_path):
        for name in "gfedcba":
            (tmp_path / name).touch()
        with pytest.raises(DestinationError) as caught:
            check_model_dir(str(tmp_path))
        assert str(caught.value) == (
            f"modelDir='{tmp_path}' holds other things: ['a', 'b', 'c', 'd', 'e']. Choose a new directory, or one of "
            "an earlier fit."
        )


@pytest.fixture
def passed_on(keras):
    """A callback made anew by `make`, with the state of another."""
    from tfos_ml.keras.checkpoint import callback_state, set_callback_state

    def passed_on(callback, make):
        states = callback_state([callback])
        fresh = make()
        set_callback_state([fresh], states)
        return fresh

    return passed_on


def stand_in(**values):
    """As much of a model as callbacks look at between epochs."""
    optimizer = SimpleNamespace(learning_rate=0.5)
    return SimpleNamespace(optimizer=optimizer, stop_training=False, get_weights=lambda: [np.ones(2)], **values)


class TestCallbacks:
    def test_early_stopping_goes_on_counting(self, keras, passed_on):
        def make():
            callback = keras.callbacks.EarlyStopping(monitor="loss", patience=2, mode="min", restore_best_weights=True)
            callback.set_model(stand_in())
            callback.on_train_begin()
            return callback

        first = make()
        for epoch, loss in enumerate([1.0, 0.5, 0.6]):
            first.on_epoch_end(epoch, {"loss": loss})
        second = passed_on(first, make)
        assert (second.wait, second.best, second.best_epoch) == (1, 0.5, 1)
        np.testing.assert_array_equal(second.best_weights, first.best_weights)
        second.on_epoch_end(3, {"loss": 0.7})
        assert second.model.stop_training
        assert not first.model.stop_training

    def test_callback_that_cannot_be_pickled_begins_anew(self, keras, passed_on):
        from tfos_ml.keras.checkpoint import callback_state

        class Locked(keras.callbacks.Callback):
            def __init__(self):
                super().__init__()
                self.lock, self.count = threading.Lock(), 0

        first = Locked()
        first.count = 5
        assert callback_state([first]) == [None]
        assert passed_on(first, Locked).count == 0


class TestVariables:
    @pytest.fixture
    def model(self, keras):
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    def test_states_of_seed_generators_are_a_workers_own(self, model):
        from tfos_ml.keras.checkpoint import split_variables

        _, own = split_variables(model)
        assert [id(v) for v in own] == [id(model.layers[-1].seed_generator.state)]

    def test_of_another_model_are_refused(self, model):
        from tfos_ml.keras.checkpoint import assign_all

        kernel, bias = model.trainable_variables
        assign_all([kernel, bias], [np.ones((3, 2)), np.ones(2)])
        assert np.asarray(kernel).sum() == 6
        with pytest.raises(ModelError, match="The checkpoint in modelDir is of another model"):
            assign_all([kernel, bias], [np.zeros((3, 2)), np.zeros(3)])
        assert np.asarray(kernel).sum() == 6
