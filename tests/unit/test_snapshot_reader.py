"""What a node reads of a snapshot: its rows by id, in the types in which Spark feeds them, or an error."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfos_ml import errors
from tfos_ml.agent import snapshot_reader
from tfos_ml.agent.snapshot_reader import SnapshotReader
from tfos_ml.data.packed_lists import pack
from tfos_ml.data.row_order import PARTITION_SHIFT, pack_counts
from tfos_ml.data.schema import ColumnSpec, FeedSchema
from tfos_ml.data.snapshot_layout import Snapshot, SnapshotRows, StoredColumn
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.protocol.cluster_template import make_template

BUCKETS, COUNTS = 6, [5, 0, 1, 30]  # rows by source partition
IDS = [(partition << PARTITION_SHIFT) + place for partition, rows in enumerate(COUNTS) for place in range(rows)]
SCHEMA = FeedSchema(
    (ColumnSpec("x", "x", "feature", "float32", 1, "vector"), ColumnSpec("time", "time", "label", "int64", 0))
)


def dealt(row: int, to: int) -> int:
    return sum(divmod(row, 1 << PARTITION_SHIFT)) % to


def table(ids: list[int]) -> pa.Table:
    values = [[0.1 * (i % 97), 1e300] if i % 3 else None for i in ids]
    times = pa.array([i % 1000 * 1001 for i in ids], pa.timestamp("us"))
    held = pa.array([None if i % 5 == 0 else i % 2 == 0 for i in ids], pa.bool_())
    return pa.table({"c0": pa.array(values, pa.list_(pa.float64())), "c1": times, "c2": held, "row": ids})


def stored(ids: list[int]) -> pa.Table:
    """The table as Spark writes it."""
    rows = table(ids)
    return rows.set_column(0, "c0", pack(rows["c0"].combine_chunks()))


@pytest.fixture
def snapshot(tmp_path):
    """Files of six buckets with row groups of four rows, as Spark writes them; one bucket has two files."""
    for bucket in range(BUCKETS):
        ids = [row for row in IDS if dealt(row, BUCKETS) == bucket]
        parts = [ids] if bucket else [ids[:2], ids[2:]]
        for number, part in enumerate(parts):
            path = tmp_path / f"part-{bucket:05}-c{number}.parquet"
            pq.write_table(stored(part), path, row_group_size=4, use_deprecated_int96_timestamps=True)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    columns = (
        StoredColumn("x", "float64", 1, "vector"),
        StoredColumn("time", "int64", 0, "plain"),
        StoredColumn("held", "bool", 0, "plain"),
    )
    return Snapshot(str(tmp_path), columns, BUCKETS, pack_counts(np.array(COUNTS)), sizes)


def read(snapshot, template, rank, validation=None) -> pa.Table:
    found = list(SnapshotReader(SnapshotRows(snapshot, (0, 1), validation), SCHEMA, template, rank))
    return pa.Table.from_batches(found) if found else pa.table({"row": pa.array([], pa.int64())})


def test_rows_by_bucket_are_told_by_the_counts(snapshot):
    assert snapshot.rows == len(IDS)
    assert snapshot.bucket_rows.tolist() == np.bincount([dealt(row, BUCKETS) for row in IDS]).tolist()


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_each_row_is_at_one_node_which_is_that_of_the_feed(snapshot, nodes, monkeypatch):
    monkeypatch.setattr(snapshot_reader, "BATCH_BYTES", 40)
    shares = [read(snapshot, make_template(nodes), rank)["row"].to_pylist() for rank in range(nodes)]
    assert sorted(row for share in shares for row in share) == IDS
    if BUCKETS % nodes == 0:
        assert [sorted(share) for share in shares] == [[i for i in IDS if dealt(i, nodes) == n] for n in range(nodes)]


def test_columns_are_those_that_spark_feeds(snapshot):
    found = read(snapshot, make_template(1), 0)
    expected = table(found["row"].to_pylist())
    assert found.schema.names == ["c0", "c1", "row"]
    assert found["c0"].type == pa.list_(pa.float32())
    assert found["c1"].to_pylist() == expected["c1"].cast(pa.int64()).to_pylist()
    with np.errstate(over="ignore"):
        floats = [x and [float(np.float32(value)) for value in x] for x in expected["c0"].to_pylist()]
    assert found["c0"].to_pylist() == floats


@pytest.mark.parametrize("validation", [2, ValidationDraw(0.3, 7)], ids=["column", "draw"])
@pytest.mark.parametrize("evaluator", [False, True])
def test_rows_for_validation_go_where_the_feed_has_them_go(snapshot, validation, evaluator):
    template = make_template(3, 0, None, evaluator)
    if isinstance(validation, int):
        marked = dict(zip(IDS, (bool(value) for value in table(IDS)["c2"].to_pylist()), strict=True))
    else:
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


def damage(snapshot, tmp_path, how):
    path = tmp_path / "part-00004-c0.parquet"
    if how == "missing":
        path.unlink()
    elif how == "short":
        path.write_bytes(path.read_bytes()[:-9])
    elif how == "other rows":
        snapshot.files[path.name] = snapshot.files["part-00003-c0.parquet"]
        path.write_bytes((tmp_path / "part-00003-c0.parquet").read_bytes())
    else:
        content = bytearray(path.read_bytes())
        content[4:200] = bytes(196)
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["missing", "short", "other rows", "damaged"])
def test_a_file_that_is_not_whole_is_an_error(snapshot, tmp_path, how):
    damage(snapshot, tmp_path, how)
    read(snapshot, make_template(2), 1)
    with pytest.raises(errors.FileReadError, match=r"cannot be read: .*delete it: the next fit writes it again"):
        read(snapshot, make_template(2), 0)
