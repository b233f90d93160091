"""Casts a column's values to a model's input tensor, without loss, and reshapes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfos_ml.data.schema import Array
from tfos_ml.errors import ShapeError


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a model."""

    dtype: str  # TensorFlow's name of it
    shape: tuple[int | None, ...] | None  # the batch first; None where a dimension, or the whole shape, is not known
    ragged: bool = False  # whether it is a ``tf.RaggedTensor``, of shape ``(batch, None)``
    padded: tuple[int | None, ...] | None = None  # lengths to which training padded rows, level by level; None for none

    @property
    def may_vary(self) -> bool:
        """Whether rows of different shapes fit it."""
        return not self.ragged and (self.shape is None or None in self.shape[1:])

    def __str__(self) -> str:
        dims = (
            "?"
            if self.shape is None
            else ", ".join("batch" if i == 0 else str(d or "?") for i, d in enumerate(self.shape))
        )
        return f"{'ragged ' if self.ragged else ''}{self.dtype}({dims})"


def row_shape(ndim: int, tensor: TensorInfo) -> tuple[int | None, ...] | None:
    """The shape that rows of a column with `ndim` levels of arrays need for a tensor.

    Has the length of each level, None for any length; or is None if no such rows fit.

    >>> row_shape(1, TensorInfo("float32", (None, 2, 3)))
    (6,)
    """
    if tensor.shape is None or tensor.ragged:
        return (None,) * ndim
    inner = tensor.shape[1:]
    if len(inner) == ndim:
        return inner
    if ndim > 1 or None in inner:
        return None
    size = math.prod(d or 0 for d in inner)
    if ndim == 1:
        return (size,)
    return () if size == 1 else None


def fit_to_tensor(values: Array, column: str, name: str, tensor: TensorInfo) -> Array:
    """A batch of a column, cast and reshaped for input `name`; ``ShapeError`` if values would change or do not fit."""
    is_text = values.dtype.kind in "OSU"
    if is_text != (tensor.dtype == "string"):
        what = "text" if is_text else str(values.dtype)
        raise ShapeError(f"Column '{column}' holds {what}, but input '{name}' expects {tensor}.")
    if not is_text:
        values = _cast_exactly(values, _numpy_dtype(tensor.dtype), column, name, tensor)
    return _fit_shape(values, column, name, tensor)


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _cast_exactly(values: Array, dtype: np.dtype[Any], column: str, name: str, tensor: TensorInfo) -> Array:
    """Cast where no value changes; float64 and integers are rounded to floats, as Keras rounds them."""
    if values.dtype == dtype:
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
        if (values.dtype == np.float64 or values.dtype.kind in "iu") and dtype.kind in "fV":
            same = np.array_equal(np.isfinite(cast), np.isfinite(values))
        else:
            back = np.array_equal(cast.astype(values.dtype), values, equal_nan=values.dtype.kind == "f")
            same = back and np.array_equal(cast < 0, values < 0)  # a negative number may not wrap round
    if not same:
        raise ShapeError(
            f"Column '{column}' ({values.dtype}) has values that {tensor.dtype} cannot hold; input '{name}' expects "
            f"{tensor}. Cast the column yourself if the loss is meant."
        )
    return cast


def _fit_shape(values: Array, column: str, name: str, tensor: TensorInfo) -> Array:
    """Reshape flat rows to the tensor's fixed dimensions, row-major; scalars to ``(batch, 1)``."""
    expected = tensor.shape
    if expected is None:
        return values
    inner, got = expected[1:], values.shape[1:]
    if len(inner) == len(got) and all(e in (None, g) for e, g in zip(inner, got, strict=True)):
        return values
    if reshapes(got, inner):
        return values.reshape(len(values), *(d or 0 for d in inner))
    raise ShapeError(f"Column '{column}' has rows of shape {got}, but input '{name}' expects {tensor}.")


def reshapes(row: tuple[int | None, ...], inner: tuple[int | None, ...]) -> bool:
    """Whether flat rows of one shape may be reshaped to another."""
    if len(row) > 1 or None in inner or None in row:
        return False
    return int(np.prod([d or 0 for d in row])) == int(np.prod([d or 0 for d in inner]))
