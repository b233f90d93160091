"""Which rows each node will have, and where they are among all, before any has been read."""

import numpy as np
import pytest

from tfos_ml.data.file_plan import FilePiece, FilePlan
from tfos_ml.data.order import PARTITION_SHIFT, dealt_ranks
from tfos_ml.data.planned_rows import PlannedRows
from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.validation_draw import ValidationDraw

COUNTS = [13, 0, 1, 250, 7]  # rows of each source partition


def planned(ranks, draw=None):
    """Of pieces of a few rows."""
    pieces = [
        FilePiece(partition, 0, (), min(5, rows - first))
        for partition, rows in enumerate(COUNTS)
        for first in range(0, rows, 5)
    ]
    return PlannedRows.of_plan(FilePlan((), tuple(pieces), ("x",), draw), FeedSchema(()), ranks)


def all_ids():
    """Of all rows in the order of the DataFrame."""
    return np.concatenate([(partition << PARTITION_SHIFT) + np.arange(rows) for partition, rows in enumerate(COUNTS)])


@pytest.mark.parametrize("ranks", [[0], [0, 1], [2, 5, 6]])
@pytest.mark.parametrize("draw", [None, ValidationDraw(0.3, 7), ValidationDraw(1.0, 7)])
def test_each_row_is_planned_once_where_it_comes_and_is_dealt(ranks, draw):
    rows = planned({"train": ranks, "validation": ranks}, draw)
    validates = np.zeros(sum(COUNTS), bool) if draw is None else draw.of(all_ids())
    for stream, chosen in (("train", ~validates), ("validation", validates)):
        expected = all_ids()[chosen]
        shares = {rank: rows.share(stream, rank) for rank in ranks}
        found = np.full(len(expected), -1)
        for rank, share in shares.items():
            assert (np.diff(share.ids) > 0).all()
            assert (dealt_ranks(share.ids, ranks) == rank).all()
            found[share.places] = share.ids
            assert share.total == len(expected)
            assert share.numbers == {other: len(shares[other].ids) for other in ranks}
        assert found.tolist() == expected.tolist()


def test_validation_rows_may_be_those_of_other_nodes():
    rows = planned({"train": [0, 1], "validation": [2]}, ValidationDraw(0.3, 7))
    assert not len(rows.share("train", 2).ids)
    assert not len(rows.share("validation", 0).ids)
    assert sum(len(rows.share("train", rank).ids) for rank in (0, 1)) + rows.share("validation", 2).total == sum(COUNTS)
