"""All rows of one node, in its spool, and reading them in any order."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.common.session_settings import SHUFFLE_MEMORY
from tfos_ml.data.arrow import longest_by_row
from tfos_ml.data.memory_budget import MemoryBudget
from tfos_ml.data.row_order import Int64s, global_indices, shuffled, window_edges
from tfos_ml.data.schema import Array, FeedSchema
from tfos_ml.data.spool import Chunk, NoRoomError, SpoolDirectories
from tfos_ml.data.vectors import innermost_numbers
from tfos_ml.errors import SpoolFullError
from tfos_ml.worker.rows import RowFormat, Rows
from tfos_ml.worker.shuffle_windows import load_rows, window_bounds, windows
from tfos_ml.worker.stored_batches import StoredBatches
from tfos_ml.worker.window_files import MOST_FILES, readings, scattered

BLOCK_ROWS = 8192
BLOCK_BYTES = 8 << 20
MOST_READINGS = 3.0  # of a batch in one pass; sorting rows into files costs as much


class RowStore(RowFormat):
    """All rows of one node, in its spool; reads all `chunks` on construction.

    `shapes` has the shape of one row of each column, None where rows differ. `totals` are the rows of all nodes by
    source partition. For `shuffle_block` see :func:`tfos_ml.data.row_order.shuffled`; `budget` is the memory for the
    rows of this node.
    """

    def __init__(
        self,
        chunks: Iterable[Chunk],
        schema: FeedSchema,
        shapes: list[tuple[int | None, ...]],
        totals: Int64s,
        shuffle_block: int | None = None,
        budget: MemoryBudget | None = None,
    ):
        super().__init__(schema, shapes)
        self.total = int(totals.sum())
        self.shuffle_block = shuffle_block
        self.budget = budget or MemoryBudget.of_node(None)
        self._batches = StoredBatches()
        for chunk in chunks:
            self._batches.add(chunk)
        sizes, row_ids = self._batches.sizes, self._batches.row_ids
        self._batches.forget_ids()
        self._starts = np.cumsum([0, *sizes])
        self.indices = global_indices(row_ids, totals) if len(row_ids) else row_ids
        self._rows = None if self.spilled else Rows(self, list(map(self.views, self._each_batch())), sizes)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def spilled(self) -> bool:
        """Whether some rows are on disk rather than in shared memory."""
        return self._batches.directory is not None

    def plan(self, seed: int | None, epoch: int) -> tuple[Int64s, Int64s]:
        """Positions of this node's rows in the order of a pass, shape ``(rows,)``, and the edges for :meth:`read`."""
        if seed is None:
            return np.argsort(self.indices, kind="stable"), window_edges(self.indices, None)
        places = shuffled(self.indices, self.total, seed, epoch, self.shuffle_block)
        order = np.argsort(places, kind="stable")
        return order, window_edges(places[order], self.shuffle_block)

    def _row_bytes(self) -> int:
        return max(1, self.nbytes // max(1, len(self)))

    @property
    def nbytes(self) -> int:
        """Size of all rows in memory."""
        return self._batches.nbytes

    def bounds(self, column: int) -> tuple[float, float]:
        """Smallest and largest number of a column; ``(inf, -inf)`` if there are no rows."""
        low, high = np.inf, -np.inf
        for batch in self._each_batch():
            limits = pc.min_max(innermost_numbers(batch.column(column)))
            if limits["min"].is_valid:
                low, high = min(low, limits["min"].as_py()), max(high, limits["max"].as_py())
        return low, high

    def lengths(self, column: int) -> Array:
        """Length of each row's longest array at each level of nesting, shape ``(rows, levels)``, int32.

        Reads the column of all rows, also of those on disk.
        """
        levels = len(self.shapes[column])
        parts = [longest_by_row(batch.column(column), levels).astype(np.int32) for batch in self._each_batch()]
        return np.concatenate([np.zeros((0, levels), np.int32), *parts])

    def _each_batch(self) -> Iterator[pa.RecordBatch]:
        return (self._batches[number] for number in range(len(self._batches)))

    def block_rows(self) -> int:
        """Rows to gather at a time: thousands, but at most a few megabytes."""
        return rows_of_block(self._row_bytes() + self.wide_bytes)

    def read(self, order: Int64s, cuts: Int64s, edges: Int64s) -> Generator[tuple[Rows, Int64s]]:
        """Read the pieces ``order[cuts[i] : cuts[i + 1]]`` one after another: rows in memory, and positions in them.

        `order` has positions of this node's rows; `edges` are the indices in it at which other blocks begin. Rows in
        memory stay within the budget, unless a single piece is larger.
        """
        if self._rows is not None:
            for start, end in pairwise(cuts):
                yield self._rows, order[start:end]
            return
        bounds = window_bounds(int(cuts[-1]), self._rows_in_window(), edges)
        is_near = readings(order, np.array(bounds), self._starts) <= MOST_READINGS
        if is_near or len(bounds) > 2 * MOST_FILES:
            from_batches = partial(load_rows, self, lambda number: self.views(self._batches[number]), self._starts)
            yield from windows(order, cuts, bounds, from_batches)
            return
        with scattered(self, self._batches, self._starts, order, np.array(bounds)) as load:
            yield from windows(order, cuts, bounds, load)

    def _rows_in_window(self) -> int:
        return max(1, self.budget.window // self._row_bytes(), -(-len(self) // MOST_FILES))

    def check_room(self) -> None:
        """Raise ``SpoolFullError`` if all rows will be permuted and the disk has no space for a second copy."""
        is_sorted = self.shuffle_block is None and len(self) > MOST_READINGS * self._rows_in_window()
        if self._batches.directory is None or not is_sorted:
            return
        try:
            SpoolDirectories(None, Path(self._batches.directory)).disk_for(self.nbytes)
        except NoRoomError as error:
            raise SpoolFullError(
                f"a shuffle of rows on disk writes a second copy of them, but there is {error} Or set "
                f"{SHUFFLE_MEMORY} below the size of all rows, which are then shuffled in blocks, without a copy"
            ) from error

    def first(self, rows: int) -> tuple[Rows, Int64s]:
        """The first `rows` rows, or all if there are fewer, in the form of :meth:`read`."""
        rows = min(rows, len(self))
        pieces = self.read(np.arange(rows), np.array([0, rows]), np.zeros(0, np.int64))
        try:
            return next(pieces)
        finally:
            pieces.close()

    def spread(self, rows: int) -> tuple[Rows, Int64s]:
        """At most `rows` rows from everywhere, in the form of :meth:`read`; the first ones if some are on disk."""
        if self._rows is None:
            return self.first(rows)
        in_order = np.argsort(self.indices, kind="stable")
        return self._rows, in_order[spread(len(self), rows)]


def spread(total: int, count: int) -> Int64s:
    """At most `count` of the positions 0 to ``total - 1``, at equal distances, with the first and the last."""
    return np.unique(np.linspace(0, max(0, total - 1), min(total, count)).round().astype(np.int64))


def rows_of_block(row_bytes: int) -> int:
    """The number of rows to gather at a time, given the size of a row."""
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))
