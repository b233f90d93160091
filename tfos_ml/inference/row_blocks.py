"""Which rows of an Arrow batch go through the model together.

Rows of one shape do, and none is padded for the sake of another: what the model makes of a row
then depends on that row alone, whatever rows come with it. Where the model was trained on rows that were padded to one
length (``TensorInfo.padded``), shorter rows are padded to that length here, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow import longest_by_row, plain, spec_of
from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import Array

_BLOCK_BYTES = 4 << 20  # what calls cost besides the model is paid once for so much of small rows


class RowBlocks:
    """Blocks of rows of one Arrow batch, for a call of the model each, or for several, of `batch_size` rows.

    Iterate once, then order the results.
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
        """A multiple of the rows of a call."""
        rows = len(self._columns[0])
        bytes_of_a_call = sum(column.nbytes for column in self._columns) * self._batch_size // max(rows, 1)
        return self._batch_size * max(1, _BLOCK_BYTES // max(bytes_of_a_call, 1))

    def in_order(self, results: pa.Array) -> pa.Array:
        """Results of all blocks, one after another, in the order of the rows."""
        return results if self._order is None else results.take(pa.array(np.argsort(self._order)))


def shapes_of(tensors: Sequence[TensorInfo], columns: list[pa.Array]) -> Array | None:
    """The shape that each row has in the model, over all inputs that take different ones; None if all rows have one.

    Those of the columns that are looked at are made plain in place.
    """
    lengths_by_level = []
    for i, tensor in enumerate(tensors):
        if not tensor.may_vary or not _has_shape(columns[i].type):
            continue
        columns[i] = column = plain(columns[i])
        lengths = longest_by_row(column, spec_of(column.type, "", "").ndim)
        if tensor.padded is not None and len(tensor.padded) == lengths.shape[1]:
            lengths = np.maximum(lengths, [n or 0 for n in tensor.padded])
        lengths_by_level.append(lengths)
    if not lengths_by_level or not len(lengths_by_level[0]):
        return None
    shapes = np.concatenate(lengths_by_level, axis=1)
    return None if (shapes == shapes[0]).all() else shapes


def _has_shape(arrow_type: pa.DataType) -> bool:
    return pa.types.is_list(arrow_type) or pa.types.is_struct(arrow_type)
