"""Makes input tensors from the rows that are passed to ``TFModel.predict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import Array
from tfos_ml.errors import ColumnNotFoundError, NonFiniteValueError, ParamError, ShapeError, SignatureError
from tfos_ml.inference.input_tensors import InputBinding, array_tensor, input_tensors
from tfos_ml.inference.row_blocks import shapes_of
from tfos_ml.inference.saved_model import Signature

_LENGTHS = (
    "The rows of '{column}' differ in shape; expected {tensor}. predict() runs the model once for all rows. Call it "
    "for rows of one shape at a time, or use transform, which groups rows by shape."
)


def takes_lists(tensor: TensorInfo) -> bool:
    """Whether a batch of this input is made from lists, because rows may differ in length."""
    return tensor.ragged or tensor.padded is not None


def local_inputs(
    rows: Any, mapping: Mapping[str, str], signature: Signature, pad_value: float = 0.0, handle_invalid: str = "keep"
) -> dict[str, Any]:
    """Convert the rows that :meth:`TFModel.predict` accepts to tensors by name; raises the errors described there.

    `mapping` has the names of the inputs by column. `pad_value` fills rows up to the length to which training padded
    them. No row is left out: NaN and infinity are passed to the model if `handle_invalid` is "keep", and are an error
    otherwise.
    """
    batches = local_batches(rows, mapping, signature)
    if handle_invalid != "keep":
        for column, values in batches.items():
            _check_finite(values, column)
    tensors: dict[str, Any] = {}
    for column, name in mapping.items():
        tensor = signature.inputs[name]
        if takes_lists(tensor):
            lists = pa.array(batches[column])
            if shapes_of([tensor], [lists]) is not None:
                raise ShapeError(_LENGTHS.format(column=column, tensor=tensor))
            tensors.update(input_tensors(InputBinding(column, name, tensor), lists, pad_value))
        else:
            tensors[name] = array_tensor(batches[column], column, name, tensor)
    return tensors


def _check_finite(values: Any, column: str) -> None:
    rows = [np.ravel(_flat(row)) for row in values]
    bad = sum(not np.isfinite(row).all() for row in rows if row.dtype.kind == "f")
    if bad:
        raise NonFiniteValueError(
            f"'{column}' has NaN or infinity in {bad} of {len(rows)} rows, and predict() does not skip rows. Fill or "
            "drop them, or set handleInvalid='keep' if the model can handle them."
        )


def _flat(row: Any) -> Any:
    """All numbers of a row of nested lists, whose lengths may differ."""
    while isinstance(row, list) and row and isinstance(row[0], list):
        row = [value for inner in row for value in inner]
    return row


def local_batches(rows: Any, mapping: Mapping[str, str], signature: Signature) -> dict[str, Any]:
    """The batches of values by column, not cast yet: arrays, or lists if rows may differ in length."""
    columns = _by_column(rows, mapping, signature)
    batches = {column: _batch(columns[column], column, signature.inputs[name]) for column, name in mapping.items()}
    lengths = {column: len(values) for column, values in batches.items()}
    if len(set(lengths.values())) > 1:
        raise ShapeError(
            f"The inputs have different numbers of rows: {lengths}. Pass the same number of rows for each."
        )
    return batches


def _by_column(rows: Any, mapping: Mapping[str, str], signature: Signature) -> Mapping[str, Any]:
    """The values of each column."""
    named = _named(rows)
    if named is None:
        if len(mapping) > 1:
            raise SignatureError(
                f"The model has {len(mapping)} inputs; pass a dict or pandas.DataFrame of columns {list(mapping)}. "
                f"Received: {type(rows).__name__}"
            )
        return {next(iter(mapping)): rows}
    sources = {column: next((c for c in (column, name) if c in named), None) for column, name in mapping.items()}
    missing = [column for column, source in sources.items() if source is None]
    if missing:
        raise ColumnNotFoundError(
            f"Columns {missing} are missing. Received: {[str(name) for name in named]}. The model's signature: "
            f"{signature}"
        )
    return {column: named[source] for column, source in sources.items()}


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


def _batch(values: Any, column: str, tensor: TensorInfo) -> Any:
    """The batch of values of a column: an array, or a list of lists if rows may differ in length."""
    if takes_lists(tensor):
        lists = [_plain(row) for row in values]
        return lists if _depth(lists) > len(tensor.padded or "1") else [lists]
    array = _array(values, column, tensor)
    return array[None] if _is_one_row(array, tensor) else array


def _depth(value: Any) -> int:
    """The number of levels of nested lists."""
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _plain(value: Any) -> Any:
    """Convert vectors and arrays to lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return np.asarray(_dense(value)).tolist()


def _dense(value: Any) -> Any:
    return value.toArray() if hasattr(value, "toArray") else value  # vectors of Spark ML


def _array(values: Any, column: str, tensor: TensorInfo) -> Array:
    values = _dense(values)
    if isinstance(values, (list, tuple)):
        values = [_dense(value) for value in values]
    try:
        array = np.asarray(values)
        if array.dtype == object and array.ndim and not isinstance(array.flat[0], (str, bytes)):
            array = np.stack([np.asarray(_dense(value)) for value in array])
    except ValueError as error:
        if tensor.may_vary:
            raise ShapeError(_LENGTHS.format(column=column, tensor=tensor)) from None
        raise ShapeError(f"The rows of '{column}' differ in shape ({error}); expected {tensor}.") from None
    if array.dtype == object and not all(isinstance(value, (str, bytes)) for value in array.flat):
        raise ShapeError(
            f"'{column}' holds {type(array.flat[0]).__name__}; expected {tensor}: arrays, lists or vectors."
        )
    return array


def _is_one_row(array: Array, tensor: TensorInfo) -> bool:
    """Whether an array is a single row of an input rather than a batch of rows."""
    if array.ndim == 0:
        return True
    if tensor.shape is None:
        return False
    row = tensor.shape[1:]
    if array.ndim == len(row):
        return all(size in (None, got) for size, got in zip(row, array.shape, strict=True))
    return array.ndim == 1 and len(row) > 1 and None not in row and array.size == int(np.prod([d or 0 for d in row]))
