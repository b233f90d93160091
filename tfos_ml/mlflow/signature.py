"""Makes the MLflow signature of a model: its input and output columns, with types.

Inputs have the type double or long, because MLflow refuses to narrow the values of a caller. The model itself casts
them if no value changes.

MLflow accepts NumPy arrays, and dicts of NumPy arrays, only if all inputs of the signature are tensors of known width.
It then also accepts DataFrames with lists or arrays in columns. So the inputs are tensors if one of them is an array of
numbers, and none has text, nulls, arrays of any length or nested columns. Otherwise arrays have ``Array`` types, one
level for each dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from mlflow.models.signature import ModelSignature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.types.schema import Array

from tfos_ml import errors
from tfos_ml.data.arrow import spec_of, to_storage
from tfos_ml.data.casting import TensorInfo
from tfos_ml.inference.local_scoring import shown_fields

if TYPE_CHECKING:
    import pandas as pd

    from tfos_ml.data.schema import ColumnSpec
    from tfos_ml.inference.input_tensors import InputBinding
    from tfos_ml.inference.udf import ScoringSpec

_ARROW_TYPES = {
    pa.int8(): DataType.integer,
    pa.int16(): DataType.integer,
    pa.int32(): DataType.integer,
    pa.int64(): DataType.long,
    pa.float32(): DataType.float,
    pa.float64(): DataType.double,
    pa.bool_(): DataType.boolean,
    pa.string(): DataType.string,
    pa.binary(): DataType.binary,
}


def model_signature(scoring: ScoringSpec, columns: Mapping[str, ColumnSpec] | None = None) -> ModelSignature:
    """The signature of a model.

    `columns` are the input columns, if they are known. Without them, text and bytes cannot be told apart, nor can
    scalars and arrays of one value.
    """
    known = columns or {}
    inputs: list[Any] = [_tensor_spec(b, known.get(b.column)) for b in scoring.inputs]
    has_arrays = any(spec is not None and len(spec.shape) > 1 for spec in inputs)
    if None in inputs or not has_arrays or scoring.handle_invalid != "error":
        inputs = [ColSpec(_input_type(b.tensor, known.get(b.column)), b.column) for b in scoring.inputs]
    outputs: list[Any] = [
        ColSpec(_output_type(scoring.fields[field]), scoring.names[field]) for field in shown_fields(scoring)
    ]
    return ModelSignature(Schema(inputs), Schema(outputs))


def _tensor_spec(binding: InputBinding, column: ColumnSpec | None) -> TensorSpec | None:
    """An input as a tensor whose first dimension is the batch; None if MLflow would not accept a tensor."""
    tensor = binding.tensor
    row = [] if tensor.shape is None else [size for size in tensor.shape[1:] if size is not None]
    has_width = tensor.shape is not None and len(row) == len(tensor.shape) - 1
    if tensor.dtype == "string" or not has_width or (column is not None and column.ndim > 1):
        return None
    if column is not None:  # the caller passes a flat array or a scalar, which the model reshapes
        row = [math.prod(row)] if column.ndim else []
    dtype = "bool" if tensor.dtype == "bool" else "int64" if "int" in tensor.dtype else "float64"
    return TensorSpec(np.dtype(dtype), (-1, *row), binding.column)


def _input_type(tensor: TensorInfo, column: ColumnSpec | None) -> DataType | Array:
    data_type: DataType | Array
    if tensor.dtype == "string":
        data_type = DataType.binary if column is not None and column.dtype == "binary" else DataType.string
    elif tensor.dtype == "bool":
        data_type = DataType.boolean
    else:
        data_type = DataType.long if "int" in tensor.dtype else DataType.double
    for _ in range(column.ndim if column is not None else len(tensor.shape or (None,)) - 1):
        data_type = Array(data_type)
    return data_type


def columns_of(example: pd.DataFrame) -> dict[str, ColumnSpec]:
    """The specs of the columns of an input example."""
    specs = {}
    for name in example.columns:
        arrow = pa.array(example[name].tolist())
        specs[name] = spec_of(to_storage(arrow).type, name, name)
    return specs


def _output_type(arrow_type: pa.DataType) -> DataType | Array:
    if pa.types.is_list(arrow_type):
        return Array(_output_type(arrow_type.value_type))
    return _ARROW_TYPES[arrow_type]


def as_example(example: Any, scoring: ScoringSpec) -> pd.DataFrame | None:
    """The input example with the input columns of the model; raises ``ColumnNotFoundError`` if one is missing."""
    import pandas as pd

    if example is None:
        return None
    columns = [binding.column for binding in scoring.inputs]
    if isinstance(example, np.ndarray) and len(columns) == 1:
        example = {columns[0]: example}
    known = list(example) if isinstance(example, (Mapping, pd.DataFrame)) else []
    missing = [column for column in columns if column not in known]
    if missing:
        raise errors.ColumnNotFoundError(
            f"input_example lacks the feature columns {missing}. Its columns: {known}. Pass a pandas.DataFrame or a "
            "dict of arrays with all feature columns."
        )
    return pd.DataFrame({column: _lists(example[column]) for column in columns})


def _lists(values: Any) -> Any:
    """Convert arrays to lists, which can be saved as JSON."""
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    return [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
