"""Checks each Arrow batch of rows before it goes to a node's TensorFlow process: nulls, NaN, infinity, and labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow import count_nulls, null_error, rows_with_nulls
from tfos_ml.data.arrow_lists import levels, list_lengths
from tfos_ml.data.schema import Array, ColumnSpec, FeedSchema
from tfos_ml.data.vectors import innermost_numbers, is_vector
from tfos_ml.errors import LabelRangeError, NonFiniteValueError


class RowChecks:
    """Finds nulls, NaN, infinity, and labels that a loss cannot take; and the rows to skip because of them."""

    def __init__(self, schema: FeedSchema):
        self._schema = schema
        self._labels = [
            (i, LabelRange(spec))
            for i, spec in enumerate(schema.columns)
            if spec.constraint.classes is not None or spec.constraint.probabilities
        ]

    def rows_to_keep(self, columns: Sequence[pa.Array]) -> pa.BooleanArray | None:
        """Which rows to keep of a batch whose columns are in storage form; None for all.

        Raises ``NullValueError`` for a null unless ``handleInvalid`` is "skip", ``NonFiniteValueError`` for NaN or
        infinity if it is "error", and ``LabelRangeError`` for a label that the model's loss does not take.
        """
        skipped: list[Array] = []
        handle_invalid = self._schema.handle_invalid
        for spec, column in zip(self._schema.columns, columns, strict=True):
            if nulls := count_nulls(column):
                if handle_invalid != "skip":
                    raise null_error(nulls, len(column), spec)
                skipped.append(rows_with_nulls(column))
            if handle_invalid != "keep" and not is_finite(column):
                rows = rows_not_finite(column)
                if handle_invalid == "error":
                    raise not_finite_error(column, spec.column, rows)
                skipped.append(rows)
        kept = None
        if skipped:
            wanted = np.ones(len(columns[0]), dtype=bool)
            wanted[np.concatenate(skipped)] = False
            kept = pa.array(wanted)
        for i, limits in self._labels:
            limits.check(columns[i] if kept is None else columns[i].filter(kept))
        return kept


class LabelRange:
    """The smallest and largest value of a label column so far, and whether the loss can take them."""

    def __init__(self, spec: ColumnSpec):
        self._spec = spec
        self._smallest, self._largest = np.inf, -np.inf
        self._rows = 0

    def check(self, column: pa.Array) -> None:
        """Check the rows of a batch, all of them finite; ``LabelRangeError`` if a value is not allowed."""
        self._rows += len(column)
        column = levels(column)[-1]
        values = (column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column).to_numpy(zero_copy_only=False)
        constraint = self._spec.constraint
        if constraint.ignored is not None:
            values = values[values != constraint.ignored]
        if not len(values):
            return
        self._smallest = min(self._smallest, values.min().item())
        self._largest = max(self._largest, values.max().item())
        limit = 1 if constraint.classes is None else constraint.classes - 1
        if not (self._smallest >= 0 and self._largest <= limit):
            raise LabelRangeError(self._message(limit))
        if constraint.classes is not None and values.dtype.kind == "f":
            odd = values[np.floor(values) != values]
            if len(odd):
                raise LabelRangeError(
                    f"Label column '{self._spec.column}' holds {odd[0]:g}, but {constraint.tensor} and takes class "
                    "indices, which are whole numbers. Index the classes, or compile a loss for numbers."
                )

    def _message(self, limit: int) -> str:
        constraint = self._spec.constraint
        values = f"values from {self._smallest:g} to {self._largest:g} in the first {self._rows:,} rows"
        if constraint.classes is None:
            return (
                f"Label column '{self._spec.column}' has {values}, but {constraint.tensor} and takes labels from 0 to "
                "1. For more than two classes give the last layer as many units as there are classes, and compile "
                "'sparse_categorical_crossentropy'; for labels of -1 and 1, map them to 0 and 1; divide pixels by 255."
            )
        units = f"Give the last layer {self._largest + 1:g} units, one for each class"
        if self._smallest < 0 or (self._smallest > 0 and self._largest == limit + 1):
            units = "Number the classes from 0, for example with pyspark.ml.feature.StringIndexer"
        return (
            f"Label column '{self._spec.column}' has {values}, but {constraint.tensor} and takes class indices from 0 "
            f"to {limit}. {units}."
        )


def is_finite(array: pa.Array) -> bool:
    """Whether a column in storage form, or one of vectors, has neither NaN nor infinity; nulls do not count.

    Computes the sum of the values first, in one pass and without memory. Only if the sum is not finite, it examines the
    values.
    """
    values = innermost_numbers(array)
    if not pa.types.is_floating(values.type):
        return True
    if values.null_count:
        values = values.drop_null()
    numbers = values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(numbers)) or np.isfinite(numbers).all())


def rows_not_finite(array: pa.Array) -> Array:
    """Places of the rows of a column in storage form that hold NaN or infinity, in order; shape ``(n,)``, int64."""
    ends = []
    if is_vector(array.type):
        array = array.flatten()[-1]
    while pa.types.is_list(array.type):
        ends.append(np.cumsum(list_lengths(array)))
        array = array.flatten()
    if not pa.types.is_floating(array.type):
        return np.zeros(0, dtype=np.int64)
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(~np.isfinite(numbers))
    for end in reversed(ends):
        places = np.searchsorted(end, places, side="right")
    return np.unique(places)


def not_finite_error(array: pa.Array, column: str, rows: Array) -> NonFiniteValueError:
    """The error for some rows of a column in storage form that hold NaN or infinity."""
    numbers = innermost_numbers(array.take(pa.array(rows))).drop_null().to_numpy(zero_copy_only=False)
    nans, infinite = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
    kinds = " and ".join(f"{n} x {kind}" for n, kind in ((nans, "NaN"), (infinite, "infinity")) if n)
    return NonFiniteValueError(
        f"Column '{column}' has {kinds} in {len(rows)} of {len(array)} rows read together, and "
        "handleInvalid='error' allows neither. Fill or drop them (df.na.fill, df.na.drop, pyspark.ml.feature.Imputer), "
        "or set handleInvalid to 'skip' to leave such rows out, or to 'keep' if the model can handle them."
    )
