"""Joins the gradients of embedding tables, which are slices, from all workers in one exchange.

A model may have dozens of tables. So the slices of all tables travel as three arrays: the number of slices of each
table, all indices, and all values. Values of another dtype are one more array. Small dense gradients, which are summed,
travel with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tfos_ml.data.schema import Array
from tfos_ml.keras.collectives.segmented_sum import combined

Joined: TypeAlias = dict[int, tuple[tf.IndexedSlices, tf.Tensor]]
"""The slices of all workers, and the largest number that a worker has, by number of their variable."""
Gather: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]


class SparseGradients:
    """The slices of one step, by number of their variable, and those of all workers."""

    def __init__(self, slices: Mapping[int, tf.IndexedSlices], shapes: Sequence[tf.TensorShape]):
        self._slices, self._shapes = slices, shapes
        dtypes = sorted({part.values.dtype.name for part in slices.values()})
        self._by_dtype = [[i for i in slices if slices[i].values.dtype.name == dtype] for dtype in dtypes]
        self._row_sizes = {i: math.prod(shapes[i].as_list()[1:]) for i in slices}

    def packed(self, weight: tf.Tensor, dense: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Counts, indices, and ``weight`` times the values, of this worker; then its dense arrays, which are flat."""
        counts = tf.stack([tf.shape(part.indices, tf.int64)[0] for part in self._slices.values()])
        indices = tf.concat([tf.cast(part.indices, tf.int64) for part in self._slices.values()], 0)
        arrays = []
        for group in self._by_dtype:
            flat = tf.concat([tf.reshape(self._slices[i].values, [-1]) for i in group], 0)
            arrays.append(flat * tf.cast(weight, flat.dtype))
        return [counts, indices, *arrays, *dense]

    def join(self, own: Sequence[Array], all_gather: Gather) -> list[Array]:
        """What :meth:`packed` has, of all workers; before it, the largest count that a worker has, for each table."""
        sizes = [[self._row_sizes[i] if i in group else 0 for i in self._slices] for group in self._by_dtype]
        return join(own, np.array([[1] * len(self._slices), *sizes], np.int64), all_gather)

    def unpacked(self, joined: Sequence[tf.Tensor]) -> tuple[Joined, list[tf.Tensor]]:
        """The slices of all workers, and the largest count, by variable; and the sums of dense arrays."""
        longest, counts, indices, *arrays = (tf.ensure_shape(part, [None]) for part in joined)
        numbers, dense = [*self._slices], arrays[len(self._by_dtype) :]
        counts_of = dict(zip(numbers, tf.unstack(counts, len(numbers)), strict=True))
        longest_of = dict(zip(numbers, tf.unstack(longest, len(numbers)), strict=True))
        indices_of = dict(zip(numbers, tf.split(indices, counts, num=len(numbers)), strict=True))
        found = {}
        for group, array in zip(self._by_dtype, arrays, strict=False):  # dense ones follow
            ends = tf.stack([counts_of[i] * self._row_sizes[i] for i in group])
            for i, flat in zip(group, tf.split(array, ends, num=len(group)), strict=True):
                shape = self._shapes[i].as_list()
                values = tf.reshape(flat, [-1, *shape[1:]])
                own_indices = tf.cast(indices_of[i], self._slices[i].indices.dtype)
                found[i] = tf.IndexedSlices(values, own_indices, tf.constant(shape)), longest_of[i]
        return found, dense


def join(own: Sequence[Array], sizes: Array, all_gather: Gather) -> list[Array]:
    """Join flat arrays of all workers, table by table, and sum others.

    `own` has the counts of slices by table; then arrays, of which ``sizes[a, t]`` is the number of entries that array
    `a` has for a slice of table `t`; then arrays that have the same size on all workers, to be summed in the order of
    ranks. `all_gather` returns the bytes of each worker. Returns the largest counts, the sums of the counts, and the
    arrays.
    """
    joined, summed = own[1 : 1 + len(sizes)], own[1 + len(sizes) :]
    counts: list[Array] = []
    parts: list[list[Array]] = []
    for message in all_gather(own):
        counts.append(message[: own[0].nbytes].view(own[0].dtype))
        parts.append([])
        start = own[0].nbytes
        lengths = [*(int(counts[-1] @ size) for size in sizes), *(len(array) for array in summed)]
        for array, length in zip([*joined, *summed], lengths, strict=True):
            end = start + length * array.itemsize
            parts[-1].append(message[start:end].view(array.dtype))
            start = end
    by_worker, by_array = np.stack(counts), [*zip(*parts, strict=True)]
    sums = [combined(shares, np.empty_like(shares[0]), np.add) for shares in by_array[len(sizes) :]]
    tables = [_by_table(shares, by_worker * size) for shares, size in zip(by_array, sizes, strict=False)]
    return [by_worker.max(0), by_worker.sum(0), *tables, *sums]


def _by_table(parts: Sequence[Array], lengths: Array) -> Array:
    """The parts of all workers, of shape ``(workers, tables)`` in `lengths`, ordered by table and then by worker."""
    ends = lengths.cumsum(1)
    pieces = [
        part[end - length : end]
        for table_ends, table_lengths in zip(ends.T.tolist(), lengths.T.tolist(), strict=True)
        for part, end, length in zip(parts, table_ends, table_lengths, strict=True)
    ]
    return np.concatenate(pieces)
