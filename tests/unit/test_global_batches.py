import itertools

import numpy as np
import pytest
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


class TestGlobalBatches:
    @pytest.mark.parametrize("workers", [1, 2, 7, 50])
    @pytest.mark.parametrize("seed", [None, SEED])
    def test_a_step_has_the_same_rows_for_any_number_of_workers(self, workers, seed):
        """And each row comes once an epoch, as it does in those of one worker."""
        for epoch, batch in itertools.product(range(3), [1, 8, TOTAL, 1000]):
            alone = steps_of(np.arange(TOTAL), TOTAL, batch, seed, epoch)
            assert sorted(np.concatenate(alone)) == list(range(TOTAL))
            together = [steps_of(places, TOTAL, batch, seed, epoch) for places in shares(workers)]
            for number, rows in enumerate(alone):
                assert sorted(np.concatenate([worker[number] for worker in together])) == sorted(rows)

    def test_all_steps_but_the_last_are_full(self):
        for total, batch, steps in [(0, 4, 0), (1, 4, 1), (8, 4, 2), (9, 4, 3), (3, 100, 1)]:
            batches = GlobalBatches(np.arange(total), total, batch)
            sizes = batches.plan(SEED, 0).sizes
            assert batches.steps == len(sizes) == steps
            assert sizes.sum() == len(batches) == total
            assert (sizes[:-1] == batch).all()


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_dense_places_are_the_numbers_of_marked_rows_below(share):
    for total in (1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000):
        marked = np.flatnonzero(np.random.default_rng(total).random(total) <= share)
        bitmap = mark_rows(marked, total)
        every = np.arange(total)
        assert dense_places(every, bitmap).tolist() == np.searchsorted(marked, every).tolist()
        assert dense_places(marked, bitmap).tolist() == list(range(len(marked)))


ROWS = 10


@pytest.fixture(scope="module", autouse=True)
def tensorflow():
    import tensorflow

    return tensorflow


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
    import tensorflow as tf

    batches = GlobalBatches(store.indices, ROWS, batch)
    width = store.shapes[0][0]
    spec = (tf.TensorSpec([None, width], tf.int64), tf.TensorSpec([None], tf.int64))
    return make_global_dataset(store, batches, seed, lambda: 0, lambda rows, at, step: rows.gather(at, pad_value), spec)


def labels_of(dataset):
    return [labels.tolist() for (_, labels), _ in dataset.as_numpy_iterator()]


class TestDataset:
    @pytest.mark.parametrize(("ragged", "seed"), [(False, None), (False, SEED), (True, SEED)])
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

    def test_a_step_without_rows_of_this_worker_is_an_empty_batch(self, make_store):
        store = make_store(1, 5)  # rows 1 and 6
        found = pass_of(store, batch=2)
        assert found.cardinality() == 5
        assert [(x.shape, y.tolist()) for (x, y), _ in found.as_numpy_iterator()] == [
            ((1, 2), [1]),
            ((0, 2), []),
            ((0, 2), []),
            ((1, 2), [6]),
            ((0, 2), []),
        ]

    @pytest.mark.parametrize("ragged", [False, True])
    def test_a_worker_without_rows_has_all_steps_too(self, make_store, ragged):
        found = pass_of(make_store(ROWS, ROWS + 1, ragged))
        assert found.cardinality() == 3
        assert labels_of(found) == [[], [], []]

    def test_ragged_rows_are_padded_to_the_longest_of_this_workers_rows_in_the_step(self, make_store):
        whole = pass_of(make_store(ragged=True), pad_value=-1)
        assert [x.shape for (x, _), _ in whole.as_numpy_iterator()] == [(4, 4), (4, 8), (2, 10)]
        first, *_ = pass_of(make_store(0, 2, ragged=True), pad_value=-1).as_numpy_iterator()
        assert first[0][0].tolist() == [[1, -1, -1], [3, 3, 3]]

    def test_steps_do_not_depend_on_the_size_of_blocks(self, make_store, monkeypatch):
        store = make_store(1, 3)
        expected = labels_of(pass_of(store, batch=2, seed=SEED))
        for block_rows in (1, 3, 8):
            monkeypatch.setattr(row_store_module, "BLOCK_ROWS", block_rows)
            assert labels_of(pass_of(store, batch=2, seed=SEED)) == expected
