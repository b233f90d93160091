"""What ``TFModel.predict`` takes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row

from tfos_ml import errors
from tfos_ml.data.casting import TensorInfo, fit_to_tensor
from tfos_ml.inference.local_inputs import local_batches, local_inputs
from tfos_ml.inference.saved_model import Signature

FOUR = Signature({"x": TensorInfo("float32", (None, 4))}, {})
SCALAR = Signature({"x": TensorInfo("float32", (None,))}, {})
RAGGED_NUMBERS = Signature({"x": TensorInfo("float32", (None, None), ragged=True)}, {})
TWO = Signature({"a": TensorInfo("float32", (None, 2)), "b": TensorInfo("int64", (None,))}, {})
ROW = [1.0, 0.0, 0.0, 2.0]
FRAME = pd.DataFrame({"features": [ROW, ROW]})


def given(rows, signature):
    names = list(signature.inputs)
    mapping = {"features": "x"} if names == ["x"] else {"left": "a", "right": "b"}
    batches = local_batches(rows, mapping, signature)
    tensors = {name: signature.inputs[name] for name in names}
    return {
        mapping[column]: values
        if tensors[mapping[column]].ragged
        else fit_to_tensor(values, column, mapping[column], tensors[mapping[column]])
        for column, values in batches.items()
    }


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        tuple(ROW),
        np.array(ROW),
        np.array(ROW, "f"),
        [1, 0, 0, 2],
        Vectors.dense(ROW),
        Vectors.sparse(4, {0: 1.0, 3: 2.0}),
        {"features": ROW},
        {"x": ROW},
        {"features": Vectors.dense(ROW)},
        Row(features=ROW),
        Row(features=Vectors.dense(ROW), label=1.0),
    ],
    ids=lambda row: type(row).__name__,
)
def test_one_row_in_any_form_is_a_batch_of_one(row):
    np.testing.assert_array_equal(given(row, FOUR)["x"], [ROW])


@pytest.mark.parametrize(
    "rows",
    [
        [ROW, ROW],
        np.array([ROW, ROW]),
        [np.array(ROW), np.array(ROW)],
        [Vectors.dense(ROW), Vectors.sparse(4, {0: 1.0, 3: 2.0})],
        {"features": [ROW, ROW]},
        [Row(features=ROW), Row(features=ROW)],
        [{"features": ROW}, {"features": ROW}],
        FRAME,
        FRAME.features,
        pd.DataFrame({"features": [Vectors.dense(ROW), Vectors.dense(ROW)]}),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_a_batch_in_any_form(rows):
    np.testing.assert_array_equal(given(rows, FOUR)["x"], [ROW, ROW])


@pytest.mark.parametrize(
    ("rows", "signature", "error", "text"),
    [
        ([1, 2, 3], FOUR, errors.ShapeError, r"expects float32\(batch, 4\)"),
        ([[1, 2], [3]], FOUR, errors.ShapeError, r"differ in shape.*float32\(batch, 4\)"),
        (["a"] * 4, FOUR, errors.ShapeError, r"holds text.*float32\(batch, 4\)"),
        (None, FOUR, errors.ShapeError, "holds NoneType"),
        ({"other": ROW}, FOUR, errors.ColumnNotFoundError, r"\['features'\] are missing. Received: \['other'\]"),
        (ROW, TWO, errors.SignatureError, r"has 2 inputs; pass a dict.*\['left', 'right'\].*list"),
        ({"left": [[1, 2], [3, 4]], "right": 5}, TWO, errors.ShapeError, r"\{'left': 2, 'right': 1\}"),
    ],
)
def test_what_does_not_fit_is_a_typed_error(rows, signature, error, text):
    with pytest.raises(error, match=text):
        given(rows, signature)


@pytest.mark.parametrize(
    ("rows", "signature", "bad"),
    [
        ([ROW, [np.nan, 0.0, 0.0, 1.0]], FOUR, "1 of 2 rows"),
        (np.array([ROW, [np.inf, 0.0, 0.0, 1.0]], "f"), FOUR, "1 of 2 rows"),
        (Vectors.dense([0.0, 0.0, np.nan, 1.0]), FOUR, "1 of 1 rows"),
        (float("nan"), SCALAR, "1 of 1 rows"),
        ([[1.0, 2.0], [np.nan]], RAGGED_NUMBERS, "1 of 2 rows"),
    ],
    ids=["list", "array", "vector", "number", "ragged"],
)
@pytest.mark.parametrize("policy", ["error", "skip"])
def test_nan_and_infinity_are_no_input_unless_they_are_to_be_kept(rows, signature, bad, policy):
    with pytest.raises(errors.NonFiniteValueError, match=f"'features' has NaN or infinity in {bad}.*'keep'"):
        local_inputs(rows, {"features": "x"}, signature, handle_invalid=policy)
