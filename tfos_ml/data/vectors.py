"""Vectors of Spark ML, dense or sparse, as ``VectorUDT`` has them in a struct."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow_lists import levels, list_array, list_lengths
from tfos_ml.data.schema import VECTOR_FIELDS, Array


def is_vector(arrow_type: pa.DataType) -> bool:
    """Whether it is the type of vectors."""
    return pa.types.is_struct(arrow_type) and [field.name for field in arrow_type] == VECTOR_FIELDS


def vector_sizes(array: pa.Array) -> Array:
    """The number of elements of each vector, 0 for nulls; shape ``(n,)``, int64."""
    _, sizes, indices, values = array.flatten()
    is_sparse = indices.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_sparse, sizes.fill_null(0).to_numpy(zero_copy_only=False), list_lengths(values)).astype(np.int64)


def vector_lists(array: pa.Array) -> pa.Array:
    """Vectors as lists of their dtype, with the zeros of sparse ones."""
    sizes, (rows, places, numbers) = vector_sizes(array), _elements(array)
    ends = np.cumsum(sizes)
    flat = np.zeros(int(sizes.sum()), numbers.dtype)
    flat[(ends - sizes)[rows] + places] = numbers
    return list_array(sizes, pa.array(flat), array.is_null())


def narrowed(array: pa.Array, dtype: str) -> pa.Array:
    """Vectors, or lists of numbers, as vectors of a dtype; sparse ones stay sparse."""
    arrow_type = pa.list_(pa.type_for_alias(dtype))
    if pa.types.is_list(array.type):
        kinds, others = pa.array(np.ones(len(array), np.int8)), pa.nulls(len(array), pa.int32())
        parts = [kinds, others, pa.nulls(len(array), pa.list_(pa.int32())), array]
    else:
        parts = array.flatten()
    parts[-1] = parts[-1].cast(arrow_type, safe=False)  # as in Java, numbers too large become infinite
    return pa.StructArray.from_arrays(parts, VECTOR_FIELDS, mask=array.is_null())


def dense(array: pa.Array, width: int, wanted: Array | slice = slice(None)) -> Array:
    """Some vectors of an array, all of one size and none of them null, as an array of shape ``(n, width)``."""
    _, _, indices, values = array.flatten()
    if indices.null_count == len(array):
        return values.flatten().to_numpy(zero_copy_only=False).reshape(len(array), width)[wanted]
    chosen = array[wanted] if isinstance(wanted, slice) else array.take(pa.array(wanted))
    rows, places, numbers = _elements(chosen)
    result = np.zeros((len(chosen), width), numbers.dtype)
    places += rows * width
    result.reshape(-1)[places] = numbers
    return result


def innermost_numbers(array: pa.Array) -> pa.Array:
    """The values of a column without lists; of vectors, the numbers that they hold."""
    return levels(array.flatten()[-1] if is_vector(array.type) else array)[-1]


def _elements(array: pa.Array) -> tuple[Array, Array, Array]:
    """Row, place and value of all elements of vectors, but for zeros that sparse ones leave out."""
    _, _, indices, values = array.flatten()
    lengths = list_lengths(values)
    rows = np.repeat(np.arange(len(array)), lengths)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    is_sparse = indices.is_valid().to_numpy(zero_copy_only=False)
    places[is_sparse[rows]] = indices.flatten().to_numpy(zero_copy_only=False)
    return rows, places, values.flatten().to_numpy(zero_copy_only=False)
