"""What the supervisor of a node lets through to the TensorFlow process; more is in ``e2e/test_data_faults.py``."""

import collections
import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from node_tasks import make_task
from pyspark.sql import types as t

from tfos_ml import errors
from tfos_ml.agent.feeder import Feeder
from tfos_ml.data.attributes import check_vector_width, class_count
from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import ColumnSpec, FeedSchema
from tfos_ml.data.spool import SpoolDirectories, read_chunk
from tfos_ml.inference.prediction import LossInfo, label_constraint
from tfos_ml.keras.model.column_checks import check_attributes
from tfos_ml.protocol.codec import decode, encode

NAN, INF = float("nan"), float("inf")
FLOATS = pa.list_(pa.float32())
X = ColumnSpec("x", "x", "feature", "float32", 1)
FIVE = TensorInfo("float32", (None, 5))


def label(output=FIVE, dtype="int64", ndim=0, **of):
    loss = LossInfo("sparse_categorical_crossentropy", **of)
    spec = ColumnSpec("y", "y", "label", dtype, ndim)
    return dataclasses.replace(spec, constraint=label_constraint(spec, loss, "out", output))


@pytest.fixture
def feed(tmp_path):
    """Feeds batches of one column, each row's id its place; returns the feeder and the ids that reached the spool."""

    def run(spec, *batches, handle_invalid="error"):
        chunks = []  # messages, of which the last is the end of the input
        schema = FeedSchema((spec,), handle_invalid=handle_invalid)
        schema = decode(FeedSchema, encode(schema))
        directories = SpoolDirectories(Path(tmp_path), Path(tmp_path))
        feeder = Feeder(make_task(schema=schema), directories, chunks.append)
        starts = np.cumsum([0, *map(len, batches)])
        ids = [pa.array(np.arange(start, end)) for start, end in itertools.pairwise(starts)]
        rows = [pa.RecordBatch.from_arrays([*columns], ["c0", "row"]) for columns in zip(batches, ids, strict=True)]
        collections.deque(feeder.feed(rows), maxlen=0)
        feeder.finish()
        written = [batch for ready in chunks[:-1] for batch in read_chunk(ready.chunk.path)]
        return feeder, [row for batch in written for row in batch.column("row").to_pylist()]

    return run


def test_null_error_names_the_column_and_the_count(feed):
    with pytest.raises(errors.NullValueError, match=r"Column 'x' has 2 null value\(s\) among 3 rows"):
        feed(X, pa.array([[1, None], None, [3]], FLOATS))


@pytest.mark.parametrize(("value", "deep"), [(NAN, 0), (-INF, 2)])
def test_nan_is_an_error_that_counts_rows(feed, value, deep):
    column, kind = [1.0, value, value, 2.0], pa.float32()
    for _ in range(deep):
        column, kind = [[v] for v in column], pa.list_(kind)
    spec = dataclasses.replace(X, ndim=deep)
    with pytest.raises(errors.NonFiniteValueError, match=r"'x' has 2 x (NaN|infinity) in 2 of 4 rows.*handleInvalid="):
        feed(spec, pa.array(column, kind))


def test_rows_with_nulls_and_nan_are_skipped_and_counted_or_kept(feed):
    batches = [pa.array([[1, NAN], [], [2]], FLOATS), pa.array([[3], [INF, NAN]], FLOATS)]
    feeder, found = feed(X, *batches, handle_invalid="skip")
    assert found == [1, 2, 3]
    assert (feeder.skipped, feeder.rows["train"], feeder.counts().skipped) == (2, 3, 2)
    nulls = pa.array([[1], None, [None], [2]], FLOATS)
    assert feed(X, nulls, pa.array([None, [3]], FLOATS), handle_invalid="skip")[1] == [0, 3, 5]
    feeder, found = feed(X, *batches, handle_invalid="keep")
    assert (found, feeder.skipped) == ([0, 1, 2, 3, 4], 0)


def test_labels_that_are_no_class_are_an_error_with_the_range_found(feed):
    for column in (pa.array([0, 9]), pa.array([0, 9], pa.float64())):
        spec = label(dtype=str(column.type).replace("double", "float64"))
        with pytest.raises(errors.LabelRangeError, match="from 0 to 9 .* Give the last layer 10 units"):
            feed(spec, column[:1], column)
    steps = label(output=TensorInfo("float32", (None, None, 5)), ndim=1, ignore_class=-1)
    lists = pa.list_(pa.int64())
    assert feed(steps, pa.array([[0, 4, -1], []], lists))[1] == [0, 1]
    with pytest.raises(errors.LabelRangeError, match="from 0 to 5"):
        feed(steps, pa.array([[0, 5, -1]], lists))


def test_what_spark_ml_notes_of_columns_is_an_error_before_any_row():
    def noted(column, **about):
        return t.StructType([t.StructField(column, t.DoubleType(), True, {"ml_attr": about})])

    vectors = dataclasses.replace(X, kind="vector")
    names = {"numeric": [{"idx": 0, "name": "a"}], "nominal": [{"idx": 1, "name": "b"}]}
    with pytest.raises(errors.ShapeError, match=r"vectors of 2 elements \(a, b\), but input 'x' expects .*: 4 in each"):
        check_vector_width(noted("x", attrs=names), vectors, TensorInfo("float32", (None, 4)))
    check_vector_width(noted("x", num_attrs=4), vectors, TensorInfo("float32", (None, 4)))
    assert class_count(noted("y", type="nominal", vals=["a", "b", "__unknown"]), "y") == 2
    with pytest.raises(errors.LabelRangeError, match=r"'y' has 7 classes .*'out' is .*has 5 classes. Give .* 7 units"):
        check_attributes(noted("y", type="nominal", num_vals=7), FeedSchema((label(),)), None)
