"""Finds NaN and infinity in the values of a column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data.arrow import leaves
from tfos_ml.data.schema import VECTOR_FIELDS, Array
from tfos_ml.errors import NonFiniteValueError


def is_finite(array: pa.Array) -> bool:
    """Whether a plain column, or one of vectors, has neither NaN nor infinity; nulls do not count.

    Computes the sum of the values first, in one pass and without memory. Only if the sum is not finite, it examines the
    values.
    """
    values = _values(array)
    if values is None:
        return True
    if values.null_count:
        values = values.drop_null()
    numbers = values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(numbers)) or np.isfinite(numbers).all())


def _values(array: pa.Array) -> pa.Array | None:
    """The floating-point numbers of a column, of all levels of nesting; None if it holds none."""
    array = leaves(array)
    if pa.types.is_struct(array.type) and [field.name for field in array.type] == VECTOR_FIELDS:
        array = array.flatten()[-1].flatten()
    return array if pa.types.is_floating(array.type) else None


def rows_not_finite(array: pa.Array) -> Array:
    """Places of the rows of a plain column that hold NaN or infinity, in order; shape ``(n,)``, int64."""
    ends = []
    while pa.types.is_list(array.type):
        ends.append(np.cumsum(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)))
        array = array.flatten()
    if not pa.types.is_floating(array.type):
        return np.zeros(0, dtype=np.int64)
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(~np.isfinite(numbers))
    for end in reversed(ends):
        places = np.searchsorted(end, places, side="right")
    return np.unique(places)


def not_finite_error(array: pa.Array, column: str, rows: Array) -> NonFiniteValueError:
    """The error for some rows of a plain column that hold NaN or infinity."""
    numbers = leaves(array.take(pa.array(rows))).drop_null().to_numpy(zero_copy_only=False)
    nans, infinite = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
    kinds = " and ".join(f"{n} x {kind}" for n, kind in ((nans, "NaN"), (infinite, "infinity")) if n)
    return NonFiniteValueError(
        f"Column '{column}' has {kinds} in {len(rows)} of {len(array)} rows read together, and "
        "handleInvalid='error' allows neither. Fill or drop them (df.na.fill, df.na.drop, pyspark.ml.feature.Imputer), "
        "or set handleInvalid to 'skip' to leave such rows out, or to 'keep' if the model can handle them."
    )
