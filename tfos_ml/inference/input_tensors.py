"""Converts a column of an Arrow batch to the tensors of one input of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data.arrow import RowShape, check_extents, list_extents, spec_of, to_numpy, to_storage
from tfos_ml.data.casting import TensorInfo, fit_to_tensor, row_shape
from tfos_ml.data.row_checks import is_finite
from tfos_ml.data.schema import Array, ColumnSpec
from tfos_ml.data.vectors import is_vector, narrowed
from tfos_ml.errors import ShapeError
from tfos_ml.inference import saved_model


@dataclass(frozen=True)
class InputBinding:
    """One column bound to one input tensor."""

    column: str
    name: str
    tensor: TensorInfo


class ModelInput:
    """Casts a column in storage form to an input of the model, without loss, and reshapes it.

    Rows are padded only in dimensions that are None in the model. Raises ``ShapeError`` if the rows do not fit.
    """

    def __init__(self, binding: InputBinding, column: pa.Array, pad_value: float):
        self._name, self._tensor = binding.name, binding.tensor
        self._column, self._pad_value = column, pad_value
        self._spec = spec_of(column.type, binding.name, binding.column)
        self._values: Array | None = None
        if not self._tensor.ragged:
            shape = checked_shape(column, self._spec, self._tensor)
            self._values = self._fitted(to_numpy(column, self._spec, pad_value, shape), self._tensor)
        elif self._spec.ndim != 1:
            raise ShapeError(
                f"Column '{binding.column}' has {self._spec.ndim} levels of arrays, but input '{binding.name}' is "
                f"{self._tensor}; expected one level."
            )

    def tensors(self, start: int, stop: int) -> dict[str, Any]:
        """The tensors of some rows, by name: one, or for a ragged input values and row splits."""
        import tensorflow as tf

        if self._values is not None:
            return {self._name: tf.constant(self._values[start:stop], dtype=self._tensor.dtype)}
        rows = self._column.slice(start, stop - start)
        flat = to_numpy(rows.flatten(), replace(self._spec, ndim=0), self._pad_value)
        splits = np.concatenate([[0], np.cumsum(pc.list_value_length(rows).to_numpy(zero_copy_only=False))])
        values = self._fitted(flat, TensorInfo(self._tensor.dtype, (None,)))
        return {
            self._name: tf.constant(values, dtype=self._tensor.dtype),
            saved_model.row_splits_name(self._name): tf.constant(splits, tf.int64),
        }

    def _fitted(self, values: Array, tensor: TensorInfo) -> Array:
        return fit_to_tensor(values, self._spec.column, self._name, tensor)


def storage_for(column: pa.Array, tensor: TensorInfo) -> pa.Array:
    """A column from Spark in storage form; vectors for a float32 input become float32 before their zeros are added."""
    if is_vector(column.type) and tensor.dtype == "float32":
        narrow = narrowed(column, "float32")
        column = narrow if is_finite(narrow) else column  # a number too large for float32 is an error later
    return to_storage(column)


def checked_shape(column: pa.Array, spec: ColumnSpec, tensor: TensorInfo) -> RowShape | None:
    """The shape to which rows are padded; None for scalars, or if rows of this rank do not fit."""
    shape = row_shape(spec.ndim, tensor)
    if not shape:
        return None
    check_extents(list_extents(column), shape, spec.column, f"input '{spec.name}' expects {tensor}")
    padded = tensor.padded or (None,) * spec.ndim
    return tuple(n if length is None else length for n, length in zip(padded, shape, strict=True))
