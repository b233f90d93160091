"""What ``TFModel.predict`` takes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row

from tfos_ml import errors
from tfos_ml.data.casting import TensorInfo
from tfos_ml.inference.input_tensors import InputBinding, ModelInput
from tfos_ml.inference.local_scoring import local_columns, numpy_of

FOUR = [InputBinding("features", "x", TensorInfo("float32", (None, 4)))]
RAGGED = [InputBinding("features", "x", TensorInfo("float32", (None, None), ragged=True))]
TWO = [
    InputBinding("left", "a", TensorInfo("float32", (None, 2))),
    InputBinding("right", "b", TensorInfo("int64", (None,))),
]
ROW = [1.0, 0.0, 0.0, 2.0]
FRAME = pd.DataFrame({"features": [ROW, ROW]})


def given(rows, inputs):
    """The values that the inputs take of some rows."""
    columns = local_columns(rows, inputs)
    for binding, column in zip(inputs, columns, strict=True):
        ModelInput(binding, column, 0.0)
    return [column.to_pylist() for column in columns]


@pytest.mark.parametrize(
    "row",
    [
        [1, 0, 0, 2],
        np.array(ROW, "f"),
        Vectors.sparse(4, {0: 1.0, 3: 2.0}),
        {"x": ROW},
        {"features": Vectors.dense(ROW)},
        Row(features=Vectors.dense(ROW), label=1.0),
    ],
    ids=lambda row: type(row).__name__,
)
def test_one_row_in_any_form_is_a_batch_of_one(row):
    assert given(row, FOUR) == [[ROW]]


@pytest.mark.parametrize(
    "rows",
    [
        np.array([ROW, ROW]),
        [np.array(ROW), np.array(ROW)],
        [Vectors.dense(ROW), Vectors.sparse(4, {0: 1.0, 3: 2.0})],
        {"features": [ROW, ROW]},
        [Row(features=ROW), Row(features=ROW)],
        FRAME.features,
        pd.DataFrame({"features": [Vectors.dense(ROW), Vectors.dense(ROW)]}),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_a_batch_in_any_form(rows):
    assert given(rows, FOUR) == [[ROW, ROW]]


@pytest.mark.parametrize(
    ("rows", "signature", "error", "text"),
    [
        ([1, 2, 3], FOUR, errors.ShapeError, r"expects float32\(batch, 4\)"),
        ([[1, 2], [3]], FOUR, errors.ShapeError, r"rows of 1 to 2 elements.*float32\(batch, 4\)"),
        (["a"] * 4, FOUR, errors.ShapeError, r"holds text.*float32\(batch, 4\)"),
        (object(), FOUR, errors.ShapeError, r"cannot be converted.*float32\(batch, 4\)"),
        ({"other": ROW}, FOUR, errors.ColumnNotFoundError, r"\['features'\] are missing. Received: \['other'\]"),
        (ROW, TWO, errors.SignatureError, r"has 2 inputs; pass a dict.*\['left', 'right'\].*list"),
        ({"left": [[1, 2], [3, 4]], "right": 5}, TWO, errors.ShapeError, r"\{'left': 2, 'right': 1\}"),
    ],
)
def test_what_does_not_fit_is_a_typed_error(rows, signature, error, text):
    with pytest.raises(error, match=text):
        given(rows, signature)


def test_one_row_or_several_of_any_length():
    assert given([1.0, 2.0], RAGGED) == [[[1.0, 2.0]]]
    assert given([[1.0, 2.0], [3.0]], RAGGED) == [[[1.0, 2.0], [3.0]]]


def test_nan_is_null_in_pandas_alone():
    scalar = [InputBinding("features", "x", TensorInfo("float32", (None,)))]
    assert local_columns(pd.DataFrame({"features": [1.0, np.nan]}), scalar)[0].to_pylist() == [1.0, None]
    assert np.isnan(given(np.array([1.0, np.nan]), scalar)[0][1])
    assert np.isnan(given(pd.DataFrame({"features": [[np.nan] * 4]}), FOUR)[0][0][0])


@pytest.mark.parametrize("rows", [[1.0, 2.0], [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]])
def test_results_of_one_shape_are_one_array(rows):
    found = numpy_of(pa.array(rows))
    assert found.tolist() == rows
    assert found.dtype != object


@pytest.mark.parametrize("rows", [[[1], [2, 3]], [[1], None], ["a", None]])
def test_results_that_differ_in_shape_or_are_null_are_objects(rows):
    found = numpy_of(pa.array(rows))
    assert found.tolist() == rows
    assert found.dtype == object
