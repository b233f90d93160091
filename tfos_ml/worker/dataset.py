"""Spool -> ``tf.data``: gathers rows in the agreed order and cuts them into agreed batches.

Rows are handed to ``tf.data`` in blocks of a few thousand and cut there by ``rebatch``, which
is as fast as data in memory; a generator of single rows is a hundred times slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data.arrow import concat_padded, leaves, to_numpy
from tfos_ml.data.order import Int64s, global_indices, permute
from tfos_ml.data.schema import ROW_COLUMN, Array, ColumnSpec, FeedSchema
from tfos_ml.data.spool import Chunk, read_chunk

if TYPE_CHECKING:
    import tensorflow as tf

BLOCK_ROWS = 8192
BLOCK_BYTES = 8 << 20
WINDOW_BYTES = 256 << 20


class RowStore:
    """All rows of one node, mapped from the spool; `chunks` are consumed at once.

    `shapes` has the shape of one row of each column, None where rows differ; `longest` the shape that holds the longest
    row of all nodes. `totals` are the rows of all nodes by source partition.
    """

    def __init__(
        self,
        chunks: Iterable[Chunk],
        schema: FeedSchema,
        shapes: list[tuple[int | None, ...]],
        totals: Int64s,
        longest: list[tuple[int, ...]] | None = None,
    ):
        self.schema = schema
        self.shapes = shapes
        self.longest = longest
        self.total = int(totals.sum())
        self.spilled = False  # whether some rows are on disk rather than in shared memory
        self._batches: list[pa.RecordBatch] = []
        for chunk in chunks:
            self.spilled |= chunk.on_disk
            self._batches.extend(read_chunk(chunk.path))
        self._starts = np.cumsum([0] + [len(b) for b in self._batches])
        ids = [b.column(ROW_COLUMN).to_numpy() for b in self._batches]
        row_ids = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
        self.indices = global_indices(row_ids, totals) if len(row_ids) else row_ids
        self._lengths: dict[int, Int64s] = {}
        self._views = [self._view(i) for i in range(len(schema.columns))]

    def __len__(self) -> int:
        return len(self.indices)

    def _view(self, column: int) -> list[Array | pa.Array]:
        """Zero-copy NumPy views where rows are numbers of one shape, Arrow arrays elsewhere."""
        spec, arrays = self.schema.columns[column], [b.column(column) for b in self._batches]
        if spec.is_text or self.is_ragged(column):
            return arrays
        return [to_numpy(a, spec) for a in arrays]

    def is_ragged(self, column: int) -> bool:
        """Whether rows of a column differ in shape."""
        return None in self.shapes[column]

    @property
    def has_ragged(self) -> bool:
        """Whether those of any column do."""
        return any(map(self.is_ragged, range(len(self.shapes))))

    def order(self, seed: int | None, epoch: int) -> Int64s:
        """Positions of this node's rows in the order of training, shape ``(rows,)``."""
        if seed is None:
            return np.argsort(self.indices, kind="stable")
        places = permute(self.indices, self.total, seed, epoch)
        if not self.spilled:
            return np.argsort(places, kind="stable")
        windows = np.arange(len(self)) * self._row_bytes() // WINDOW_BYTES
        shuffled = permute(np.arange(windows[-1] + 1), int(windows[-1]) + 1, seed, epoch)
        return np.lexsort((places, shuffled[windows]))

    def _row_bytes(self) -> int:
        return max(1, self.nbytes // max(1, len(self)))

    @property
    def nbytes(self) -> int:
        """Size of all rows."""
        return sum(b.nbytes for b in self._batches)

    def byte_sum(self, column: int) -> Int64s:
        """Sum over the bytes of a column's values, whatever the order of the rows; shape ``(1,)``."""
        total = sum(_byte_sum(leaves(batch.column(column))) for batch in self._batches)
        return np.array([total % 2**62], dtype=np.int64)

    def bounds(self, column: int) -> tuple[float, float]:
        """Smallest and largest number of a column; ``(inf, -inf)`` if there are no rows."""
        low, high = np.inf, -np.inf
        for batch in self._batches:
            found = pc.min_max(leaves(batch.column(column)))
            if found["min"].is_valid:
                low, high = min(low, found["min"].as_py()), max(high, found["max"].as_py())
        return low, high

    def block_rows(self) -> int:
        """Rows to gather at a time: thousands, but no more than a few megabytes."""
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES // self._row_bytes()))

    def gather(self, rows: Int64s, pad_value: float) -> tuple[Array, ...]:
        """The rows at some positions, one array a column, each of shape ``(len(rows), ...)``."""
        if not len(rows):
            return tuple(map(self._no_rows, range(len(self._views))))
        batch_of = np.searchsorted(self._starts, rows, side="right") - 1
        by_batch = np.argsort(batch_of, kind="stable")
        touched, firsts = np.unique(batch_of[by_batch], return_index=True)
        groups = [(int(t), group) for t, group in zip(touched, np.split(by_batch, firsts[1:]), strict=True)]
        picks = [(t, group, rows[group] - self._starts[t]) for t, group in groups]
        return tuple(self._gather_column(i, picks, len(rows), pad_value) for i in range(len(self._views)))

    def lengths(self, column: int, rows: Int64s) -> Int64s:
        """Lengths of the arrays that a column holds in the rows at some positions, shape ``(len(rows),)``."""
        if column not in self._lengths:
            found = [pc.list_value_length(b.column(column)).to_numpy(zero_copy_only=False) for b in self._batches]
            self._lengths[column] = np.concatenate([np.zeros(0, np.int64), *found]).astype(np.int64)
        return self._lengths[column][rows]

    def _no_rows(self, column: int) -> Array:
        spec, shape = self.schema.columns[column], [d or 0 for d in self.shapes[column]]
        return np.empty((0, *shape), dtype=object if spec.is_text else spec.dtype)

    def _gather_column(
        self, column: int, picks: list[tuple[int, Int64s, Int64s]], rows: int, pad_value: float
    ) -> Array:
        spec, views = self.schema.columns[column], self._views[column]
        if views and isinstance(views[0], np.ndarray):
            return _gather_numbers(views, picks, rows)
        parts = [to_numpy(views[batch].take(pa.array(wanted)), spec, pad_value) for batch, _, wanted in picks]
        joined = concat_padded(parts, spec, pad_value)
        placed = np.empty_like(joined)
        placed[np.concatenate([group for _, group, _ in picks])] = joined
        return placed


def _byte_sum(values: pa.Array) -> int:
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        data, offsets = values.buffers()[2], np.frombuffer(values.buffers()[1], np.int32)[values.offset :]
        used = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[len(values)]] if len(values) else b""
        return int(np.sum(used, dtype=np.int64)) + len(used)
    return int(np.sum(values.to_numpy(zero_copy_only=False).view(np.uint8), dtype=np.int64))


def _gather_numbers(views: list[Array], picks: list[tuple[int, Int64s, Int64s]], rows: int) -> Array:
    """Rows of fixed shape: a view where they lie side by side, else one copy."""
    if len(picks) == 1 and (np.diff(picks[0][2]) == 1).all():
        batch, _, wanted = picks[0]
        return views[batch][wanted[0] : wanted[-1] + 1]
    gathered = np.empty((rows, *views[0].shape[1:]), dtype=views[0].dtype)
    for batch, group, wanted in picks:
        gathered[group] = views[batch][wanted]
    return gathered


def blocks(store: RowStore, sizes: Int64s, order: Int64s, pad_value: float) -> Iterator[tuple[Array, ...]]:
    """The rows of one pass in blocks; single batches where rows are padded to the batch's longest."""
    total = int(sizes.sum())
    if store.has_ragged:
        cuts = np.concatenate([[0], np.cumsum(sizes)])
    else:
        cuts = np.append(np.arange(0, total, store.block_rows()), total)
    for start, end in pairwise(cuts):
        yield store.gather(order[start:end], pad_value)


def make_dataset(store: RowStore, sizes: Int64s, epochs: int, seed: int | None, pad_value: float) -> tf.data.Dataset:
    """A dataset of batches of the given sizes, shape ``(steps,)``, of one pass, with asserted cardinality.

    One iteration has `epochs` passes; each, also of a later iteration, is shuffled anew, unless `seed` is None.
    `pad_value` fills rows shorter than the longest of their batch.
    """
    import tensorflow as tf

    iterations = count()  # numbered as they begin: one that is given up does not put workers out of step

    def generate() -> Iterator[Any]:
        first = next(iterations) * epochs
        for epoch in range(first, first + epochs):
            for block in blocks(store, sizes, store.order(seed, epoch), pad_value):
                yield _structure(store.schema, block)

    dataset = tf.data.Dataset.from_generator(generate, output_signature=_element_spec(store))
    if not store.has_ragged:
        dataset = dataset.rebatch(sizes if len(sizes) else 1)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(sizes) * epochs))
    return dataset.prefetch(tf.data.AUTOTUNE)


def _structure(schema: FeedSchema, values: tuple[Any, ...]) -> Any:
    """Arrange one value a column as ``features``, ``(features, label)`` or ``(features, label, weight)``."""
    by_role: dict[str, dict[str, Any]] = {"feature": {}, "label": {}, "weight": {}}
    for spec, value in zip(schema.columns, values, strict=True):
        by_role[spec.role][spec.name] = value
    parts = [_one_or_all(by_role["feature"], schema.named_features)]
    if by_role["label"]:
        parts.append(_one_or_all(by_role["label"], schema.named_labels))
    if by_role["weight"]:
        parts.append(_one_or_all(by_role["weight"], schema.named_weights))
    return parts[0] if len(parts) == 1 else tuple(parts)


def _one_or_all(values: dict[str, Any], named: bool) -> Any:
    return values if named else next(iter(values.values()))


def _element_spec(store: RowStore) -> Any:
    import tensorflow as tf

    def spec(column: ColumnSpec, shape: tuple[int | None, ...]) -> tf.TensorSpec:
        return tf.TensorSpec((None, *shape), tf.string if column.is_text else tf.as_dtype(column.dtype))

    return _structure(store.schema, tuple(map(spec, store.schema.columns, store.shapes)))
