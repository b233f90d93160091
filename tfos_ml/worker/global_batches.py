"""Makes this worker's share of each global batch. Step *k* has the global rows [k B, (k + 1) B).

These rows depend neither on the number of workers nor on which worker holds a row. A worker may have any number of a
step's rows, including none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tfos_ml.data.row_order import Int64s, shuffled, window_edges
from tfos_ml.data.schema import Array
from tfos_ml.worker.dataset import prefetched, without_autotuning
from tfos_ml.worker.row_store import RowStore
from tfos_ml.worker.rows import Rows

if TYPE_CHECKING:
    import tensorflow as tf

_POPCOUNT = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int64)
_WORD = 64
AHEAD = 2  # steps gathered in parallel; makes short steps a tenth faster

Piece: TypeAlias = tuple[Any, Int64s, int, Int64s]
"""The rows of some steps, their places, the number of the first step, and how many rows each step has."""


class Step(NamedTuple):
    """What a batch knows of its step: tensors of int64."""

    number: Any  # of the step in its pass
    total: Any  # rows of all workers in it
    places: Any  # of this worker's rows among these, ``(rows,)``


class PassPlan(NamedTuple):
    """What one worker takes in one pass, step after step."""

    order: Int64s  # positions of its rows, ``(rows,)``
    places: Int64s  # where these rows are within their steps, ``(rows,)``
    sizes: Int64s  # how many of them each step takes, ``(steps,)``
    edges: Int64s  # for :meth:`RowStore.read`

    def longest(self, lengths: Array) -> Array:
        """The largest lengths in each step, ``(steps, levels)``, of those of all rows; 0 in steps without rows."""
        longest = np.zeros((len(self.sizes), lengths.shape[1]), lengths.dtype)
        np.maximum.at(longest, np.repeat(np.arange(len(self.sizes)), self.sizes), lengths[self.order])
        return longest


class GlobalBatches:
    """The order and the sizes of one worker's batches.

    `places` has the place of each row of this worker among the rows of all workers, numbered from 0 without gaps, shape
    ``(rows,)``. `total` and `batch_size` are numbers of rows of all workers. For `shuffle_block` see
    :func:`tfos_ml.data.row_order.shuffled`.

    >>> batches = GlobalBatches(np.array([0, 2, 4]), total=5, batch_size=2)
    >>> batches.plan(seed=None, epoch=0).sizes.tolist()
    [1, 1, 1]
    """

    def __init__(self, places: Int64s, total: int, batch_size: int, shuffle_block: int | None = None):
        self._places = places
        self._shuffle_block = shuffle_block
        self.total = total
        self.batch_size = batch_size
        self.steps = -(-total // batch_size)

    def __len__(self) -> int:
        return len(self._places)

    def plan(self, seed: int | None, epoch: int) -> PassPlan:
        """What this worker takes in one pass; the order of the DataFrame without a seed."""
        places = self._places
        if seed is not None and self.total:
            places = shuffled(places, self.total, seed, epoch, self._shuffle_block)
        order = np.argsort(places, kind="stable")
        places = places[order]
        sizes = np.bincount(places // self.batch_size, minlength=self.steps).astype(np.int64)
        edges = window_edges(places, None if seed is None else self._shuffle_block)
        return PassPlan(order, places % self.batch_size, sizes, edges)

    def step(self, number: tf.Tensor, places: tf.Tensor) -> Step:
        """The step of a number, in which the rows of this worker have some places."""
        import tensorflow as tf

        left = self.total - number * self.batch_size
        return Step(number, tf.minimum(left, self.batch_size), places)


def mark_rows(indices: Int64s, total: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A bitmap of `indices` within ``range(total)``, as int32 words. Bitmaps of disjoint indices can be summed."""
    bits = np.zeros(-(-max(total, 1) // _WORD) * _WORD // 8, dtype=np.uint8)
    np.bitwise_or.at(bits, indices >> 3, (1 << (indices & 7)).astype(np.uint8))
    return bits.view(np.int32)


def dense_places(indices: Int64s, bitmap: np.ndarray[Any, np.dtype[np.int32]]) -> Int64s:
    """The number of marked indices below each index.

    >>> dense_places(np.array([5, 9]), mark_rows(np.array([1, 5, 9]), 10)).tolist()
    [1, 2]
    """
    bits = bitmap.view(np.uint8)
    ones = _POPCOUNT[bits].reshape(-1, _WORD // 8).sum(axis=1)
    before_word = np.cumsum(ones) - ones
    word = indices // _WORD
    places: Int64s = before_word[word].astype(np.int64)
    for byte in range(_WORD // 8):
        start = word * _WORD + byte * 8
        below = np.clip(indices - start, 0, 8)
        mask = ((1 << below) - 1).astype(np.uint8)
        places += _POPCOUNT[bits[word * (_WORD // 8) + byte] & mask]
    return places


def make_global_dataset(
    store: RowStore,
    batches: GlobalBatches,
    seed: int | None,
    epoch: Callable[[], int],
    gather: Callable[[Rows, Int64s, int], Any],
    element_spec: Any,
    first_step: Callable[[], int] = lambda: 0,
    has_cardinality: bool = True,
) -> tf.data.Dataset:
    """A dataset of one pass: a batch and its :class:`Step` for each step, even if this worker has no row in it.

    Rows of fixed shape within the node's budget are copied to TensorFlow's memory once, and batches are gathered there.
    Then no Python code runs, which would compete with the training loop for the GIL. Other rows are gathered block by
    block.

    `epoch` and `first_step` are called when an iteration begins. Earlier steps are left out, and their rows not read,
    but the cardinality, unless `has_cardinality` is false, is that of a whole pass: to read beyond the last step then
    is an error. `gather` makes one dataset element, of `element_spec` with the batch dimension None, from rows,
    positions in them, and the number of their first step; they are those of one step if rows differ in shape. Without a
    `seed`, rows keep the order of the DataFrame.
    """
    import tensorflow as tf

    if _may_be_copied(store):
        everything = gather(*store.first(len(store)), 0)
        dataset = _from_memory(everything, batches, lambda: batches.plan(seed, epoch()), first_step)
    else:
        pieces = functools.partial(_stored_pieces, store, gather=gather)
        dataset = _from_pieces(lambda: pieces(batches.plan(seed, epoch()), first_step()), batches, element_spec)
    if has_cardinality:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches.steps))
    return without_autotuning(dataset.prefetch(prefetched(store.block_rows(), np.array([batches.batch_size]))))


def _may_be_copied(store: RowStore) -> bool:
    """Whether a copy of the rows in TensorFlow's memory fits the budget; of sparse vectors it would be a multiple."""
    is_sparse = store.wide_bytes * len(store) > 2 * store.nbytes
    return not (store.has_ragged or store.spilled or is_sparse) and store.budget.has_room_for_copy(store.nbytes)


def _stored_pieces(
    store: RowStore, plan: PassPlan, first_step: int, gather: Callable[[Rows, Int64s, int], Any]
) -> Iterator[Piece]:
    """The pieces of a pass from a step on."""
    done = int(plan.sizes[:first_step].sum())
    order, places, sizes, edges = plan.order[done:], plan.places[done:], plan.sizes[first_step:], plan.edges
    bounds = list(range(len(sizes) + 1)) if store.has_ragged else _piece_bounds(sizes, store.block_rows())
    ends = np.concatenate([[0], np.cumsum(sizes)])
    pieces = store.read(order, ends[bounds], edges[edges > done] - done)
    for (first, last), (rows, at) in zip(pairwise(bounds), pieces, strict=True):
        number = first_step + first
        yield gather(rows, at, number), places[ends[first] : ends[last]], number, sizes[first:last]


def _from_memory(
    everything: Any, batches: GlobalBatches, plan: Callable[[], PassPlan], first_step: Callable[[], int]
) -> tf.data.Dataset:
    import tensorflow as tf

    # Identity makes no copy if the array is aligned as TensorFlow needs it; tf.constant makes two copies.
    rows = tf.nest.map_structure(lambda values: tf.raw_ops.Identity(input=values), everything)

    def cuts() -> tuple[Int64s, ...]:
        order, places, sizes, _ = plan()
        ends, first = np.cumsum(sizes), first_step()
        return order, places, (ends - sizes)[first:], ends[first:], np.arange(first, len(sizes))

    @tf.autograph.experimental.do_not_convert  # conversion takes as long as tracing
    def one_pass(_: tf.Tensor) -> tf.data.Dataset:
        # from_generator takes twice as long to start, because TensorFlow makes several functions for each iterator.
        order, places, *steps = map(_vector, tf.numpy_function(cuts, [], [tf.int64] * 5))

        def step(start: tf.Tensor, end: tf.Tensor, number: tf.Tensor) -> Any:
            chosen = order[start:end]
            batch = tf.nest.map_structure(lambda values: tf.gather(values, chosen), rows)
            return batch, batches.step(number, places[start:end])

        return tf.data.Dataset.from_tensor_slices(tuple(steps)).map(step, num_parallel_calls=AHEAD)

    return tf.data.Dataset.from_tensors(0).flat_map(one_pass)


def _vector(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor that is known to have one dimension."""
    tensor.set_shape([None])
    return tensor


def _from_pieces(pieces: Callable[[], Iterator[Piece]], batches: GlobalBatches, element_spec: Any) -> tf.data.Dataset:
    import tensorflow as tf

    def generate() -> Iterator[Any]:
        for values, places, first, sizes in pieces():
            ends = np.cumsum(sizes)
            yield values, places, ends - sizes, ends, np.arange(first, first + len(sizes))

    @tf.autograph.experimental.do_not_convert
    def steps(values: Any, places: tf.Tensor, *cuts: tf.Tensor) -> tf.data.Dataset:
        def step(start: tf.Tensor, end: tf.Tensor, number: tf.Tensor) -> Any:
            batch = tf.nest.map_structure(lambda value: value[start:end], values)
            return batch, batches.step(number, places[start:end])

        return tf.data.Dataset.from_tensor_slices(cuts).map(step, num_parallel_calls=AHEAD)

    numbers = tf.TensorSpec([None], tf.int64)
    return tf.data.Dataset.from_generator(generate, output_signature=(element_spec, *[numbers] * 4)).flat_map(steps)


def _piece_bounds(sizes: Int64s, block_rows: int) -> list[int]:
    """Steps at which pieces begin: each has at least one step and about `block_rows` rows."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    bounds = [0]
    while bounds[-1] < len(sizes):
        first = bounds[-1]
        last = int(np.searchsorted(ends, ends[first] + block_rows, side="right")) - 1
        bounds.append(min(len(sizes), max(first + 1, last)))
    return bounds
