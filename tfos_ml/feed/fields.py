"""Which field of a row a column name means."""

from __future__ import annotations

import json

import pyarrow as pa

from tfos_ml.feed.elements import column_of, is_row_batch
from tfos_ml.feed.rows import FORM_KEY


def field_of(batch: pa.RecordBatch, name: str, position: int) -> pa.Array:
    """A field of the elements of a batch: by name if they have names, else by position.

    Raises
    ------
    ColumnNotFoundError
        If there is no such field.
    """
    has_names = True
    if is_row_batch(batch):
        form = json.loads(batch.schema.metadata[FORM_KEY])
        has_names = form[0] == "fields" and form[1] in ("dict", "row")
    return column_of(batch, name if has_names else position)
