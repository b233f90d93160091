"""The first pass over rows in the order of the DataFrame, begun before the last of them has come.

A row's id, source partition and position in it, says which row comes next: the following position, or the first of the
following partition. Spark hands over the rows of a source partition together, so that a partition is complete when a
later one begins. Where the next row may still come (a partition that is empty or late, a row that was left out), the
pass waits: at most until all rows are there, when ascending ids are the order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tfos_ml.data.arrow import fixed_shape, list_extents
from tfos_ml.data.order import PARTITION_SHIFT, Int64s
from tfos_ml.data.schema import Array, FeedSchema
from tfos_ml.data.spool import Chunk
from tfos_ml.errors import DataError, ShapeError
from tfos_ml.worker.dataset import RowStore, blocks, element_spec, rows_of_block, structure, without_autotuning
from tfos_ml.worker.rows import RowFormat, View
from tfos_ml.worker.stored_batches import StoredBatches
from tfos_ml.worker.windows import load_rows

if TYPE_CHECKING:
    import tensorflow as tf


class ChunkLog:
    """The chunks of a stream, for any number of readers in any thread, each from the first; `take` waits for one."""

    def __init__(self, take: Callable[[], Chunk | None]):
        self._take = take
        self._chunks: list[Chunk] = []
        self._ended = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Chunk]:
        read = 0
        while (chunk := self._chunk(read)) is not None:
            yield chunk
            read += 1

    def _chunk(self, number: int) -> Chunk | None:
        with self._lock:
            if number == len(self._chunks) and not self._ended:
                chunk = self._take()
                self._ended = chunk is None
                if chunk is not None:
                    self._chunks.append(chunk)
            return self._chunks[number] if number < len(self._chunks) else None


def format_of_first(schema: FeedSchema, chunks: ChunkLog) -> RowFormat | None:
    """The shapes of the rows of the first chunk, which those of all others must have; None if there are no rows."""
    first = next(iter(chunks), None)
    if first is None:
        return None
    batches = StoredBatches()
    batches.add(first)
    batch, shapes = batches[0], []
    for number, spec in enumerate(schema.columns):
        shapes.append(fixed_shape(list_extents(batch.column(number), spec.ndim), spec.ndim))
        if None in shapes[-1]:
            raise ShapeError(
                f"Column '{spec.column}' has rows of different lengths, and wait=False needs to know the longest "
                "before the first batch. Pad them before, or wait for all rows."
            )
    return RowFormat(schema, shapes)


def arriving_blocks(form: RowFormat, chunks: ChunkLog, block_rows: int) -> Iterator[tuple[Array, ...]]:
    """All rows in the order of their ids, as soon as it is known which is next; at most `block_rows` at a time."""
    batches, starts = StoredBatches(), [0]

    def views(number: int) -> list[View]:
        return [_checked(form, form.view(batches[number], c), c) for c in range(len(form.schema.columns))]

    ids = positions = np.zeros(0, np.int64)
    expected, rows = 0, 0
    for chunk in chunks:
        batches.add(chunk)
        arrived = batches.row_ids
        starts.extend(rows + np.cumsum(batches.sizes))
        batches.forget_ids()
        ids = np.concatenate([ids, arrived])
        positions = np.concatenate([positions, np.arange(rows, rows + len(arrived))])
        rows += len(arrived)
        by_id = np.argsort(ids, kind="stable")
        ids, positions = ids[by_id], positions[by_id]
        if len(ids) and ids[0] < expected:
            raise DataError(
                "Rows have come in an order in which wait=False cannot train: some of a source partition came when "
                "those of a later one had been trained. Use ctx.dataset() with wait=True"
            )
        known = _known(ids, expected)
        yield from _blocks(form, views, np.array(starts), positions[:known], block_rows)
        expected = int(ids[known - 1]) + 1 if known else expected
        ids, positions = ids[known:], positions[known:]
    yield from _blocks(form, views, np.array(starts), positions, block_rows)


def _known(ids: Int64s, expected: int) -> int:
    """How many ids, in ascending order, follow each other without a row that may still come in between."""
    before = np.concatenate([[expected - 1], ids[:-1]])
    next_partition = ((before >> PARTITION_SHIFT) + 1) << PARTITION_SHIFT
    follows = (ids == before + 1) | ((ids == next_partition) & (before >= 0))
    return len(ids) if follows.all() else int(np.argmin(follows))


def _checked(form: RowFormat, view: View, column: int) -> View:
    shape = form.shapes[column]
    if isinstance(view, np.ndarray) and view.shape[1:] != shape:
        raise ShapeError(
            f"Column '{form.schema.columns[column].column}' has rows of shape {view.shape[1:]}, the first ones had "
            f"{shape}. With wait=False all rows must have the shape of the first; wait for all rows"
        )
    return view


def _blocks(
    form: RowFormat, views: Callable[[int], list[View]], starts: Int64s, positions: Int64s, block_rows: int
) -> Iterator[tuple[Array, ...]]:
    for first in range(0, len(positions), block_rows):
        wanted = positions[first : first + block_rows]
        by_position = np.argsort(wanted, kind="stable")
        at = np.empty_like(by_position)
        at[by_position] = np.arange(len(wanted))
        yield load_rows(form, views, starts, wanted[by_position]).gather(at, 0)


def arriving_dataset(
    form: RowFormat, chunks: ChunkLog, store: Callable[[], RowStore], batch_size: int, epochs: int, drop_remainder: bool
) -> tf.data.Dataset:
    """Batches of `epochs` passes in order; the first pass takes the rows as they come, the others those of `store`."""
    import tensorflow as tf

    first = next(iter(chunks))
    block_rows = rows_of_block(first.nbytes // first.rows)

    def generate(epoch: Any) -> Iterator[Any]:
        if epoch == 0:
            found = arriving_blocks(form, chunks, block_rows)
        else:
            all_rows = store()
            found = blocks(all_rows, np.array([len(all_rows)]), None, int(epoch), 0)
        for values in found:
            yield structure(form.schema, values)

    def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
        spec = element_spec(form)
        found = tf.data.Dataset.from_generator(generate, args=(epoch,), output_signature=spec)
        return found.rebatch(batch_size, drop_remainder=drop_remainder)

    return without_autotuning(tf.data.Dataset.range(epochs).flat_map(one_pass).prefetch(1))
