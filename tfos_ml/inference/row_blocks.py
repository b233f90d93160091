"""Groups the rows of an Arrow batch for calls of the model.

Each call gets rows of one shape. No row is padded to the length of another, so the result for a row does not depend on
the other rows. If training padded rows to a fixed length (``TensorInfo.padded``), shorter rows are padded to that
length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow import longest_by_row, spec_of, to_storage
from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import Array
from tfos_ml.data.vectors import is_vector, vector_sizes

_BLOCK_BYTES = 4 << 20  # small rows are scored in blocks of this size, to save overhead


class RowBlocks:
    """The rows of one Arrow batch in blocks; a block has rows for one or more calls of `batch_size` rows.

    Iterate over the blocks once, then call :meth:`in_order` with the results.
    """

    def __init__(self, tensors: Sequence[TensorInfo], columns: list[pa.Array], batch_size: int):
        self._tensors = tensors
        self._columns = list(columns)
        self._batch_size = batch_size
        self._order: Array | None = None

    def __iter__(self) -> Iterator[list[pa.Array]]:
        """The columns of each block."""
        shapes = shapes_of(self._tensors, self._columns)
        if shapes is None:
            size = self._rows_of_a_block()
            for start in range(0, len(self._columns[0]), size):
                yield [column.slice(start, size) for column in self._columns]
            return
        _, group = np.unique(shapes, axis=0, return_inverse=True)
        group = group.reshape(-1)
        self._order = np.argsort(group, kind="stable")
        for rows in np.split(self._order, np.flatnonzero(np.diff(group[self._order])) + 1):
            for start in range(0, len(rows), self._batch_size):
                chosen = pa.array(rows[start : start + self._batch_size])
                yield [column.take(chosen) for column in self._columns]

    def _rows_of_a_block(self) -> int:
        """The number of rows of a block; a multiple of `batch_size`."""
        rows = len(self._columns[0])
        bytes_of_a_call = sum(map(_bytes, self._columns)) * self._batch_size // max(rows, 1)
        return self._batch_size * max(1, _BLOCK_BYTES // max(bytes_of_a_call, 1))

    def in_order(self, results: pa.Array) -> pa.Array:
        """Reorder the concatenated results of all blocks to the order of the rows."""
        return results if self._order is None else results.take(pa.array(np.argsort(self._order)))


def shapes_of(tensors: Sequence[TensorInfo], columns: list[pa.Array]) -> Array | None:
    """The shape of each row, over all inputs that accept different shapes; None if all rows have the same shape.

    Replaces the columns that it reads, but vectors, by plain ones, in place.
    """
    lengths_by_level = []
    for i, tensor in enumerate(tensors):
        if not tensor.may_vary or not _has_shape(columns[i].type):
            continue
        if is_vector(columns[i].type):
            lengths = vector_sizes(columns[i])[:, None]
        else:
            columns[i] = column = to_storage(columns[i])
            lengths = longest_by_row(column, spec_of(column.type, "", "").ndim)
        if tensor.padded is not None and len(tensor.padded) == lengths.shape[1]:
            lengths = np.maximum(lengths, [n or 0 for n in tensor.padded])
        lengths_by_level.append(lengths)
    if not lengths_by_level or not len(lengths_by_level[0]):
        return None
    shapes = np.concatenate(lengths_by_level, axis=1)
    return None if (shapes == shapes[0]).all() else shapes


def _bytes(column: pa.Array) -> int:
    """The bytes of a column in storage form, in which vectors have all their zeros."""
    return max(column.nbytes, 8 * int(vector_sizes(column).sum()) if is_vector(column.type) else 0)


def _has_shape(arrow_type: pa.DataType) -> bool:
    return pa.types.is_list(arrow_type) or pa.types.is_struct(arrow_type)
