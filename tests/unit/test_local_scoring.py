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


def test_one_row_or_a_batch_in_any_form():
    sparse = Vectors.sparse(4, {0: 1.0, 3: 2.0})
    for row in ([1, 0, 0, 2], np.array(ROW, "f"), sparse, {"x": ROW}, Row(features=Vectors.dense(ROW), label=1.0)):
        assert given(row, FOUR) == [[ROW]]
    batches = [np.array([ROW, ROW]), [Vectors.dense(ROW), sparse], {"features": [ROW, ROW]}, [Row(features=ROW)] * 2]
    for rows in (*batches, FRAME.features, FRAME, pd.DataFrame({"features": [sparse, sparse]})):
        assert given(rows, FOUR) == [[ROW, ROW]]
    assert given([1.0, 2.0], RAGGED) == [[[1.0, 2.0]]]
    assert given([[1.0, 2.0], [3.0]], RAGGED) == [[[1.0, 2.0], [3.0]]]


@pytest.mark.parametrize(
    ("rows", "signature", "error", "text"),
    [
        ([[1, 2], [3]], FOUR, errors.ShapeError, r"rows of 1 to 2 elements.*float32\(batch, 4\)"),
        (object(), FOUR, errors.ShapeError, r"cannot be converted.*float32\(batch, 4\)"),
        ({"other": ROW}, FOUR, errors.ColumnNotFoundError, r"\['features'\] are missing. Received: \['other'\]"),
        (ROW, TWO, errors.SignatureError, r"has 2 inputs; pass a dict.*\['left', 'right'\].*list"),
        ({"left": [[1, 2], [3, 4]], "right": 5}, TWO, errors.ShapeError, r"\{'left': 2, 'right': 1\}"),
    ],
)
def test_what_does_not_fit_is_a_typed_error(rows, signature, error, text):
    with pytest.raises(error, match=text):
        given(rows, signature)


def test_nan_is_null_in_pandas_alone():
    scalar = [InputBinding("features", "x", TensorInfo("float32", (None,)))]
    assert local_columns(pd.DataFrame({"features": [1.0, np.nan]}), scalar)[0].to_pylist() == [1.0, None]
    assert np.isnan(given(np.array([1.0, np.nan]), scalar)[0][1])
    assert np.isnan(given(pd.DataFrame({"features": [[np.nan] * 4]}), FOUR)[0][0][0])


def test_results_of_one_shape_are_one_array_and_others_are_objects():
    for rows in ([1.0, 2.0], [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], [[1], [2, 3]], [[1], None], ["a", None]):
        found = numpy_of(pa.array(rows))
        assert found.tolist() == rows
        assert (found.dtype == object) is (None in rows or rows == [[1], [2, 3]])
