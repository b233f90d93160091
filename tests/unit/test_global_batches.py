import itertools

import numpy as np
import pytest
import tensorflow as tf
from keras_worker import worker_context

from tfos_ml.data.spool import SpoolDirectories
from tfos_ml.worker import row_store as row_store_module
from tfos_ml.worker.global_batches import GlobalBatches, dense_places, make_global_dataset, mark_rows

SEED, TOTAL = 11, 37


def shares(workers, total=TOTAL, seed=3):
    """Rows of each worker, as they fell to it."""
    of = np.random.default_rng(seed).integers(0, workers, total)
    return [np.random.default_rng(seed).permutation(np.flatnonzero(of == worker)) for worker in range(workers)]


def steps_of(places, total, batch, seed=None, epoch=0):
    """The rows of each step, as one worker takes them."""
    plan = GlobalBatches(places, total, batch).plan(seed, epoch)
    return np.split(places[plan.order], np.cumsum(plan.sizes)[:-1])


@pytest.mark.parametrize("workers", [2, 50])
@pytest.mark.parametrize("seed", [None, SEED])
def test_a_step_has_the_same_rows_for_any_number_of_workers(workers, seed):
    """And each row comes once an epoch, as it does in those of one worker."""
    for epoch, batch in itertools.product(range(3), [1, 8, TOTAL, 1000]):
        alone = steps_of(np.arange(TOTAL), TOTAL, batch, seed, epoch)
        assert sorted(np.concatenate(alone)) == list(range(TOTAL))
        together = [steps_of(places, TOTAL, batch, seed, epoch) for places in shares(workers)]
        for number, rows in enumerate(alone):
            assert sorted(np.concatenate([worker[number] for worker in together])) == sorted(rows)


def test_dense_places_are_the_numbers_of_marked_rows_below():
    for total in (1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000):
        marked = np.flatnonzero(np.random.default_rng(total).random(total) <= 0.5)
        bitmap = mark_rows(marked, total)
        every = np.arange(total)
        assert dense_places(every, bitmap).tolist() == np.searchsorted(marked, every).tolist()
        assert dense_places(marked, bitmap).tolist() == list(range(len(marked)))


ROWS = 10


@pytest.fixture
def make_store(tmp_path):
    """The rows of one of some workers, spooled and opened; label is the number of the row."""

    def make_store(rank=0, size=1, ragged=False):
        x = np.stack([np.arange(ROWS), np.arange(ROWS) * 10], axis=1).astype("i8")
        data = {"x": x, "y": np.arange(ROWS), "w": None, "val": None}
        if ragged:
            numbers = np.arange(1, ROWS + 1)
            data["x"] = np.where(np.arange(ROWS) < numbers[:, None], numbers[:, None], 0).astype("i8")
            data["lengths"] = numbers
        directory = tmp_path / f"{rank}-{size}"
        directory.mkdir()
        return worker_context(data, rank, size, False, SpoolDirectories(None, directory))._node.rows.store("train")

    return make_store


def pass_of(store, batch=4, seed=None, pad_value=0):
    """One pass as a dataset of (features, label)."""

    batches = GlobalBatches(store.indices, ROWS, batch)
    width = store.shapes[0][0]
    spec = (tf.TensorSpec([None, width], tf.int64), tf.TensorSpec([None], tf.int64))
    return make_global_dataset(store, batches, seed, lambda: 0, lambda rows, at, step: rows.gather(at, pad_value), spec)


def labels_of(dataset):
    return [labels.tolist() for (_, labels), _ in dataset.as_numpy_iterator()]


class TestDataset:
    @pytest.mark.parametrize(("ragged", "seed"), [(False, None), (True, SEED)])
    def test_batches_know_their_places_in_the_steps_of_all_workers(self, make_store, ragged, seed):
        alone = labels_of(pass_of(make_store(ragged=ragged), seed=seed))
        places: list[list[int]] = [[] for _ in alone]
        for rank in range(3):
            batches = list(pass_of(make_store(rank, 3, ragged), seed=seed).as_numpy_iterator())
            assert [(int(step.number), int(step.total)) for _, step in batches] == [(0, 4), (1, 4), (2, 2)]
            for number, ((_, labels), step) in enumerate(batches):
                assert [alone[number][place] for place in step.places] == labels.tolist()
                places[number] += step.places.tolist()
        assert [sorted(each) for each in places] == [[*range(len(step))] for step in alone]

    def test_steps_do_not_depend_on_the_size_of_blocks(self, make_store, monkeypatch):
        store = make_store(1, 3)
        expected = labels_of(pass_of(store, batch=2, seed=SEED))
        for block_rows in (1, 3, 8):
            monkeypatch.setattr(row_store_module, "BLOCK_ROWS", block_rows)
            assert labels_of(pass_of(store, batch=2, seed=SEED)) == expected
