"""The rows of one node for datasets, and the row counts on which all nodes agree."""

from __future__ import annotations

from functools import partial

from tfos_ml import errors
from tfos_ml.common.session_settings import SHUFFLE_MEMORY, SPOOL_MEMORY
from tfos_ml.data import row_order
from tfos_ml.data.arrow import check_vector_size, fixed_shape, merge_extents
from tfos_ml.data.memory_budget import MemoryBudget
from tfos_ml.data.schema import FeedSchema
from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.messages import Reading, RowCounts, Start
from tfos_ml.worker.inbox import Inbox
from tfos_ml.worker.row_store import RowStore


class NodeRows:
    """The rows of one node, and the row counts of the other nodes."""

    def __init__(self, start: Start, schema: FeedSchema, inbox: Inbox, channel: Channel):
        self._schema = schema
        self._inbox = inbox
        self._channel = channel
        self._label = start.label
        self._settings = start.settings
        self._labels = {"train": start.feed_labels, "validation": start.validation_labels}
        self._stores: dict[str, RowStore] | None = None
        self.streamed = False  # whether ``get_data_feed`` reads them, so that they are not held for datasets

    @property
    def are_held(self) -> bool:
        """Whether this node has all its rows for datasets."""
        return self._stores is not None

    def keep(self) -> None:
        """Request that all rows are spooled."""
        self._channel.send(Reading("dataset", keeps_rows=True))

    def _agreement(self) -> dict[str, RowCounts]:
        """The row counts of all nodes, by label; waits for them."""
        if self.streamed:
            raise errors.CollectiveCallError("ctx.dataset() after ctx.get_data_feed(): the rows are being streamed")
        if self._stores is None:
            self.keep()
        return self._inbox.agreement()

    def counts(self, stream: str) -> dict[str, int]:
        """Number of rows of each node in ``"train"`` or ``"validation"``, by label."""
        agreement = self._agreement()
        labels = self._labels[stream]
        for label in labels:
            if agreement[label].counts is None:
                raise errors.CollectiveCallError(
                    f"the nodes cannot agree on row counts and steps, because {label} {agreement[label].why}. "
                    "Call ctx.dataset() on every chief and worker"
                )
        return {label: agreement[label].rows[stream] for label in labels}

    @property
    def skipped(self) -> int:
        """Number of rows of all nodes that ``handleInvalid="skip"`` left out."""
        return sum(counted.skipped for counted in self._agreement().values())

    @property
    def size(self) -> int:
        """Bytes of the training rows of all nodes."""
        return sum(counted.size for counted in self._agreement().values())

    def shuffle_notice(self) -> str:
        """A warning if a shuffle of the training rows permutes only blocks, or is slow; else empty."""
        store, size, limit = self.store("train"), self.size, self._settings.shuffle_memory
        sizes = f"{SHUFFLE_MEMORY}={_shown(limit)}; the rows of all nodes are {_shown(size)}"
        if store.shuffle_block is not None:
            return (
                f"shuffle=True shuffles blocks of {store.shuffle_block:,} rows, and rows within windows of "
                f"{row_order.SHUFFLE_WINDOW_BLOCKS} blocks, not all rows ({sizes})."
            )
        if store.spilled:
            return (
                f"shuffle=True permutes all rows, of which some are on disk, and writes them there once more each pass "
                f"({sizes}; {SPOOL_MEMORY}={_shown(store.budget.size)}). A {SHUFFLE_MEMORY} below the size "
                "of the rows shuffles blocks instead, at the speed of the disk."
            )
        return ""

    def agreed_steps(self, batch_size: int, drop_remainder: bool) -> int:
        """Number of batches in one pass, the same on every node."""
        rows = self.counts("train")
        if self._label not in rows:
            raise errors.CollectiveCallError(f"{self._label} receives no training rows; only {list(rows)} do")
        if not any(rows.values()):
            raise errors.EmptyDataError(no_rows(self.skipped))
        return row_order.agree_steps(rows, batch_size, drop_remainder)

    def have_same_steps(self, stream: str, batch_size: int) -> bool:
        """Whether all nodes that get rows of a stream have as many batches of them."""
        agreement = self._agreement()
        counted = [agreement[label] for label in self._labels[stream] if agreement[label].counts is not None]
        return len({-(-c.rows[stream] // batch_size) for c in counted}) <= 1

    def store(self, stream: str) -> RowStore:
        """All rows of this node of one stream."""
        if self._stores is None:
            counted = [c for c in self._agreement().values() if c.counts is not None]
            totals = row_order.total_counts(
                [row_order.unpack_counts(c.counts) for c in counted if c.counts is not None]
            )
            columns = range(len(self._schema.columns))
            extents = [merge_extents([tuple(e) for e in c.extents[i]] for c in counted) for i in columns]
            for extent, spec in zip(extents, self._schema.columns, strict=True):
                check_vector_size(extent, spec)
            shapes = [fixed_shape(e, c.ndim) for e, c in zip(extents, self._schema.columns, strict=True)]
            block = row_order.shuffle_block(
                sum(self.counts("train").values()), self.size, self._settings.shuffle_memory
            )
            budget = MemoryBudget.of_node(self._settings.spool_memory, self._settings.host_nodes)
            self._stores = {
                name: RowStore(
                    iter(partial(self._inbox.next_chunk, name), None),
                    self._schema,
                    shapes,
                    totals,
                    block,
                    budget,
                )
                for name in self._labels
            }
        return self._stores[stream]


def _shown(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:,.1f} MiB"


def no_rows(skipped: int) -> str:
    """The message of an error if there are no rows to train on."""
    if skipped:
        return f"no row is left to train on: all {skipped} have a null, NaN or infinity, and were skipped"
    return "the DataFrame has no rows to train on"
