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
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow import fixed_shape, list_extents, merge_extents, shown_extents
from tfos_ml.data.order import PARTITION_SHIFT, Int64s
from tfos_ml.data.planned_rows import PlannedShare
from tfos_ml.data.schema import Array, FeedSchema
from tfos_ml.data.spool import Chunk
from tfos_ml.errors import DataError, ShapeError
from tfos_ml.worker.dataset import RowStore, blocks, element_spec, rows_of_block, structure, without_autotuning
from tfos_ml.worker.global_batches import Piece, piece_bounds
from tfos_ml.worker.rows import RowFormat, Rows, View
from tfos_ml.worker.stored_batches import StoredBatches
from tfos_ml.worker.windows import load_rows

if TYPE_CHECKING:
    import tensorflow as tf

WAIT = "With wait=False all rows must be as the first ones and the files tell. Wait for all rows (wait=True)"


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


def shapes_of_first(schema: FeedSchema, chunks: ChunkLog) -> list[tuple[int | None, ...]] | None:
    """The shapes of the rows of the first chunk, None where they differ; None if there are no rows."""
    first = next(iter(chunks), None)
    if first is None:
        return None
    batches = StoredBatches()
    batches.add(first)
    numbers = range(len(batches))
    return [
        fixed_shape(merge_extents([list_extents(batches[n].column(i), spec.ndim) for n in numbers]), spec.ndim)
        for i, spec in enumerate(schema.columns)
    ]


def format_of_first(schema: FeedSchema, chunks: ChunkLog) -> RowFormat | None:
    """The shapes of the rows of the first chunk, which those of all others must have; None if there are no rows."""
    shapes = shapes_of_first(schema, chunks)
    if shapes is None:
        return None
    for spec, shape in zip(schema.columns, shapes, strict=True):
        if None in shape:
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
                f"those of a later one had been trained. {WAIT}"
            )
        known = len(ids) if is_end else _without_gaps(ids, self._expected)
        self._expected = int(ids[known - 1]) + 1 if known else self._expected
        return known


class Planned:
    """The order of rows whose ids are known, ascending; `advice` ends the message if others come."""

    def __init__(self, ids: Int64s, advice: str = WAIT):
        self._rest = ids
        self._advice = advice

    def known(self, ids: Int64s, is_end: bool) -> int:
        """The same; raises ``DataError`` if other rows have come."""
        wanted = self._rest[: len(ids)]
        differs = ids[: len(wanted)] != wanted
        known = int(np.argmax(differs)) if differs.any() else len(wanted)
        self._rest = self._rest[known:]
        if is_end and (known < len(ids) or len(self._rest)):
            raise DataError(
                f"Other rows have come than the files' footers tell: {len(ids) - known:,} are not among them, and "
                f"{len(self._rest):,} are missing. {self._advice}".rstrip()
            )
        return known


class Arrived:
    """The rows of a stream by position, in the order in which they come, of which all have the shapes of `form`.

    `advice` ends the message of the ``ShapeError`` that is raised if one has another.
    """

    def __init__(self, form: RowFormat, chunks: ChunkLog, advice: str = WAIT):
        self._form = form
        self._chunks = chunks
        self._advice = advice
        self._batches = StoredBatches()
        self._starts = np.zeros(1, np.int64)  # positions of the first row of each batch, and of the next one that comes

    def positions(self, order: Consecutive | Planned) -> Iterator[Int64s]:
        """Positions of all rows by ascending id: those of the next ones, each time that it is known which they are."""
        ids = positions = np.zeros(0, np.int64)
        for chunk in self._chunks:
            rows, arrived = self._starts[-1], self._add(chunk)
            ids = np.concatenate([ids, arrived])
            positions = np.concatenate([positions, np.arange(rows, rows + len(arrived))])
            by_id = np.argsort(ids, kind="stable")
            ids, positions = ids[by_id], positions[by_id]
            known = order.known(ids, is_end=False)
            yield positions[:known]
            ids, positions = ids[known:], positions[known:]
        known = order.known(ids, is_end=True)
        yield positions[:known]

    def _add(self, chunk: Chunk) -> Int64s:
        """Take up the rows of the next chunk; returns their ids."""
        self._batches.add(chunk)
        ids = self._batches.row_ids
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(self._batches.sizes)])
        self._batches.forget_ids()
        return ids

    def first(self, rows: int) -> tuple[Rows, Int64s]:
        """The first rows that come, at most so many, as :meth:`load` has them; instead of :meth:`positions`."""
        chunks = iter(self._chunks)
        while self._starts[-1] < rows and (chunk := next(chunks, None)) is not None:
            self._add(chunk)
        return self.load(np.arange(min(rows, self._starts[-1])))

    def load(self, positions: Int64s) -> tuple[Rows, Int64s]:
        """The rows at some positions, in memory of their own, and their places there."""
        by_position = np.argsort(positions, kind="stable")
        at = np.empty_like(by_position)
        at[by_position] = np.arange(len(positions))
        return load_rows(self._form, self._views, self._starts, positions[by_position]), at

    def _views(self, number: int) -> list[View]:
        batch = self._batches[number]
        return [self._view(batch, column) for column in range(len(self._form.schema.columns))]

    def _view(self, batch: pa.RecordBatch, column: int) -> View:
        spec, shape = self._form.schema.columns[column], self._form.shapes[column]
        extents = list_extents(batch.column(column), spec.ndim)
        if fixed_shape(extents, spec.ndim) != shape:
            raise ShapeError(
                f"Column '{spec.column}' has rows of {shown_extents(extents)}, the first ones had "
                f"{shown_extents([(length or 0, length or 0) for length in shape])}. {self._advice}".rstrip()
            )
        return self._form.view(batch, column)


def arriving_blocks(
    form: RowFormat, chunks: ChunkLog, block_rows: int, order: Consecutive | Planned
) -> Iterator[tuple[Array, ...]]:
    """All rows in the order of their ids, as soon as it is known which is next; at most `block_rows` at a time."""
    arrived = Arrived(form, chunks)
    for positions in arrived.positions(order):
        for first in range(0, len(positions), block_rows):
            rows, at = arrived.load(positions[first : first + block_rows])
            yield rows.gather(at, 0)


def arriving_pieces(
    arrived: Arrived,
    order: Consecutive | Planned,
    sizes: Int64s,
    block_rows: int,
    gather: Callable[[Rows, Int64s], Any],
) -> Iterator[Piece]:
    """All rows in the same order, cut into steps of some sizes, as soon as all rows of a step are there.

    A piece has one step, or about `block_rows` rows; `gather` is as of :func:`make_global_dataset`.
    """
    waiting = np.zeros(0, np.int64)
    for positions in chain([waiting], arrived.positions(order)):
        waiting = np.concatenate([waiting, positions])
        whole = int(np.searchsorted(np.cumsum(sizes), len(waiting), side="right"))
        for first, last in pairwise(piece_bounds(sizes[:whole], block_rows)):
            rows = int(sizes[first:last].sum())
            yield gather(*arrived.load(waiting[:rows])), sizes[first:last]
            waiting = waiting[rows:]
        sizes = sizes[whole:]


def _without_gaps(ids: Int64s, expected: int) -> int:
    """How many ids, in ascending order, follow each other without a row that may still come in between."""
    before = np.concatenate([[expected - 1], ids[:-1]])
    next_partition = ((before >> PARTITION_SHIFT) + 1) << PARTITION_SHIFT
    follows = (ids == before + 1) | ((ids == next_partition) & (before >= 0))
    return len(ids) if follows.all() else int(np.argmin(follows))


@dataclass(frozen=True)
class ComingRows:
    """The rows of a node that are planned, and may not be there yet."""

    shares: dict[str, PlannedShare]  # of "train" and of "validation"
    chunks: ChunkLog  # of training rows


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
