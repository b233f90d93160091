"""Scores rows in this process, without Spark: what ``TFModel.predict`` and the model in MLflow do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow import to_storage
from tfos_ml.data.casting import TensorInfo
from tfos_ml.errors import ColumnNotFoundError, ParamError, ShapeError, SignatureError
from tfos_ml.inference import udf
from tfos_ml.inference.input_tensors import InputBinding


def score_rows(scoring: udf.ScoringSpec, rows: Any) -> dict[str, pa.Array]:
    """The columns that ``TFModel.transform`` appends, by name, the prediction first.

    `rows` is what :meth:`tfos_ml.TFModel.predict` takes; raises the errors described there.
    """
    scored = udf.score_here(scoring, local_columns(rows, scoring.inputs))
    arrays = dict(zip(scoring.names, scored.flatten() if len(scoring.names) > 1 else [scored], strict=True))
    return {scoring.names[field]: arrays[field] for field in shown_fields(scoring)}


def shown_fields(scoring: udf.ScoringSpec) -> list[str]:
    """The fields of a result in the order of the returned columns, the prediction first."""
    return sorted(scoring.names, key=lambda field: field != udf.PREDICTION)


def local_columns(rows: Any, inputs: Sequence[InputBinding]) -> list[pa.Array]:
    """The rows as Arrow columns, one for each input."""
    found = _by_column(rows, inputs)
    columns = [_column(values, b.column, b.tensor) for values, b in zip(found, inputs, strict=True)]
    lengths = {b.column: len(column) for b, column in zip(inputs, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ShapeError(
            f"The inputs have different numbers of rows: {lengths}. Pass the same number of rows for each."
        )
    return columns


def _by_column(rows: Any, inputs: Sequence[InputBinding]) -> list[Any]:
    """The values of each input, found by the name of its column or of its tensor."""
    columns = [binding.column for binding in inputs]
    named = _named(rows)
    if named is None:
        if len(inputs) > 1:
            raise SignatureError(
                f"The model has {len(inputs)} inputs; pass a dict or pandas.DataFrame of columns {columns}. "
                f"Received: {type(rows).__name__}"
            )
        return [rows]
    sources = [next((name for name in (b.column, b.name) if name in named), None) for b in inputs]
    missing = [column for column, source in zip(columns, sources, strict=True) if source is None]
    if missing:
        raise ColumnNotFoundError(f"Columns {missing} are missing. Received: {[str(name) for name in named]}.")
    return [named[source] for source in sources]


def _named(rows: Any) -> Any:
    """A mapping from names to columns; None if the columns have no names."""
    if isinstance(rows, Mapping):
        return rows
    if hasattr(rows, "asDict"):  # a Row of Spark
        return rows.asDict()
    if hasattr(rows, "sparkSession"):
        raise ParamError("predict takes local rows, not a Spark DataFrame. Use transform(df).")
    if hasattr(rows, "columns"):
        return {name: rows[name] for name in rows.columns}
    if isinstance(rows, (list, tuple)) and rows and (isinstance(rows[0], Mapping) or hasattr(rows[0], "asDict")):
        listed = [_named(row) for row in rows]
        return {name: [row[name] for row in listed] for name in listed[0]}
    return None


def _column(values: Any, column: str, tensor: TensorInfo) -> pa.Array:
    """The Arrow column of a batch of rows, or of a single row; several dimensions become nested lists."""
    is_pandas = hasattr(values, "to_numpy")
    values = _dense(values.to_numpy() if is_pandas else values)
    if not isinstance(values, (list, tuple, np.ndarray)):
        values = [values]
    elif _is_one_row(_shape(values), tensor):
        values = values[None] if isinstance(values, np.ndarray) else [values]
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return udf.nested_array(values)
    if not isinstance(values, np.ndarray) or values.dtype == object:
        values = [_dense(value) for value in values]
    first = next((value for value in values if value is not None), None)
    has_nan_as_null = is_pandas and not isinstance(first, (list, tuple, np.ndarray))
    try:
        return to_storage(_array(values, has_nan_as_null))
    except pa.ArrowException as error:
        raise ShapeError(
            f"Column '{column}' cannot be converted to an Arrow array: {error}. It expects {tensor}."
        ) from None


def _dense(value: Any) -> Any:
    return value.toArray() if hasattr(value, "toArray") else value  # vectors of Spark ML


def _array(values: Any, from_pandas: bool) -> pa.Array:
    try:
        return pa.array(values, from_pandas=from_pandas)
    except pa.ArrowException:  # for multidimensional arrays within rows
        return pa.array([_as_lists(value) for value in values], from_pandas=from_pandas)


def _as_lists(value: Any) -> Any:
    value = _dense(value)
    return [_as_lists(item) for item in value] if isinstance(value, (list, tuple, np.ndarray)) else value


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of nested lists or arrays, by their first items."""
    value = _dense(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape
    if not isinstance(value, (list, tuple, np.ndarray)):
        return ()
    return (len(value), *(_shape(value[0]) if len(value) else ()))


def _is_one_row(shape: tuple[int, ...], tensor: TensorInfo) -> bool:
    """Whether values of this shape are a single row of an input rather than a batch of rows."""
    if tensor.shape is None:
        return False
    row = tensor.shape[1:]
    if len(shape) == len(row):
        return all(size in (None, got) for size, got in zip(row, shape, strict=True))
    return len(shape) == 1 and len(row) > 1 and None not in row and shape[0] == int(np.prod([d or 0 for d in row]))


def numpy_of(array: pa.Array) -> np.ndarray[Any, Any]:
    """A result as a NumPy array, whose first dimension is the rows; of objects if rows differ in shape or are null."""
    shape, flat = [len(array)], array
    while pa.types.is_list(flat.type):
        lengths = flat.value_lengths().unique().to_pylist()
        if len(lengths) != 1 or lengths == [None]:
            rows = np.empty(len(array), object)
            rows[:] = array.to_pylist()
            return rows
        shape.append(lengths[0])
        flat = flat.flatten()
    values: np.ndarray[Any, Any] = flat.to_numpy(zero_copy_only=False)
    return values.reshape(shape)
