"""The rows of a worker: all are here, or the first pass takes them as they come.

It begins before the last row is there (:class:`EarlyRows`) if rows keep the order of the DataFrame, and it is planned
which rows each worker will have (:mod:`tfos_ml.data.planned_rows`): places of rows, and steps, follow from that. Their
shapes do not: those of the first rows are taken for those of all. ``EarlyStartError`` says that this was wrong; the fit
then begins again, and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tfos_ml.data.order import Int64s
from tfos_ml.data.schema import FeedSchema
from tfos_ml.errors import DataError, EarlyStartError
from tfos_ml.keras.collectives import WorkerGroup
from tfos_ml.worker.arriving import Arrived, ComingRows, Planned, arriving_pieces, shapes_of_first
from tfos_ml.worker.dataset import RowStore, rows_of_block
from tfos_ml.worker.global_batches import (
    GlobalBatches,
    Piece,
    dense_places,
    make_dataset_of_pieces,
    make_global_dataset,
    mark_rows,
    may_be_copied,
    stored_pieces,
)
from tfos_ml.worker.rows import RowFormat, Rows

if TYPE_CHECKING:
    import tensorflow as tf

    from tfos_ml.worker.context import NodeContext

STREAMS = ("train", "validation")
LEAST_BYTES = 4 << 20
"""Of all rows: fewer are there as soon as the model, and passes of :class:`HeldRows` begin some 20 ms earlier."""
Gather: TypeAlias = Callable[[Rows, Int64s], Any]
Shapes: TypeAlias = list[tuple[int | None, ...]]


class HeldRows:
    """All rows of a worker, after it has waited for them."""

    problem: Exception | None = None

    def __init__(self, ctx: NodeContext, group: WorkerGroup):
        self._ctx, self._group = ctx, group
        self.stores: dict[str, RowStore] = {name: ctx.row_store(name) for name in STREAMS}
        self.form: RowFormat = self.stores["train"]

    @property
    def longest(self) -> list[tuple[int, ...]] | None:
        """By column, the shape that holds the longest row of all workers."""
        return self.stores["train"].longest

    @property
    def numbers(self) -> dict[str, int]:
        """Number of rows of all workers, by stream."""
        return {"train": self._ctx.row_count, "validation": self._ctx.validation_row_count}

    def batches(self, batch_size: int) -> dict[str, GlobalBatches]:
        """Which rows are in which step, by stream; called by all workers together."""
        numbers, blocks = self.numbers, {"train": self.stores["train"].shuffle_block, "validation": None}
        places = self._places(numbers["train"])
        return {name: GlobalBatches(places[name], numbers[name], batch_size, blocks[name]) for name in STREAMS}

    def _places(self, rows: int) -> dict[str, Int64s]:
        """Place of each row among the rows of its own stream, in the order of the DataFrame.

        Indices have gaps where rows are for validation, or were skipped.
        """
        total = self.stores["train"].total
        if rows == total:
            return {name: store.indices for name, store in self.stores.items()}
        places = {}
        for name, store in self.stores.items():
            (bitmap,) = self._group.sum_arrays([mark_rows(store.indices, total)])
            places[name] = dense_places(store.indices, bitmap)
        return places

    def first(self, rows: int) -> tuple[Rows, Int64s]:
        """The first training rows that came, at most so many: rows in memory, and positions in them."""
        return self.stores["train"].first(rows)

    def dataset(
        self,
        stream: str,
        batches: GlobalBatches,
        seed: int | None,
        epoch: Callable[[], int],
        gather: Gather,
        element_spec: Any,
    ) -> tf.data.Dataset:
        """One pass over the rows of a stream, as of :func:`make_global_dataset`."""
        return make_global_dataset(self.stores[stream], batches, seed, epoch, gather, element_spec)


class EarlyRows:
    """The rows of a worker that trains before all of them are there; see :class:`HeldRows`.

    ``problem`` is what was raised where TensorFlow reads rows, whose own error has only its text.
    """

    longest = None  # no rows differ

    def __init__(self, ctx: NodeContext, coming: ComingRows, shapes: Shapes):
        self._ctx = ctx
        self._shares, self._chunks = coming.shares, coming.chunks
        self.form = RowFormat(ctx.schema, shapes)
        self.numbers = {name: share.total for name, share in coming.shares.items()}
        self.problem: Exception | None = None
        self._copies: dict[str, Any] = {}  # of all rows in their order, by stream

    @cached_property
    def stores(self) -> dict[str, RowStore]:
        """All rows; waits for them, and raises ``EarlyStartError`` if they are not what training began with."""
        stores = {name: self._ctx.row_store(name) for name in STREAMS}
        if stores["train"].shapes != self.form.shapes:
            raise EarlyStartError(
                f"Rows differ in shape: {stores['train'].shapes} of all columns, the first rows had {self.form.shapes}."
            )
        for name, share in self._shares.items():
            if len(stores[name]) != len(share.ids):
                raise EarlyStartError(f"{len(stores[name]):,} rows have come for {name}, expected {len(share.ids):,}.")
        return stores

    def batches(self, batch_size: int) -> dict[str, GlobalBatches]:
        """The same of rows by ascending id."""
        return {name: GlobalBatches(self._shares[name].places, self.numbers[name], batch_size) for name in STREAMS}

    def first(self, rows: int) -> tuple[Rows, Int64s]:
        """The same; waits for so many."""
        return Arrived(self.form, self._chunks).first(min(rows, len(self._shares["train"].ids)))

    def dataset(
        self,
        stream: str,
        batches: GlobalBatches,
        seed: int | None,
        epoch: Callable[[], int],
        gather: Gather,
        element_spec: Any,
    ) -> tf.data.Dataset:
        """The same; the first pass over training rows takes them as they come."""

        def pieces() -> Iterator[Piece]:
            is_first = stream == "train" and epoch() == 0
            sizes = batches.sizes(None, 0)
            try:
                yield from self._first_pass(sizes, gather) if is_first else self._later_pass(stream, sizes, gather)
            except Exception as error:
                self.problem = error
                raise

        return make_dataset_of_pieces(pieces, batches, self._block_rows(), element_spec)

    def _block_rows(self) -> int:
        first = next(iter(self._chunks)) if len(self._shares["train"].ids) else None
        return 1 if first is None else rows_of_block(first.nbytes // first.rows)

    def _first_pass(self, sizes: Int64s, gather: Gather) -> Iterator[Piece]:
        arrived, order = Arrived(self.form, self._chunks, ""), Planned(self._shares["train"].ids, "")
        try:
            yield from arriving_pieces(arrived, order, sizes, self._block_rows(), gather)
        except DataError as error:
            raise EarlyStartError(str(error)) from None

    def _later_pass(self, stream: str, sizes: Int64s, gather: Gather) -> Iterator[Piece]:
        """All steps as one piece, which is kept, where :func:`make_global_dataset` would have TensorFlow keep rows."""
        store = self.stores[stream]
        order, edges = store.plan(None, 0)
        if not may_be_copied(store):
            yield from stored_pieces(store, order, sizes, edges, gather)
            return
        if stream not in self._copies:
            self._copies[stream] = gather(*next(store.read(order, np.array([0, len(order)]), edges)))
        yield self._copies[stream], sizes


def rows_of(ctx: NodeContext, group: WorkerGroup) -> HeldRows | EarlyRows:
    """The rows of this worker; all workers, which call it together, wait for all of theirs, or none does."""
    coming = None if ctx.settings.shuffle or ctx.settings.waits_because else ctx.coming_rows()
    if coming is None or not all(coming.shares[name].total for name in _needed(ctx)):
        return HeldRows(ctx, group)
    shapes = _agreed(ctx.schema, coming, group)
    return HeldRows(ctx, group) if shapes is None else EarlyRows(ctx, coming, shapes)


def _needed(ctx: NodeContext) -> tuple[str, ...]:
    """Streams that must not be empty."""
    return STREAMS if ctx.settings.validates else ("train",)


def _agreed(schema: FeedSchema, coming: ComingRows, group: WorkerGroup) -> Shapes | None:
    """The shapes of the first rows of all workers that have some, if they are fixed and the same; else None.

    None, too, if all rows are so small that there is nothing to wait for.
    """
    told = np.zeros((group.size, 1 + sum(spec.ndim for spec in schema.columns)), np.int64)
    rows = len(coming.shares["train"].ids)
    first = next(iter(coming.chunks), None) if rows else None
    if first is not None:
        shapes = shapes_of_first(schema, coming.chunks) or []
        size = max(1, first.nbytes * rows // first.rows)
        told[group.rank] = [size, *(-1 if length is None else length for shape in shapes for length in shape)]
    (told,) = group.sum_arrays([told])
    sizes, found = told[:, 0], told[told[:, 0] > 0, 1:]
    if sizes.sum() < LEAST_BYTES or (found < 0).any() or (found != found[0]).any():
        return None
    lengths = iter(found[0].tolist())
    return [tuple(islice(lengths, spec.ndim)) for spec in schema.columns]
