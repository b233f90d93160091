"""Which rows each node will have, known before any has been read: of files whose footers tell how many there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfos_ml.data.file_plan import FilePlan
from tfos_ml.data.order import PARTITION_SHIFT, Int64s, dealt_ranks, pack_counts, unpack_counts
from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.validation_draw import ValidationDraw


@dataclass(frozen=True)
class PlannedShare:
    """The rows of one node that are for training, or for validation."""

    ids: Int64s  # ascending
    places: Int64s  # of the same rows among those of all nodes, from 0 without gaps
    numbers: dict[int, int]  # of rows, by the rank of each node that gets some

    @property
    def total(self) -> int:
        """Number of rows of all nodes."""
        return sum(self.numbers.values())


@dataclass(frozen=True)
class PlannedRows:
    """All rows of a fit, as nodes are told."""

    counts: str  # by source partition, as ``pack_counts`` writes them
    ranks: dict[str, list[int]]  # of the nodes that get rows of "train" and of "validation"
    draw: ValidationDraw | None = None  # of the rows that are for validation

    @classmethod
    def of_plan(cls, plan: FilePlan, schema: FeedSchema, ranks: dict[str, list[int]]) -> PlannedRows | None:
        """The rows of a plan; None where only the rows themselves tell which are kept, and which are for validation."""
        draw = plan.validation
        if isinstance(draw, str) or plan.condition is not None or schema.handle_invalid == "skip":
            return None
        counts = np.zeros(max((piece.partition for piece in plan.pieces), default=-1) + 1, np.int64)
        for piece in plan.pieces:
            if piece.rows is None:  # of TFRecords
                return None
            counts[piece.partition] += piece.rows
        return cls(pack_counts(counts), ranks, draw)

    def share(self, stream: str, rank: int) -> PlannedShare:
        """The rows of a node that are for "train" or "validation"."""
        ranks, total = self.ranks[stream], 0
        own, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        numbers = np.zeros(max(ranks) + 1, np.int64)
        for partition, rows in enumerate(unpack_counts(self.counts).tolist()):
            ids = self._of_stream(stream, (partition << PARTITION_SHIFT) + np.arange(rows))
            dealt = dealt_ranks(ids, ranks)
            mine = np.flatnonzero(dealt == rank)
            own.append(ids[mine])
            places.append(total + mine)
            numbers += np.bincount(dealt, minlength=len(numbers))
            total += len(ids)
        return PlannedShare(np.concatenate(own), np.concatenate(places), {r: int(numbers[r]) for r in ranks})

    def _of_stream(self, stream: str, ids: Int64s) -> Int64s:
        if self.draw is None:
            return ids if stream == "train" else ids[:0]
        return ids[self.draw.of(ids) == (stream == "validation")]
