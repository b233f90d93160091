"""Converts Arrow record batches back to the elements of an RDD, or to one field of them, found by its column name.

This is the inverse of :mod:`tfos_ml.data.rdd_to_arrow`, which documents the types.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.common.user_warnings import warn
from tfos_ml.data.arrow_lists import list_array
from tfos_ml.data.rdd_to_arrow import FORM_KEY, MAX_FIELDS, VALUE, Form, with_nulls
from tfos_ml.data.schema import Array
from tfos_ml.errors import ColumnNotFoundError, ShapeError, UnnamedFieldsWarning


def is_row_batch(batch: pa.RecordBatch) -> bool:
    """Whether :mod:`tfos_ml.data.rdd_to_arrow` made a batch; other batches are rows of a DataFrame."""
    return FORM_KEY in (batch.schema.metadata or {})


def form_of(batch: pa.RecordBatch) -> Form:
    """The form of the elements of a batch; those of a DataFrame are tuples."""
    if is_row_batch(batch):
        form: Form = json.loads(batch.schema.metadata[FORM_KEY])
        return form
    return ["fields", "tuple", batch.schema.names, list(map(_form_of_type, batch.schema.types))]


def _form_of_type(arrow_type: pa.DataType) -> Form:
    return ["list", _form_of_type(arrow_type.value_type)] if pa.types.is_list(arrow_type) else VALUE


def column_of(batch: pa.RecordBatch, key: str | int) -> pa.Array:
    """A field of the elements of a batch; arrays become nested lists, which :mod:`tfos_ml.data.arrow` converts.

    `key` is the name in a dict, a Row or a DataFrame, or the position in a tuple, a list, a Row or a DataFrame. An
    element that is one value is its own field 0.

    Raises ``ColumnNotFoundError`` if the elements have no such field, or several of that name, and ``ShapeError`` if
    the field holds arrays that differ in their number of dimensions.
    """
    form = form_of(batch)
    fields: Form = form if form[0] == "fields" else ["fields", "value", [0], [form]]
    _, how, names, forms = fields
    positions = [i for i, name in enumerate(names) if key == name or (key == i and how != "dict")]
    if len(positions) != 1:
        raise ColumnNotFoundError(
            f"Elements of the RDD have {len(positions) or 'no'} fields {key!r}, expected one. "
            f"Available: {names or 'none'}"
        )
    array: pa.Array = batch.column(positions[0])
    form = forms[positions[0]]
    if form[0] != "ndarray" or form[2] == []:
        return array
    return with_nulls(_nested_lists(array.drop_null(), form[2]), array.is_valid().to_numpy(zero_copy_only=False))


def _nested_lists(arrays: pa.Array, shape: list[int] | None) -> pa.Array:
    """Arrays as lists of lists."""
    items = (arrays if shape else arrays.field("values")).flatten()
    shapes = [shape] * len(arrays) if shape else arrays.field("shape").to_pylist()
    ndims = sorted(set(map(len, shapes)))
    if len(ndims) > 1:
        raise ShapeError(f"Arrays of the RDD have {ndims} dimensions, which make no one tensor. Reshape them first.")
    sizes = np.array(shapes, dtype=np.int64).reshape(len(arrays), -1)
    for level in reversed(range(sizes.shape[1])):
        items = list_array(np.repeat(sizes[:, level], sizes[:, :level].prod(axis=1)), items)
    return items


def has_names(batch: pa.RecordBatch) -> bool:
    """Whether the fields of the elements of a batch have names."""
    if not is_row_batch(batch):
        return True
    form = form_of(batch)
    return form[0] == "fields" and form[1] in ("dict", "row")


def field_of(batch: pa.RecordBatch, name: str, position: int) -> pa.Array:
    """A field of the elements of a batch: by name if they have names, else by position; raises as :func:`column_of`."""
    return column_of(batch, name if has_names(batch) else position)


class UnnamedFields:
    """Warns, once for each form of rows, which field is used for which name if rows have no names.

    `mapping` has tensor names by column.
    """

    def __init__(self, mapping: Mapping[str, str]):
        self._columns = list(mapping)
        self._warned_of: set[tuple[str, ...]] = set()

    def check(self, batch: pa.RecordBatch) -> None:
        """Compare the fields of a batch with the mapping, and warn if there are several, so that their order matters.

        Raises ``ColumnNotFoundError`` if there are fewer fields than columns.
        """
        if has_names(batch):
            return
        types = tuple(map(_type_name, _forms(batch), batch.schema.types))
        if len(types) < len(self._columns):
            raise ColumnNotFoundError(
                f"input_mapping names {len(self._columns)} columns, {self._columns}, but rows of the RDD have "
                f"{len(types)} field{'s' * (len(types) != 1)} ({', '.join(types)}), without names. {self._cure()}"
            )
        if len(types) > 1 and types not in self._warned_of:
            self._warned_of.add(types)
            warn(self._order(types), UnnamedFieldsWarning)

    def _order(self, types: tuple[str, ...]) -> str:
        described = [f"field {i} ({kind}) is {self._meaning(i)}" for i, kind in enumerate(types)]
        by_name = sorted(self._columns)
        theirs = f"TensorFlowOnSpark takes columns in the order of their names, {by_name}. "
        return (
            f"Rows of the RDD have no column names, so input_mapping goes by position: {', '.join(described)}. "
            f"{theirs * (by_name != self._columns)}{self._cure()}"
        )

    def _meaning(self, position: int) -> str:
        return repr(self._columns[position]) if position < len(self._columns) else "not read"

    def _cure(self) -> str:
        fields = ", ".join(f"{column}=..." for column in self._columns)
        return f"Feed a DataFrame, dicts or Row({fields}), whose names decide."


def _forms(batch: pa.RecordBatch) -> list[Form]:
    form = form_of(batch)
    return list(form[3]) if form[0] == "fields" else [form]


def _type_name(form: Form, type_: pa.DataType) -> str:
    """A key that is the same for all batches of one form, for any length of lists."""
    if form == VALUE:
        return str(type_)
    names = {"numpy": form[1], "ndarray": "array", "fields": form[1]}
    return str(names.get(form[0], form[0]))


def to_elements(batch: pa.RecordBatch, lists: bool = False) -> list[Any]:
    """The original elements of a batch or a slice. With `lists`, lists of numbers stay lists, which is slower."""
    form = form_of(batch)
    array = batch.to_struct_array() if form[0] == "fields" else batch.column(0)
    return _decode(array, form, lists) if len(array) else []


def _decode(array: pa.Array, form: Form, lists: bool) -> list[Any]:
    if form == VALUE:
        dense = _dense(array) if _holds_numbers(form, array.type) else None
        return array.to_pylist() if dense is None else dense.tolist()
    if array.null_count:
        known = iter(_decode(array.drop_null(), form, lists))
        return [next(known) if valid else None for valid in array.is_valid().to_pylist()]
    if form[0] == "numpy":
        return list(_from_arrow(array, np.dtype(form[1])))
    if form[0] == "ndarray":
        return _decode_arrays(array, np.dtype(form[1]), form[2])
    return _decode_fields(array, form, lists) if form[0] == "fields" else _decode_lists(array, form, lists)


def _from_arrow(flat: pa.Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "USO":
        return np.array(flat.to_pylist(), dtype)
    numbers = flat.to_numpy(zero_copy_only=False)
    if dtype.kind in "mM":
        numbers = numbers.view(dtype.newbyteorder("="))
    return numbers.astype(dtype, copy=False)


def _decode_arrays(array: pa.Array, dtype: np.dtype[Any], shape: list[int] | None) -> list[Any]:
    if shape is None:
        flat, shapes = array.field("values").flatten(), array.field("shape").to_pylist()
        items = flat.to_pylist() if dtype.kind in "USO" else _from_arrow(flat, dtype)
        bounds = pairwise(np.cumsum([0, *map(math.prod, shapes)]).tolist())
        return [np.asarray(items[a:b], dtype).reshape(shape) for (a, b), shape in zip(bounds, shapes, strict=True)]
    stacked = _from_arrow(array.flatten() if shape else array, dtype).reshape(-1, *shape)
    return list(stacked) if shape else [stacked[i, ...] for i in range(len(stacked))]


def _decode_fields(array: pa.StructArray, form: Form, lists: bool) -> list[Any]:
    _, how, names, forms = form
    columns = [_decode(field, item, lists) for field, item in zip(array.flatten(), forms, strict=False)]
    rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
    if how == "dict":
        return [dict(zip(names, row, strict=True)) for row in rows]
    if how == "row":
        from pyspark.sql import Row

        return list(starmap(Row(*names), rows))
    return list(rows) if how == "tuple" else list(map(list, rows))


def _decode_lists(array: pa.Array, form: Form, lists: bool) -> list[Any]:
    how, item = form
    as_arrays = not lists and _holds_numbers(item, array.type.value_type) and (how == "list" or item == VALUE)
    rows: Any = _dense(array) if as_arrays else None
    if rows is None:
        flat = array.flatten()
        items: Any = _dense(flat) if as_arrays and item == VALUE else None
        items = _decode(flat, item, lists) if items is None else items
        ends = np.cumsum(pc.list_value_length(array).to_numpy()).tolist()
        rows = [items[a:b] for a, b in pairwise([0, *ends])]
    if as_arrays:
        rows = map(_as_array, rows)
    return list(rows) if how == "list" else list(map(_as_tuple, rows))


def _holds_numbers(form: Form, type_: pa.DataType) -> bool:
    if form[0] == "list":
        return _holds_numbers(form[1], type_.value_type)
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)
    return form == VALUE and is_number


def _dense(array: pa.Array) -> Array | None:
    """Numbers as one array, a view except for booleans; None if there are nulls or lists of several lengths."""
    if array.null_count:
        return None
    if not pa.types.is_list(array.type):
        numbers: Array = array.to_numpy(zero_copy_only=False)
        return numbers
    items, lengths = _dense(array.flatten()), pc.list_value_length(array).to_numpy()
    if items is None or not len(lengths) or lengths.min() != lengths.max():
        return None
    return items.reshape(len(array), lengths[0], *items.shape[1:])


def _as_array(row: Any) -> Any:
    """Numbers, or arrays of one shape, as one array."""
    if isinstance(row, np.ndarray) or any(item is None or isinstance(item, list) for item in row):
        return row
    return np.array(row) if len(set(map(np.shape, row))) < 2 else row


def _as_tuple(row: Any) -> Any:
    if isinstance(row, np.ndarray):
        return row if len(row) > MAX_FIELDS else tuple(row.tolist())
    return tuple(row)
