"""How gradients are put together for the workers' sums."""

import numpy as np
import pytest
import tensorflow as tf

from tfos_ml.keras.collectives import group as worker_group


class Recording(worker_group.WorkerGroup):
    """Two workers, of which the other has the same gradients; notes how many numbers are summed at once."""

    def __init__(self):
        super().__init__(0, 2, timeout=1.0)
        self.summed = []

    def all_reduce(self, value, name, op="Add"):
        self.summed.append((name, int(value.shape[0])))
        return 2 * value


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setattr(worker_group, "BUCKET_BYTES", 400)


def test_the_last_gradients_which_come_first_are_summed_first(small_buckets):
    group, sizes = Recording(), [10, 20, 90, 50, 40, 200]
    gradients = [tf.fill([size], float(size)) for size in sizes]
    summed = group.all_sum_gradients(
        [*gradients, None], tf.constant(0.5), [g.shape for g in [*gradients, gradients[0]]]
    )
    assert group.summed == [("gradients-0", 200), ("gradients-1", 90), ("gradients-2", 90), ("gradients-3", 30)]
    assert summed.pop() is None
    for found, expected in zip(summed, gradients, strict=True):
        np.testing.assert_array_equal(found, expected)
