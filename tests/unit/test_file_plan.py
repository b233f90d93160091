"""Row groups by Spark's splits, from the footers of files, without Spark."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tfos_ml.data.file_plan import FilePiece, FilePlan, FileUnit, dealt_units
from tfos_ml.driver.file_listing import is_time, look_at_each
from tfos_ml.driver.file_scan import FileSplit, NotDirectError
from tfos_ml.driver.parquet_listing import footer_of, pieces_of


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"id": np.arange(100), "x": np.ones(100)}), tmp_path / "a.parquet", row_group_size=7)
    return tmp_path / "a.parquet"


def split_of(path, start, length, size=None, later=0):
    info = fs.LocalFileSystem().get_file_info(str(path))
    return FileSplit(start, str(path), start, length, size or info.size, info.mtime_ns // 10**6 + later, str(path))


def look(split):
    return look_at_each([split], footer_of)[split.uri]


@pytest.mark.parametrize("length", [1, 64, 300, 1000, 1 << 20])
def test_each_row_group_is_in_one_split_in_order(path, length):
    size = path.stat().st_size
    footer = look(split_of(path, 0, size))
    pieces = [p for start in range(0, size, length) for p in pieces_of(split_of(path, start, length), footer, 0)]
    assert [number for piece in pieces for number in piece.row_groups] == list(range(15))
    assert sum(piece.rows for piece in pieces) == 100


@pytest.mark.parametrize("other", [{"size": 5}, {"later": 1}])
def test_a_file_that_is_not_as_spark_listed_it_is_not_planned(path, other):
    with pytest.raises(NotDirectError, match=r"a\.parquet has changed since Spark listed the files"):
        look(split_of(path, 0, 100, **other))


def test_a_file_without_a_footer_is_not_planned(path):
    path.write_bytes(b"PAR1 no footer")
    with pytest.raises(NotDirectError, match=r"the driver cannot read .*a\.parquet: "):
        look(split_of(path, 0, 100))


@pytest.mark.parametrize(
    ("nanoseconds", "milliseconds", "same"),
    [(5_123_456_789, 5123, True), (5_123_456_789, 5124, False), (5 * 10**9, 5999, True), (None, 1, True)],
)
def test_times_are_compared_as_exactly_as_the_filesystem_tells_them(nanoseconds, milliseconds, same):
    assert is_time(nanoseconds, milliseconds) is same


def test_a_unit_is_read_where_it_lies_unless_others_have_less_to_read():
    hosts = {0: "a", 1: "a", 2: "b", 3: "c"}

    def dealt(*places):
        units = [FileUnit(i, 0, i, (FilePiece(0, i, (), 1, 10, hosts=place),)) for i, place in enumerate(places)]
        return dealt_units(units, [0, 1, 2, 3], hosts)

    assert dealt(("b",), ("c", "x"), ("a",), ("a",)) == [2, 3, 0, 1]
    assert dealt(("x",), (), ("c", "b"), ("c", "b")) == [0, 1, 2, 3]
    assert dealt(*[("c",)] * 8) == [3, 3, 0, 1, 2, 3, 0, 1]  # never more than one unit ahead


def test_a_unit_lies_where_all_of_its_pieces_do():
    pieces = [FilePiece(0, i, (), 1, 1, hosts=hosts) for i, hosts in enumerate([("a", "b"), ("b", "c")])]
    assert FileUnit(0, 0, 0, tuple(pieces)).hosts == {"b"}


def test_units_are_runs_of_pieces_within_partitions_and_whole_partitions_where_positions_are_open():
    sizes = [(0, 10), (0, 10), (0, 25), (1, 5), (1, 40), (2, 1)]
    pieces = tuple(FilePiece(partition, 0, (i,), i + 1, size) for i, (partition, size) in enumerate(sizes))
    plan = FilePlan((), pieces, ())
    least = [[piece.row_groups[0] for piece in unit.pieces] for unit in plan.units(1)]  # 91 bytes, four units a reader
    assert least == [[0, 1, 2], [3, 4], [5]]
    assert [unit.first for unit in plan.units(4)] == [0, 1, 3, 0, 4, 0]
    unknown = replace(plan, pieces=(*pieces[:-1], replace(pieces[-1], rows=None)))
    assert [unit.partition for unit in unknown.units(9)] == [0, 1, 2]
    assert unknown.rows is None
