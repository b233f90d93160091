import itertools

import numpy as np
import pytest

from tfos_ml.data.row_order import agree_steps, batch_sizes, permute
from tfos_ml.errors import EmptyDataError


def shuffled(total, seed=0, epoch=0):
    return permute(np.arange(total), total, seed, epoch)


def test_a_permutation_is_one_for_every_total_and_another_for_every_seed():
    for total in [*range(1, 100), 2**16 - 1, 2**16, 2**16 + 1]:
        assert (np.bincount(shuffled(total, seed=total), minlength=total) == 1).all(), total
    for seeds in ((0, 1), (-1, 1), (2**63, -(2**63) + 1)):
        assert shuffled(50, seed=seeds[0]).tolist() != shuffled(50, seed=seeds[1]).tolist()
    places = np.bincount([shuffled(10, seed=seed)[0] for seed in range(2000)], minlength=10)
    assert 140 < places.min() <= places.max() < 260  # a row goes everywhere about equally often


SMALL_CLUSTERS = [rows for workers in (1, 2, 3) for rows in itertools.product(range(8), repeat=workers)]


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_every_worker_trains_in_the_same_number_of_steps_all_its_rows_or_full_batches(drop_remainder):
    for batch, rows in itertools.product([1, 2, 3, 10], SMALL_CLUSTERS):
        by_worker = {f"worker:{i}": n for i, n in enumerate(rows)}
        steps = min(rows) // batch if drop_remainder else -(-max(rows) // batch)
        if not 0 < steps <= min(rows):
            with pytest.raises(EmptyDataError) as caught:
                agree_steps(by_worker, batch, drop_remainder)
            assert str(caught.value).startswith(f"worker:{rows.index(min(rows))} has {min(rows)} row(s)")
            assert f"drop_remainder={drop_remainder}" in str(caught.value)
            continue
        assert agree_steps(by_worker, batch, drop_remainder) == steps, rows
        for n in rows:
            sizes = batch_sizes(n, batch, steps, drop_remainder)
            assert len(sizes) == steps, rows
            assert sizes.sum() == (steps * batch if drop_remainder else n), rows
            assert 1 <= sizes.min() <= sizes.max() <= batch, rows
