import itertools

import numpy as np
import pytest

from tfos_ml.data.row_order import (
    PARTITION_SHIFT,
    agree_steps,
    batch_sizes,
    global_indices,
    partition_counts,
    permute,
    total_counts,
)
from tfos_ml.errors import EmptyDataError


def shuffled(total, seed=0, epoch=0):
    return permute(np.arange(total), total, seed, epoch)


def row_ids(counts):
    """The ids that Spark gives the rows of partitions of these sizes."""
    return np.concatenate([(p << PARTITION_SHIFT) + np.arange(n) for p, n in enumerate(counts)]).astype(np.int64)


class TestPermute:
    def test_is_a_bijection_for_every_small_total(self):
        for total in range(1, 201):
            assert sorted(shuffled(total, seed=total)) == list(range(total)), total

    def test_is_a_bijection_for_a_large_total(self):
        for total in (2**16 - 1, 2**16, 2**16 + 1, 100_003):
            places = shuffled(total, seed=7, epoch=3)
            assert places.dtype == np.int64
            assert (np.bincount(places, minlength=total) == 1).all()

    @pytest.mark.parametrize("seeds", [(0, 1), (-1, 1), (2**63, -(2**63) + 1)])
    def test_depends_on_the_seed(self, seeds):
        assert shuffled(50, seed=seeds[0]).tolist() != shuffled(50, seed=seeds[1]).tolist()

    def test_sends_a_row_everywhere_about_equally_often(self):
        places = np.bincount([shuffled(10, seed=seed)[0] for seed in range(2000)], minlength=10)
        assert places.min() > 140
        assert places.max() < 260


class TestGlobalIndices:
    def test_of_all_workers_together_are_each_index_once(self):
        ids = np.random.default_rng(1).permutation(row_ids([4, 0, 7, 1]))
        for workers in (1, 2, 3, 5):
            shares = [ids[w::workers] for w in range(workers)]
            totals = total_counts([partition_counts(share) for share in shares])
            assert totals.tolist() == [4, 0, 7, 1]
            assert sorted(np.concatenate([global_indices(s, totals) for s in shares])) == list(range(12))


SMALL_CLUSTERS = [rows for workers in (1, 2, 3) for rows in itertools.product(range(8), repeat=workers)]


def by_worker(rows):
    return {f"worker:{i}": n for i, n in enumerate(rows)}


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 10])
class TestSteps:
    def test_every_worker_trains_all_its_rows_in_the_same_number_of_steps(self, batch):
        for rows in SMALL_CLUSTERS:
            steps = -(-max(rows) // batch)
            if not 0 < steps <= min(rows):
                continue
            assert agree_steps(by_worker(rows), batch, drop_remainder=False) == steps, rows
            for n in rows:
                sizes = batch_sizes(n, batch, steps, drop_remainder=False)
                assert len(sizes) == steps, rows
                assert sizes.sum() == n, rows
                assert 1 <= sizes.min() <= sizes.max() <= batch, rows
                assert sizes.tolist() == sorted(sizes, reverse=True), rows

    def test_rows_that_cannot_fill_every_step_are_refused(self, batch):
        for rows in SMALL_CLUSTERS:
            if 0 < -(-max(rows) // batch) <= min(rows):
                continue
            with pytest.raises(EmptyDataError):
                agree_steps(by_worker(rows), batch, drop_remainder=False)

    def test_drop_remainder_leaves_only_full_batches(self, batch):
        for rows in SMALL_CLUSTERS:
            steps = min(rows) // batch
            if not steps:
                continue
            assert agree_steps(by_worker(rows), batch, drop_remainder=True) == steps, rows
            for n in rows:
                sizes = batch_sizes(n, batch, steps, drop_remainder=True)
                assert sizes.tolist() == [batch] * steps
                assert sizes.sum() <= n


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_error_names_the_poorest_worker_and_all_rows(drop_remainder):
    rows = {"chief:0": 9, "worker:0": 0, "worker:1": 8}
    with pytest.raises(EmptyDataError) as caught:
        agree_steps(rows, 4, drop_remainder)
    assert str(caught.value).startswith("worker:0 has 0 row(s)")
    assert str(rows) in str(caught.value)
    assert f"drop_remainder={drop_remainder}" in str(caught.value)
