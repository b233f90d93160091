"""The first pass over rows in the order of the DataFrame, begun before the last of them has come.

Where nodes read files, the plan of these tells which rows a node will have (:class:`Planned`), on any number of nodes.
Else one node trains, and a row's id, source partition and position in it, says which row comes next: the following
position, or the first of the following partition (:class:`Consecutive`). Spark hands over the rows of a partition
together, so that one is complete when a later one begins. Where the next row may still come (a partition that is empty
or late, a row that was left out), the pass waits: at most until all rows are there, when ascending ids are the order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


class Consecutive:
    """The order of rows of which nothing is known but that their ids follow each other, unless rows were left out."""

    def __init__(self) -> None:
        self._expected = 0

    def known(self, ids: Int64s, is_end: bool) -> int:
        """How many of the ids, in ascending order, are next, whatever may come; raises ``DataError`` if one is late."""
        if len(ids) and ids[0] < self._expected:
            raise DataError(
                "Rows have come in an order in which wait=False cannot train: some of a source partition came when "
                "those of a later one had been trained. Use ctx.dataset() with wait=True"
            )
        known = len(ids) if is_end else _without_gaps(ids, self._expected)
        self._expected = int(ids[known - 1]) + 1 if known else self._expected
        return known


class Planned:
    """The order of rows whose ids are known, ascending."""

    def __init__(self, ids: Int64s):
        self._rest = ids

    def known(self, ids: Int64s, is_end: bool) -> int:
        """The same; raises ``DataError`` if other rows have come."""
        wanted = self._rest[: len(ids)]
        differs = ids[: len(wanted)] != wanted
        known = int(np.argmax(differs)) if differs.any() else len(wanted)
        self._rest = self._rest[known:]
        if is_end and (known < len(ids) or len(self._rest)):
            raise DataError(
                f"Other rows have come than the files' footers tell: {len(ids) - known:,} are not among them, and "
                f"{len(self._rest):,} are missing. Use ctx.dataset() with wait=True"
            )
        return known


def arriving_blocks(
    form: RowFormat, chunks: ChunkLog, block_rows: int, order: Consecutive | Planned
) -> Iterator[tuple[Array, ...]]:
    """All rows in the order of their ids, as soon as it is known which is next; at most `block_rows` at a time."""
    batches, starts = StoredBatches(), [0]

    def views(number: int) -> list[View]:
        return [_checked(form, form.view(batches[number], c), c) for c in range(len(form.schema.columns))]

    ids = positions = np.zeros(0, np.int64)
    rows = 0
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
        known = order.known(ids, is_end=False)
        yield from _blocks(form, views, np.array(starts), positions[:known], block_rows)
        ids, positions = ids[known:], positions[known:]
    known = order.known(ids, is_end=True)
    yield from _blocks(form, views, np.array(starts), positions[:known], block_rows)


def _without_gaps(ids: Int64s, expected: int) -> int:
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


@dataclass(frozen=True)
class ArrivingRows:
    """The rows of a node, of which more may come."""

    form: RowFormat
    chunks: ChunkLog
    store: Callable[[], RowStore]  # all of them, once they have come

    def blocks(self, epoch: int, planned: Int64s | None, total: int | None) -> Iterator[tuple[Array, ...]]:
        """The first `total` rows, or all, of a pass; the first pass takes them as they come."""
        if epoch:
            rows = self.store()
            yield from blocks(rows, np.array([len(rows) if total is None else total]), None, epoch, 0)
            return
        first = next(iter(self.chunks))
        order = Consecutive() if planned is None else Planned(planned)
        done = 0
        for values in arriving_blocks(self.form, self.chunks, rows_of_block(first.nbytes // first.rows), order):
            wanted = len(values[0]) if total is None else min(len(values[0]), total - done)
            done += wanted
            if wanted:
                yield tuple(column[:wanted] for column in values)

    def dataset(self, epochs: int, batch_size: int, drop_remainder: bool) -> tf.data.Dataset:
        """Batches of some passes in order, of rows that nothing is known of."""
        found = self._passes(epochs, lambda one: one.rebatch(batch_size, drop_remainder=drop_remainder), None, None)
        return without_autotuning(found.prefetch(1))

    def planned_dataset(self, epochs: int, planned: Int64s, sizes: Int64s) -> tf.data.Dataset:
        """Batches of the given sizes of some passes in order, of rows with the given ids."""
        import tensorflow as tf

        found = self._passes(epochs, lambda one: one.rebatch(sizes), planned, int(sizes.sum()))
        found = found.apply(tf.data.experimental.assert_cardinality(len(sizes) * epochs))
        return without_autotuning(found.prefetch(1))

    def _passes(
        self, epochs: int, batched: Callable[[Any], Any], planned: Int64s | None, total: int | None
    ) -> tf.data.Dataset:
        import tensorflow as tf

        def generate(epoch: Any) -> Iterator[Any]:
            for values in self.blocks(int(epoch), planned, total):
                yield structure(self.form.schema, values)

        def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
            spec = element_spec(self.form)
            return batched(tf.data.Dataset.from_generator(generate, args=(epoch,), output_signature=spec))

        return tf.data.Dataset.range(epochs).flat_map(one_pass)
