"""What a node reads of a snapshot: its rows by id, or an error; their values are in ``e2e/test_snapshot.py``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfos_ml import errors
from tfos_ml.agent import snapshot_reader
from tfos_ml.agent.snapshot_reader import SnapshotReader
from tfos_ml.data.row_order import PARTITION_SHIFT, pack_counts
from tfos_ml.data.schema import ColumnSpec, FeedSchema
from tfos_ml.data.snapshot_layout import Snapshot, SnapshotRows, StoredColumn
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.protocol.cluster_template import make_template

BUCKETS, COUNTS = 6, [5, 0, 1, 30]  # rows by source partition
IDS = [(partition << PARTITION_SHIFT) + place for partition, rows in enumerate(COUNTS) for place in range(rows)]
SCHEMA = FeedSchema((ColumnSpec("time", "time", "label", "int64", 0),))


def dealt(row: int, to: int) -> int:
    return sum(divmod(row, 1 << PARTITION_SHIFT)) % to


@pytest.fixture
def snapshot(tmp_path):
    """Files of six buckets with row groups of four rows, as Spark writes them; one bucket has two files."""
    for bucket in range(BUCKETS):
        ids = [row for row in IDS if dealt(row, BUCKETS) == bucket]
        parts = [ids] if bucket else [ids[:2], ids[2:]]
        for number, part in enumerate(parts):
            table = pa.table({"c0": pa.array([row % 1000 * 1001 for row in part], pa.timestamp("us")), "row": part})
            path = tmp_path / f"part-{bucket:05}-c{number}.parquet"
            pq.write_table(table, path, row_group_size=4, use_deprecated_int96_timestamps=True)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    columns = (StoredColumn("time", "int64", 0, "plain"),)
    return Snapshot(str(tmp_path), columns, BUCKETS, pack_counts(np.array(COUNTS)), sizes)


def read(snapshot, template, rank, validation=None) -> pa.Table:
    found = list(SnapshotReader(SnapshotRows(snapshot, (0,), validation), SCHEMA, template, rank))
    return pa.Table.from_batches(found) if found else pa.table({"row": pa.array([], pa.int64())})


def test_each_row_is_at_one_node(snapshot, monkeypatch):
    monkeypatch.setattr(snapshot_reader, "BATCH_BYTES", 40)
    assert snapshot.bucket_rows.tolist() == np.bincount([dealt(row, BUCKETS) for row in IDS]).tolist()
    for nodes in (3, 4):
        shares = [read(snapshot, make_template(nodes), rank)["row"].to_pylist() for rank in range(nodes)]
        assert sorted(row for share in shares for row in share) == IDS


def test_rows_for_validation_go_where_the_feed_has_them_go(snapshot):
    """Here to an evaluator, by a draw; to all, by a column, in ``e2e/test_snapshot.py``."""
    template, validation = make_template(3, 0, None, True), ValidationDraw(0.3, 7)
    marked = dict(zip(IDS, validation.of(np.array(IDS)).tolist(), strict=True))
    for rank in range(3):
        found = read(snapshot, template, rank, validation)
        expected = [
            (row, marked[row])
            for row in IDS
            for ranks in [template.validation_ranks if marked[row] else template.feed_ranks]
            if ranks[dealt(row, len(ranks))] == rank
        ]
        assert sorted(zip(found["row"].to_pylist(), found["validation"].to_pylist(), strict=True)) == expected


@pytest.mark.parametrize("how", ["missing", "other rows", "damaged"])
def test_a_file_that_is_not_whole_is_an_error(snapshot, tmp_path, how):
    path, other = tmp_path / "part-00004-c0.parquet", tmp_path / "part-00003-c0.parquet"
    if how == "missing":
        path.unlink()
    elif how == "other rows":
        snapshot.files[path.name] = snapshot.files[other.name]
        path.write_bytes(other.read_bytes())
    else:
        content = path.read_bytes()
        path.write_bytes(content[:4] + bytes(196) + content[200:])
    read(snapshot, make_template(2), 1)
    with pytest.raises(errors.FileReadError, match=r"cannot be read: .*delete it: the next fit writes it again"):
        read(snapshot, make_template(2), 0)
