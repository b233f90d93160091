"""Finds the field of a row for a column name."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tfos_ml.common.user_warnings import warn
from tfos_ml.data.arrow_to_rdd import column_of, form_of, is_row_batch
from tfos_ml.data.rdd_to_arrow import VALUE, Form
from tfos_ml.errors import ColumnNotFoundError, UnnamedFieldsWarning

_NAMED = ("dict", "row")


def has_names(batch: pa.RecordBatch) -> bool:
    """Whether the fields of the elements of a batch have names."""
    if not is_row_batch(batch):
        return True
    form = form_of(batch)
    return form[0] == "fields" and form[1] in _NAMED


def field_of(batch: pa.RecordBatch, name: str, position: int) -> pa.Array:
    """A field of the elements of a batch: by name if they have names, else by position; raises as :func:`column_of`."""
    return column_of(batch, name if has_names(batch) else position)


class UnnamedFields:
    """Warns, once for each form of rows, which field is used for which name if rows have no names.

    `mapping` has tensor names by column.
    """

    def __init__(self, mapping: Mapping[str, str]):
        self._columns = list(mapping)
        self._warned_of: set[tuple[str, ...]] = set()

    def check(self, batch: pa.RecordBatch) -> None:
        """Compare the fields of a batch with the mapping, and warn if there are several, so that their order matters.

        Raises ``ColumnNotFoundError`` if there are fewer fields than columns.
        """
        if has_names(batch):
            return
        types = tuple(map(_type_name, _kinds(batch), batch.schema.types))
        if len(types) < len(self._columns):
            raise ColumnNotFoundError(
                f"input_mapping names {len(self._columns)} columns, {self._columns}, but rows of the RDD have "
                f"{len(types)} field{'s' * (len(types) != 1)} ({', '.join(types)}), without names. {self._cure()}"
            )
        if len(types) > 1 and types not in self._warned_of:
            self._warned_of.add(types)
            warn(self._order(types), UnnamedFieldsWarning)

    def _order(self, types: tuple[str, ...]) -> str:
        described = [f"field {i} ({kind}) is {self._meaning(i)}" for i, kind in enumerate(types)]
        by_name = sorted(self._columns)
        theirs = f"TensorFlowOnSpark takes columns in the order of their names, {by_name}. "
        return (
            f"Rows of the RDD have no column names, so input_mapping goes by position: {', '.join(described)}. "
            f"{theirs * (by_name != self._columns)}{self._cure()}"
        )

    def _meaning(self, position: int) -> str:
        return repr(self._columns[position]) if position < len(self._columns) else "not read"

    def _cure(self) -> str:
        fields = ", ".join(f"{column}=..." for column in self._columns)
        return f"Feed a DataFrame, dicts or Row({fields}), whose names decide."


def _kinds(batch: pa.RecordBatch) -> list[Form]:
    form = form_of(batch)
    return list(form[3]) if form[0] == "fields" else [form]


def _type_name(form: Form, type_: pa.DataType) -> str:
    """A key that is the same for all batches of one form, for any length of lists."""
    if form == VALUE:
        return str(type_)
    names = {"numpy": form[1], "ndarray": "array", "fields": form[1]}
    return str(names.get(form[0], form[0]))
