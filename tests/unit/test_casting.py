"""What tests of scoring (``test_udf.py``) do not show of casting and reshaping."""

import numpy as np
import pytest

from tfos_ml.data.casting import TensorInfo, fit_to_tensor
from tfos_ml.errors import ShapeError

NAN, INF = float("nan"), float("inf")


def fitted(values, dtype, shape=(None,)):
    return fit_to_tensor(values, "column", "input", TensorInfo(dtype, shape))


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (TensorInfo("float32", (None, 28, None)), "float32(batch, 28, ?)"),
        (TensorInfo("string", (None,)), "string(batch)"),
        (TensorInfo("int64", None), "int64(?)"),
    ],
)
def test_tensor_shows_what_is_known_of_it(tensor, text):
    assert str(tensor) == text


def test_bfloat16_takes_what_it_can_hold():
    found = fitted(np.array([0.5, -2.0, NAN, INF], np.float32), "bfloat16")
    assert found.dtype.name == "bfloat16"
    np.testing.assert_array_equal(found.astype(np.float32), np.array([0.5, -2, NAN, INF], np.float32))
    with pytest.raises(ShapeError):
        fitted(np.array([0.1], np.float32), "bfloat16")


def test_values_of_the_right_kind_and_shape_are_not_copied():
    values = np.ones((3, 2), np.float32)
    assert fitted(values, "float32", (None, 2)) is values
