"""Which field of a row a column name means."""

from __future__ import annotations

import json

import pyarrow as pa

from tfos_ml.arrays import plain
from tfos_ml.feed import rows


def field_of(batch: pa.RecordBatch, name: str, position: int) -> pa.Array:
    """A field of the elements of a batch: by name if they have names, else by position.

    An element that is a single value is its own field, the first.

    Raises
    ------
    ColumnNotFoundError
        If there is no such field.
    """
    if not rows.is_row_batch(batch):
        return rows.column_of(batch, name)
    form = json.loads(batch.schema.metadata[rows.FORM_KEY])
    if form[0] != "fields" and position == 0:
        return plain(batch.column(0))
    return rows.column_of(batch, name if form[1] in ("dict", "row") else position)
