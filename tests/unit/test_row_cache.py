"""Copies of cached rows on disk: whole or not there, never mixed, with the ids that they were written with."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pyarrow as pa
import pytest

from tfos_ml import errors
from tfos_ml.agent.cache_writer import CacheWriter
from tfos_ml.agent.file_rows import read_share
from tfos_ml.common.filesystems import StorageError
from tfos_ml.data import row_cache
from tfos_ml.data.order import PARTITION_SHIFT
from tfos_ml.data.row_cache import CachedRows, WrittenFile
from tfos_ml.data.schema import ColumnSpec, FeedSchema
from tfos_ml.protocol.template import make_template

KEY = "0123456789abcdef" * 2
SCHEMA = FeedSchema(
    (
        ColumnSpec("x", "x", "feature", "float32", 1),
        ColumnSpec("day", "day", "label", "int32", 0),
        ColumnSpec("name", "name", "label", "string", 0),
    )
)
IDS = np.array([(3 << PARTITION_SHIFT) + 5, 7, 6, 1 << PARTITION_SHIFT])


def batch(value: float) -> pa.RecordBatch:
    """Rows as Spark sends them, some of them null."""
    columns = [
        pa.array([[value, 0.1], None, [], [np.nan, None]], pa.large_list(pa.float32())),
        pa.array([0, 1, None, 19000], pa.date32()),
        pa.array(["é", None, "", "b"], pa.large_string()),
        pa.array(IDS),
    ]
    return pa.RecordBatch.from_arrays(columns, ["c0", "c1", "c2", "row"])


def copied(cache: str, value: float = 1.5, used: float | None = None) -> CachedRows:
    """A copy that is not published."""
    directory = row_cache.new_copy(cache, KEY)
    os.makedirs(directory)
    (told,) = CacheWriter(directory, SCHEMA)(iter([batch(value), batch(value)]))
    row = told.to_pylist()[0]
    assert row.pop("problem") is None
    return CachedRows(KEY, directory, (WrittenFile(**row),), time.time() if used is None else used)


def rows_of(copy: CachedRows) -> pa.Table:
    return pa.Table.from_batches(read_share(copy.plan(3, None), SCHEMA, make_template(1), 0))


@pytest.fixture
def cache(tmp_path):
    return str(tmp_path / "cache")


def test_rows_are_read_as_they_were_fed_with_the_ids_that_they_had(cache):
    row_cache.publish(cache, copied(cache))
    found = rows_of(row_cache.find(cache, KEY, None))
    assert found["row"].to_pylist() == IDS.tolist() * 2
    assert found["c1"].to_pylist() == [0, 1, None, 19000] * 2
    assert found["c2"].to_pylist() == ["é", None, "", "b"] * 2
    first, second, third, fourth = found["c0"].to_pylist()[:4]
    assert (first, second, third, fourth[1]) == ([1.5, np.float32(0.1)], None, [], None)
    assert np.isnan(fourth[0])


def test_what_is_not_published_is_not_found(cache):
    copied(cache)
    assert row_cache.find(cache, KEY, None) is None


def test_copies_of_several_writers_are_not_mixed_and_the_last_counts(cache):
    first, second = copied(cache, 1.0), copied(cache, 2.0)
    one, other = row_cache.publish(cache, first), row_cache.publish(cache, second)
    assert rows_of(row_cache.find(cache, KEY, None))["c0"].to_pylist()[0][0] == 2.0
    assert rows_of(one)["c0"].to_pylist()[0][0] == 1.0  # who wrote it reads it
    assert rows_of(other)["c0"].to_pylist()[0][0] == 2.0
    assert row_cache.delete(cache, 0.0) == 2
    assert os.listdir(cache) == []


def test_a_copy_that_lacks_files_is_not_published(cache):
    copy = copied(cache)
    os.unlink(f"{copy.directory}/{copy.files[0].name}")
    assert row_cache.publish(cache, copy) is None
    assert row_cache.find(cache, KEY, None) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"format": 9, "used": 1, "directory": "a", "files": []}'])
def test_a_list_that_is_none_of_ours_is_no_copy(cache, text):
    row_cache.publish(cache, copied(cache))
    with open(f"{cache}/tfos_ml-{KEY}.json", "w") as file:
        file.write(text)
    assert row_cache.find(cache, KEY, None) is None


def test_a_list_of_another_key_is_no_copy(cache):
    row_cache.publish(cache, copied(cache))
    listed = f"{cache}/tfos_ml-{KEY}.json"
    other = "f" * 32
    os.rename(listed, f"{cache}/tfos_ml-{other}.json")
    assert row_cache.find(cache, other, None) is None


def test_copies_that_were_used_lately_stay(cache):
    old = row_cache.publish(cache, copied(cache, used=time.time() - 100))
    assert row_cache.find(cache, KEY, 50) is None
    assert row_cache.find(cache, KEY, 150) is not None
    for path in [old.directory, f"{old.directory}/{old.files[0].name}"]:
        os.utime(path, (time.time() - 100, time.time() - 100))
    assert row_cache.delete(cache, 150) == 0
    unpublished = copied(cache)  # by a fit that writes at the moment
    assert row_cache.delete(cache, 50) == 1
    assert os.listdir(cache) == [os.path.basename(unpublished.directory)]


def test_files_that_are_deleted_before_they_are_read_are_an_error(cache):
    copy = row_cache.publish(cache, copied(cache))
    row_cache.delete(cache, 0.0)
    with pytest.raises(errors.FilesChangedError, match="is gone"):
        rows_of(copy)


def test_a_task_tells_what_it_could_not_write(tmp_path):
    (tmp_path / "file").write_text("")
    (told,) = CacheWriter(str(tmp_path / "file" / "x"), SCHEMA)(iter([batch(1.0)]))
    assert "file/x" in told.to_pylist()[0]["problem"]
    assert list(CacheWriter(str(tmp_path), SCHEMA)(iter([batch(1.0).slice(0, 0)]))) == []


def test_a_store_that_is_none_is_an_error():
    with pytest.raises(StorageError, match="pyarrow"):
        row_cache.find("nowhere://else", KEY, None)


def test_the_list_is_replaced_in_one_step(cache):
    row_cache.publish(cache, copied(cache))
    row_cache.publish(cache, copied(cache))
    assert [name for name in os.listdir(cache) if "partial" in name] == []
    with open(f"{cache}/tfos_ml-{KEY}.json") as file:
        assert json.load(file)["key"] == KEY
