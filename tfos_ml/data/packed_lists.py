"""Lists of numbers as binary values, as a snapshot stores them: Spark and pyarrow write and read those faster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow_lists import list_array, list_lengths

MAX_BYTES = 1 << 30
"""Of the batches that :func:`slices` yields: Arrow's offsets of binary values end at 2 GiB."""


def pack(array: pa.Array) -> pa.Array:
    """A column of lists of numbers, nested or not, with each innermost list as the bytes of its numbers.

    An innermost list that contains a null becomes null: rows with nulls are never trained on.
    """
    values, lengths = array.flatten(), list_lengths(array)
    if pa.types.is_list(values.type):
        return list_array(lengths, pack(values), array.is_null())
    ends = np.cumsum(lengths)
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    if values.null_count:
        places = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        is_null = is_null.copy()
        is_null[np.searchsorted(ends, places, side="right")] = True
        values = values.fill_null(0)
    numbers = values.to_numpy()
    offsets = (np.concatenate([[0], ends]) * numbers.itemsize).astype(np.int32)
    buffers = [pa.array(~is_null).buffers()[1], pa.py_buffer(offsets), pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)


def unpack(array: pa.Array, dtype: str) -> pa.Array:
    """The lists that :func:`pack` was given, with numbers of a dtype; their memory is that of the packed ones."""
    if pa.types.is_list(array.type):
        return list_array(list_lengths(array), unpack(array.flatten(), dtype), array.is_null())
    number = pa.type_for_alias(dtype)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1] // (number.bit_width // 8)
    values = pa.Array.from_buffers(number, int(ends[-1]), [None, data]) if ends[-1] else pa.array([], number)
    is_valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(pa.list_(number), len(array), [is_valid, pa.py_buffer(ends)], children=[values])


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in batches of at most ``MAX_BYTES``, or of one row."""
    rows = max(1, batch.num_rows * MAX_BYTES // max(1, batch.nbytes))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
