"""What tests of scoring (``test_udf.py``) do not show of casting and reshaping."""

import numpy as np
import pytest

from tfos_ml.data.casting import TensorInfo, fit_to_tensor, reshapes
from tfos_ml.errors import ShapeError

NAN, INF = float("nan"), float("inf")


def fitted(values, dtype, shape=(None,)):
    return fit_to_tensor(values, "column", "input", TensorInfo(dtype, shape))


@pytest.mark.parametrize(
    ("row", "inner", "may"),
    [
        ((), (), True),
        ((), (1,), True),
        ((), (1, 1), True),
        ((1,), (), True),
        ((6,), (2, 3), True),
        ((4,), (4,), True),
        ((0,), (0,), True),
        ((), (2,), False),
        ((6,), (2, 2), False),
        ((6,), (None, 3), False),
        ((None,), (4,), False),
        ((None,), (None,), False),
        ((2, 3), (6,), False),
        ((2, 3), (3, 2), False),
    ],
)
def test_only_flat_rows_of_as_many_elements_may_be_reshaped(row, inner, may):
    assert reshapes(row, inner) is may


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


def test_float64_is_rounded_to_bfloat16():
    assert float(fitted(np.array([0.1]), "bfloat16")[0]) == pytest.approx(0.1, rel=1e-2)


def test_values_of_the_right_kind_and_shape_are_not_copied():
    values = np.ones((3, 2), np.float32)
    assert fitted(values, "float32", (None, 2)) is values


@pytest.mark.parametrize("source", ["int64", "float32", "bool"])
@pytest.mark.parametrize("target", ["int8", "uint64", "float16", "bool"])
def test_no_rows_are_cast_to_anything(source, target):
    assert fitted(np.zeros(0, source), target, (None, 1)).shape == (0, 1)


@pytest.mark.parametrize("values", [np.array(["a", "b"]), np.array([b"a", b"b"]), np.array(["a", b"b"], object)])
def test_text_of_any_array_is_text(values):
    assert fitted(values, "string", (None, 1)).shape == (2, 1)
    with pytest.raises(ShapeError, match="Column 'column' holds text, but input 'input' expects int32"):
        fitted(values, "int32")
