"""The rows of a worker, and the steps that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfos_ml.data.order import Int64s
from tfos_ml.keras.worker_group import WorkerGroup
from tfos_ml.worker.global_batches import GlobalBatches, dense_places, make_global_dataset, mark_rows
from tfos_ml.worker.row_store import RowStore
from tfos_ml.worker.rows import Rows

if TYPE_CHECKING:
    import tensorflow as tf

    from tfos_ml.worker.node_context import NodeContext

STREAMS = ("train", "validation")


class WorkerRows:
    """All rows of a worker; waits for them."""

    def __init__(self, ctx: NodeContext, group: WorkerGroup):
        self._group = group
        self.stores: dict[str, RowStore] = {name: ctx.row_store(name) for name in STREAMS}
        self.shapes = self.stores["train"].shapes
        self.numbers = {"train": ctx.row_count, "validation": ctx.validation_row_count}  # rows of all workers

    @property
    def longest(self) -> list[tuple[int, ...]] | None:
        """By column, the shape that holds the longest row of all workers."""
        return self.stores["train"].longest

    def is_ragged(self, column: int) -> bool:
        """Whether rows of a column differ in shape."""
        return self.stores["train"].is_ragged(column)

    def batches(self, batch_size: int) -> dict[str, GlobalBatches]:
        """Which rows are in which step, by stream; all workers must call this together."""
        blocks = {"train": self.stores["train"].shuffle_block, "validation": None}
        places = self._places()
        return {name: GlobalBatches(places[name], self.numbers[name], batch_size, blocks[name]) for name in STREAMS}

    def _places(self) -> dict[str, Int64s]:
        """The place of each row among the rows of its own stream, in the order of the DataFrame.

        Row ids have gaps where rows are for validation, or were skipped.
        """
        total = self.stores["train"].total
        if self.numbers["train"] == total:
            return {name: store.indices for name, store in self.stores.items()}
        places = {}
        for name, store in self.stores.items():
            (bitmap,) = self._group.sum_arrays([mark_rows(store.indices, total)])
            places[name] = dense_places(store.indices, bitmap)
        return places

    def first(self, rows: int) -> tuple[Rows, Int64s]:
        """The first `rows` training rows, or all if there are fewer: rows in memory, and positions in them."""
        return self.stores["train"].first(rows)

    def spread(self) -> tuple[Rows, Int64s]:
        """Training rows from everywhere, at most a thousand: rows in memory, and positions in them."""
        store = self.stores["train"]
        return store.spread(min(store.block_rows(), 1000))

    def dataset(
        self,
        stream: str,
        batches: GlobalBatches,
        seed: int | None,
        epoch: Callable[[], int],
        gather: Callable[[Rows, Int64s], Any],
        element_spec: Any,
        first_step: Callable[[], int],
        has_cardinality: bool,
    ) -> tf.data.Dataset:
        """One pass over the rows of a stream; see :func:`make_global_dataset`."""
        return make_global_dataset(
            self.stores[stream], batches, seed, epoch, gather, element_spec, first_step, has_cardinality
        )
