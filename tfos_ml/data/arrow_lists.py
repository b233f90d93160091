"""Arrow's lists: the type of arrays of Spark, nested or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data.schema import Array
from tfos_ml.errors import ShapeError

MOST_VALUES = (1 << 31) - 1


def list_lengths(lists: pa.Array) -> Array:
    """The length of each list, 0 for nulls; shape ``(n,)``, int64."""
    return pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def list_array(lengths: Sequence[int] | Array, values: pa.Array, nulls: pa.Array | None = None) -> pa.Array:
    """A list array of lists of given lengths, one after another; ``ShapeError`` if Arrow cannot hold so many values."""
    ends = np.cumsum(lengths)
    if len(ends) and ends[-1] > MOST_VALUES:
        raise ShapeError(
            f"A batch of {len(ends):,} rows has {ends[-1]:,} numbers in one column, and Arrow takes {MOST_VALUES:,}. "
            "Set a smaller predictBatchSize, or a smaller spark.sql.execution.arrow.maxRecordsPerBatch."
        )
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, mask=nulls)


def levels(array: pa.Array) -> list[pa.Array]:
    """A column, and its values at each level of nesting; the last holds no lists."""
    nested = [array]
    while pa.types.is_list(nested[-1].type):
        nested.append(nested[-1].flatten())
    return nested
