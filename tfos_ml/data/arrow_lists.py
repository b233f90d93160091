"""Arrow's lists: the type of arrays of Spark, nested or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data.schema import Array


def list_lengths(lists: pa.Array) -> Array:
    """The length of each list, 0 for nulls; shape ``(n,)``, int64."""
    return pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def list_array(lengths: Sequence[int] | Array, values: pa.Array, nulls: pa.Array | None = None) -> pa.Array:
    """A list array of lists of given lengths, one after another."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, mask=nulls)


def levels(array: pa.Array) -> list[pa.Array]:
    """A column, and its values at each level of nesting; the last holds no lists."""
    nested = [array]
    while pa.types.is_list(nested[-1].type):
        nested.append(nested[-1].flatten())
    return nested
