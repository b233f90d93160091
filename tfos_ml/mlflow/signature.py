"""What MLflow calls a model's signature: the columns that go in and come out, with types.

Inputs have the widest type of their kind (double, long), for MLflow refuses to narrow what a
caller has; the model itself casts where no value changes. Arrays are ``Array`` types, one
level a dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from mlflow.models.signature import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array

from tfos_ml import errors
from tfos_ml.casting import TensorInfo

if TYPE_CHECKING:
    import pandas as pd

    from tfos_ml.inference.udf import Scoring

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


def model_signature(scoring: Scoring, example: pd.DataFrame | None = None) -> ModelSignature:
    """The signature of a model.

    Parameters
    ----------
    scoring : Scoring
        How it is called.
    example : pandas.DataFrame, optional
        Rows that go in; they tell text from bytes.
    """
    inputs: list[Any] = [ColSpec(_input_type(b.tensor, b.column, example), b.column) for b in scoring.inputs]
    names = sorted(scoring.names, key=lambda field: field != "prediction")
    outputs: list[Any] = [ColSpec(_output_type(scoring.fields[field]), scoring.names[field]) for field in names]
    return ModelSignature(Schema(inputs), Schema(outputs))


def _input_type(tensor: TensorInfo, column: str, example: pd.DataFrame | None) -> DataType | Array:
    kind: DataType | Array
    if tensor.dtype == "string":
        holds_bytes = example is not None and _first(example[column]) is bytes
        kind = DataType.binary if holds_bytes else DataType.string
    elif tensor.dtype == "bool":
        kind = DataType.boolean
    else:
        kind = DataType.long if "int" in tensor.dtype else DataType.double
    levels = len(tensor.shape or (None,)) - 1
    if example is not None:
        levels = _levels(example[column])
    for _ in range(levels):
        kind = Array(kind)
    return kind


def _first(values: Any) -> type | None:
    """The type of the first element of a column, at any level of nesting."""
    for value in values:
        if isinstance(value, (list, tuple, np.ndarray)):
            inner = _first(value)
            if inner is not None:
                return inner
        elif value is not None:
            return type(value)
    return None


def _levels(values: Any) -> int:
    """How many levels of arrays a column has."""
    level = 0
    value = next((v for v in values if v is not None), None)
    while isinstance(value, (list, tuple, np.ndarray)):
        level, value = level + 1, value[0] if len(value) else None
    return level


def _output_type(kind: pa.DataType) -> DataType | Array:
    if pa.types.is_list(kind):
        return Array(_output_type(kind.value_type))
    return _ARROW_TYPES[kind]


def as_example(given: Any, scoring: Scoring) -> pd.DataFrame | None:
    """An input example as a DataFrame of the model's input columns.

    Raises
    ------
    ColumnNotFoundError
        If a column is missing.
    """
    import pandas as pd

    if given is None:
        return None
    columns = [binding.column for binding in scoring.inputs]
    if isinstance(given, np.ndarray) and len(columns) == 1:
        given = {columns[0]: given}
    known = list(given) if isinstance(given, (Mapping, pd.DataFrame)) else []
    missing = [column for column in columns if column not in known]
    if missing:
        raise errors.ColumnNotFoundError(
            f"input_example lacks the feature columns {missing}. Its columns: {known}; expected a pandas.DataFrame "
            "or a dict of arrays"
        )
    return pd.DataFrame({column: _lists(given[column]) for column in columns})


def _lists(values: Any) -> Any:
    """Arrays as lists, which are JSON."""
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    return [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
