"""The order of rows that are shuffled in blocks: which it is, and that nothing but seed, epoch and ids decides it."""

import numpy as np
import pyarrow as pa
import pytest

from tfos_ml.data.arrow import value_bytes
from tfos_ml.data.row_order import SHUFFLE_WINDOW_BLOCKS, shuffle_block, shuffled

SEED = 11
SHAPES = [(1, 1), (64 * 3 + 1, 3), (5000, 7), (99, 1000)]


def places(total, block, epoch=0):
    return shuffled(np.arange(total), total, SEED, epoch, block)


@pytest.mark.parametrize(("total", "block"), SHAPES)
def test_every_row_has_a_place_of_its_own_whichever_others_a_node_has(total, block):
    for epoch in (0, 1, 5):
        assert sorted(places(total, block, epoch=epoch)) == list(range(total))
    whole = places(total, block)
    of = np.random.default_rng(1).integers(0, 3, total)
    for worker in range(3):
        mine = np.random.default_rng(2).permutation(np.flatnonzero(of == worker))
        assert shuffled(mine, total, SEED, 0, block).tolist() == whole[mine].tolist()


def test_a_window_has_the_rows_of_few_blocks_and_shuffles_them():
    total, block = 5000, 7
    order = np.argsort(places(total, block))
    length = SHUFFLE_WINDOW_BLOCKS * block
    for first in range(0, total, length):
        window = order[first : first + length]
        blocks = np.unique(window // block)
        assert len(blocks) <= SHUFFLE_WINDOW_BLOCKS + 1  # two may be cut at its ends
        assert (np.diff(window) == 1).mean() < 0.2
        assert blocks.max() - blocks.min() > len(blocks)  # from all over


def test_rows_beyond_the_limit_are_in_blocks_of_two_mebibytes():
    assert shuffle_block(rows=10, size=0, limit=1000) is shuffle_block(rows=10, size=1000, limit=1000) is None
    assert shuffle_block(rows=1000, size=1000 << 20, limit=1 << 20) == 2
    assert shuffle_block(rows=10, size=100 << 20, limit=1 << 20) == 1  # of a large row


NESTED = pa.array([[[1, 2], []], [[3]], []], pa.list_(pa.list_(pa.int16())))
SIZES = {
    "numbers": (pa.array([1.0, 2.0, 3.0]), 24),
    "text": (pa.array(["a", "bé", ""]), 3 * 4 + 4),
    "large lists": (pa.array([[1], [], [2, 3]], pa.large_list(pa.int8())), 3 * 4 + 3),
    "lists of lists": (NESTED, 3 * 4 + 3 * 4 + 6),
}


def test_size_of_rows_is_a_sum_over_them():
    for name, (array, size) in SIZES.items():
        assert value_bytes(array) == size == sum(value_bytes(array.slice(i, 1)) for i in range(3)), name
