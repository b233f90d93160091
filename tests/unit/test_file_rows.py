"""Shares of nodes that read Parquet files themselves, without Spark: types, order, validation, files that change."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tfos_ml import errors
from tfos_ml.agent.file_rows import read_share
from tfos_ml.data.file_plan import FilePiece, FilePlan, PlannedFile
from tfos_ml.data.order import PARTITION_SHIFT, dealt_ranks
from tfos_ml.data.parquet_types import same_values
from tfos_ml.data.schema import VECTOR_FIELDS, ColumnSpec, FeedSchema
from tfos_ml.data.validation_draw import ValidationDraw, _hash_long
from tfos_ml.protocol.template import make_template

ROWS = 25
SCHEMA = FeedSchema(
    (
        ColumnSpec("x", "x", "feature", "float32", 1),
        ColumnSpec("id", "id", "label", "int64", 0),
        ColumnSpec("name", "name", "label", "string", 0),
    )
)


def planned(path, partitions=((0, 1), (2, 3, 4)), **options) -> FilePlan:
    """A plan of one file, whose row groups are in several partitions."""
    info = fs.LocalFileSystem().get_file_info(str(path))
    groups = pq.read_metadata(path)
    pieces = tuple(
        FilePiece(number, 0, numbers, sum(groups.row_group(i).num_rows for i in numbers))
        for number, numbers in enumerate(partitions)
    )
    return FilePlan((PlannedFile(str(path), info.size, info.mtime_ns),), pieces, ("x", "id", "name"), **options)


def share(plan, workers=1, rank=0, schema=SCHEMA):
    return pa.Table.from_batches(read_share(plan, schema, make_template(workers), rank)).combine_chunks()


@pytest.fixture
def path(tmp_path):
    table = pa.table(
        {
            "held": [None, True, False, False, True] * (ROWS // 5),
            "name": pa.array([f"n{i % 3}" for i in range(ROWS)]).dictionary_encode(),
            "id": np.arange(ROWS),
            "x": pa.array([None if i == 7 else [i, i + 0.5] for i in range(ROWS)], pa.large_list(pa.float32())),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=5)
    return tmp_path / "rows.parquet"


def test_rows_come_in_the_order_of_the_file_in_the_types_that_spark_feeds(path):
    found = share(planned(path))
    assert found.schema.types == [pa.list_(pa.float32()), pa.int64(), pa.string(), pa.int64()]
    assert found["c0"].to_pylist() == [None if i == 7 else [i, i + 0.5] for i in range(ROWS)]
    assert found["c1"].to_pylist() == list(range(ROWS))
    assert found["c2"].to_pylist() == [f"n{i % 3}" for i in range(ROWS)]
    ids = [*range(10), *(i + (1 << PARTITION_SHIFT) for i in range(15))]
    assert found["row"].to_pylist() == ids


@pytest.mark.parametrize("workers", [2, 3, 30])
def test_each_row_goes_to_one_node_the_one_that_spark_deals_it_to(path, workers):
    seen = []
    for rank in range(workers):
        batches = list(read_share(planned(path), SCHEMA, make_template(workers), rank))
        ids = np.concatenate([np.zeros(0, np.int64), *(b.column("row").to_numpy() for b in batches)])
        assert (dealt_ranks(ids, range(workers)) == rank).all()
        seen += [i for b in batches for i in b.column("c1").to_pylist()]
    assert sorted(seen) == list(range(ROWS))


def test_a_parameter_server_reads_nothing(path):
    assert list(read_share(planned(path), SCHEMA, make_template(2, num_ps=1), 0)) == []


def test_validation_rows_are_marked_by_a_column_in_which_null_is_false(path):
    found = share(planned(path, validation="held"))
    assert found["validation"].to_pylist() == [False, True, False, False, True] * (ROWS // 5)


def test_validation_rows_are_drawn_by_row_id(path):
    draw = ValidationDraw(0.5, 3)
    found = share(planned(path, validation=draw))
    assert found["validation"].to_pylist() == draw.of(found["row"].to_numpy()).tolist()
    assert 0 < sum(found["validation"].to_pylist()) < ROWS


def test_doubles_of_vectors_become_floats_rounded_or_infinite(tmp_path):
    kinds = pa.int8(), pa.int32(), pa.list_(pa.int32()), pa.list_(pa.float64())
    kind = pa.struct(list(zip(VECTOR_FIELDS, kinds, strict=True)))
    dense = {"type": 1, "size": None, "indices": None, "values": [1 / 3, 1e300, -0.0]}
    sparse = {"type": 0, "size": 3, "indices": [1], "values": [0.1]}
    pq.write_table(pa.table({"x": pa.array([dense, None, sparse], kind)}), tmp_path / "vectors.parquet")
    plan = planned(tmp_path / "vectors.parquet", [(0,)])
    plan = FilePlan(plan.files, plan.pieces, ("x",))
    found = share(plan, schema=FeedSchema((ColumnSpec("x", "x", "feature", "float32", 1, "vector"),)))
    first, second, third = found["c0"].to_pylist()
    assert np.float32(first).tolist() == [np.float32(1 / 3), np.inf, 0.0]
    assert np.signbit(first[2])
    assert (second, third) == (None, [0, np.float32(0.1), 0])


CHANGES = {
    "size": lambda path: pq.write_table(pq.read_table(path).slice(0, 20), path, row_group_size=5),
    "time": lambda path: os.utime(path, ns=(0, 1)),
    "gone": os.unlink,
}


@pytest.mark.parametrize("when", ["before", "while it is read"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_is_an_error(path, change, when):
    rows = read_share(planned(path), SCHEMA, make_template(1), 0)
    if when != "before":
        next(rows)
    CHANGES[change](path)
    with pytest.raises(errors.FilesChangedError, match=r"rows\.parquet had .* bytes when .* has changed since"):
        list(rows)


def test_a_damaged_file_is_an_error(path):
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(60) + content[64:])
    with pytest.raises(errors.FileReadError, match=r"rows\.parquet cannot be read: "):
        share(planned(path))


@pytest.mark.parametrize(
    ("stored", "same"),
    [
        (pa.list_(pa.float32()), True),
        (pa.large_list(pa.float32()), True),
        (pa.list_(pa.float32(), 3), True),
        (pa.list_(pa.float64()), False),
        (pa.list_(pa.list_(pa.float32())), False),
        (pa.float32(), False),
    ],
)
def test_containers_of_other_kinds_hold_the_same_values(stored, same):
    assert same_values(stored, pa.list_(pa.float32())) is same


def test_a_draw_hashes_as_spark_does():
    (hashed,) = _hash_long(np.full(1, 1, np.uint64), np.full(1, 42, np.uint64)).view(np.int64)
    assert hashed == -7001672635703045582  # SELECT xxhash64(1L)
