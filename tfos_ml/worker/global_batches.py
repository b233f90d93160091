"""Makes this worker's share of each global batch. Step *k* has the global rows [k B, (k + 1) B).

These rows depend neither on the number of workers nor on which worker holds a row. A worker may have any number of a
step's rows, including none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tfos_ml.data.order import Int64s, shuffled, window_edges
from tfos_ml.worker.dataset import prefetched, without_autotuning
from tfos_ml.worker.row_store import RowStore
from tfos_ml.worker.rows import Rows

if TYPE_CHECKING:
    import tensorflow as tf

_POPCOUNT = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int64)
_WORD = 64
AHEAD = 2  # steps gathered in parallel; makes short steps a tenth faster

Piece: TypeAlias = tuple[Any, Int64s]
"""The rows of some steps as one element of a dataset, and how many rows each of these steps has."""


class GlobalBatches:
    """The order and the sizes of one worker's batches.

    `places` has the place of each row of this worker among the rows of all workers, numbered from 0 without gaps, shape
    ``(rows,)``. `total` and `batch_size` are numbers of rows of all workers. For `shuffle_block` see
    :func:`tfos_ml.data.order.shuffled`.

    >>> batches = GlobalBatches(np.array([0, 2, 4]), total=5, batch_size=2)
    >>> order, sizes = batches.epoch(seed=None, epoch=0)
    >>> sizes.tolist()
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

    def epoch(self, seed: int | None, epoch: int) -> tuple[Int64s, Int64s]:
        """Positions of this worker's rows in the order of one pass, and how many of them each step takes."""
        order, sizes, _ = self.plan(seed, epoch)
        return order, sizes

    def plan(self, seed: int | None, epoch: int) -> tuple[Int64s, Int64s, Int64s]:
        """The result of :meth:`epoch`, and the edges for :meth:`RowStore.read`."""
        places = self._places_in(seed, epoch)
        order = np.argsort(places, kind="stable")
        return order, self._sizes(places), window_edges(places[order], None if seed is None else self._shuffle_block)

    def in_steps(self, seed: int | None, epoch: int) -> tuple[Int64s, Int64s]:
        """Places of this worker's rows among all rows of one pass, ascending, and how many of them each step takes."""
        places = self._places_in(seed, epoch)
        return np.sort(places), self._sizes(places)

    def sizes(self, seed: int | None, epoch: int) -> Int64s:
        """How many of this worker's rows each step of one pass takes."""
        return self._sizes(self._places_in(seed, epoch))

    def share_of_step(self, sizes: Int64s, step: int) -> float:
        """The share of a step's rows that this worker has, of :meth:`sizes`."""
        return float(sizes[step] / min(self.batch_size, self.total - step * self.batch_size))

    def _places_in(self, seed: int | None, epoch: int) -> Int64s:
        if seed is None or not self.total:
            return self._places
        return shuffled(self._places, self.total, seed, epoch, self._shuffle_block)

    def _sizes(self, places: Int64s) -> Int64s:
        return np.bincount(places // self.batch_size, minlength=self.steps).astype(np.int64)


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
    gather: Callable[[Rows, Int64s], Any],
    element_spec: Any,
    first_step: Callable[[], int] = lambda: 0,
    has_cardinality: bool = True,
) -> tf.data.Dataset:
    """A dataset of one pass: one batch per step, even if this worker has no row in the step.

    Rows of fixed shape within the node's budget are copied to TensorFlow's memory once, and batches are gathered there.
    Then no Python code runs, which would compete with the training loop for the GIL. Other rows are gathered block by
    block.

    `epoch` and `first_step` are called when an iteration begins. Earlier steps are left out, and their rows not read,
    but the cardinality, unless `has_cardinality` is false, is that of a whole pass: to read beyond the last step then
    is an error. `gather` makes one dataset element, of `element_spec` with the batch dimension None, from rows and
    positions in them. Without a `seed`, rows keep the order of the DataFrame.
    """
    import tensorflow as tf

    if _may_be_copied(store):
        everything = gather(*store.first(len(store)))
        dataset = _from_memory(everything, lambda: batches.epoch(seed, epoch()), first_step)
    else:
        dataset = _from_pieces(
            lambda: _stored_pieces(store, *batches.plan(seed, epoch()), first_step(), gather), element_spec
        )
    if has_cardinality:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches.steps))
    return without_autotuning(dataset.prefetch(prefetched(store.block_rows(), np.array([batches.batch_size]))))


def _may_be_copied(store: RowStore) -> bool:
    """Whether a copy of the rows in TensorFlow's memory fits the budget."""
    return not (store.has_ragged or store.spilled) and store.budget.has_room_for_copy(store.nbytes)


def _stored_pieces(
    store: RowStore,
    order: Int64s,
    sizes: Int64s,
    edges: Int64s,
    first_step: int,
    gather: Callable[[Rows, Int64s], Any],
) -> Iterator[Piece]:
    """The pieces of a pass from a step on; for `order` and `edges` see :meth:`RowStore.read`."""
    done = int(sizes[:first_step].sum())
    order, sizes, edges = order[done:], sizes[first_step:], edges[edges > done] - done
    bounds = _piece_bounds(sizes, 1 if store.has_ragged else store.block_rows())
    ends = np.concatenate([[0], np.cumsum(sizes)])
    for (first, last), (rows, at) in zip(pairwise(bounds), store.read(order, ends[bounds], edges), strict=True):
        yield gather(rows, at), sizes[first:last]


def _from_memory(
    everything: Any, plan: Callable[[], tuple[Int64s, Int64s]], first_step: Callable[[], int]
) -> tf.data.Dataset:
    import tensorflow as tf

    # Identity makes no copy if the array is aligned as TensorFlow needs it; tf.constant makes two copies.
    rows = tf.nest.map_structure(lambda values: tf.raw_ops.Identity(input=values), everything)

    def cuts() -> tuple[Int64s, Int64s, Int64s]:
        order, sizes = plan()
        ends, first = np.cumsum(sizes), first_step()
        return order, (ends - sizes)[first:], ends[first:]

    @tf.autograph.experimental.do_not_convert  # conversion takes as long as tracing
    def one_pass(_: tf.Tensor) -> tf.data.Dataset:
        # from_generator takes twice as long to start, because TensorFlow makes several functions for each iterator.
        order, starts, ends = map(_vector, tf.numpy_function(cuts, [], [tf.int64] * 3))

        def step(start: tf.Tensor, end: tf.Tensor) -> Any:
            chosen = order[start:end]
            return tf.nest.map_structure(lambda values: tf.gather(values, chosen), rows)

        return tf.data.Dataset.from_tensor_slices((starts, ends)).map(step, num_parallel_calls=AHEAD)

    return tf.data.Dataset.from_tensors(0).flat_map(one_pass)


def _vector(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor that is known to have one dimension."""
    tensor.set_shape([None])
    return tensor


def _from_pieces(pieces: Callable[[], Iterator[Piece]], element_spec: Any) -> tf.data.Dataset:
    import tensorflow as tf

    def generate() -> Iterator[Any]:
        for values, sizes in pieces():
            ends = np.cumsum(sizes)
            yield values, ends - sizes, ends

    @tf.autograph.experimental.do_not_convert
    def steps(values: Any, starts: tf.Tensor, ends: tf.Tensor) -> tf.data.Dataset:
        def step(start: tf.Tensor, end: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda value: value[start:end], values)

        return tf.data.Dataset.from_tensor_slices((starts, ends)).map(step, num_parallel_calls=AHEAD)

    cut = tf.TensorSpec([None], tf.int64)
    return tf.data.Dataset.from_generator(generate, output_signature=(element_spec, cut, cut)).flat_map(steps)


def _piece_bounds(sizes: Int64s, block_rows: int) -> list[int]:
    """Steps at which pieces begin: each has at least one step and about `block_rows` rows."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    bounds = [0]
    while bounds[-1] < len(sizes):
        first = bounds[-1]
        last = int(np.searchsorted(ends, ends[first] + block_rows, side="right")) - 1
        bounds.append(min(len(sizes), max(first + 1, last)))
    return bounds
