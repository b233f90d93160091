"""Which rows each node will have, known before any has been read: of files whose footers tell how many there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfos_ml.data.file_plan import FilePlan
from tfos_ml.data.order import PARTITION_SHIFT, Int64s, dealt_ranks, pack_counts, unpack_counts
from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.validation_draw import ValidationDraw


@dataclass(frozen=True)
class PlannedRows:
    """All rows of a fit, as nodes are told."""

    counts: str  # by source partition, as ``pack_counts`` writes them
    ranks: list[int]  # of the nodes that get training rows
    draw: ValidationDraw | None = None  # of the rows that are not for training

    @classmethod
    def of_plan(cls, plan: FilePlan, schema: FeedSchema, ranks: list[int]) -> PlannedRows | None:
        """The rows of a plan; None where only the rows themselves tell which are kept, and which are for validation."""
        draw = plan.validation
        if isinstance(draw, str) or plan.condition is not None or "skip" in (schema.null_policy, schema.nan_policy):
            return None
        counts = np.zeros(max((piece.partition for piece in plan.pieces), default=-1) + 1, np.int64)
        for piece in plan.pieces:
            if piece.rows is None:  # of TFRecords
                return None
            counts[piece.partition] += piece.rows
        return cls(pack_counts(counts), ranks, draw)

    def training(self, rank: int) -> tuple[Int64s, dict[int, int]]:
        """The ids of the training rows of a node, ascending, and how many each node has, by rank."""
        own, numbers = [np.zeros(0, np.int64)], np.zeros(max(self.ranks) + 1, np.int64)
        for partition, rows in enumerate(unpack_counts(self.counts).tolist()):
            ids = (partition << PARTITION_SHIFT) + np.arange(rows)
            if self.draw is not None:
                ids = ids[~self.draw.of(ids)]
            dealt = dealt_ranks(ids, self.ranks)
            own.append(ids[dealt == rank])
            numbers += np.bincount(dealt, minlength=len(numbers))
        return np.concatenate(own), {rank: int(numbers[rank]) for rank in self.ranks}
