"""Which list of a feature holds an Arrow column.

=======================================  ============================  ============================================
Column                                   Written as                    Read from
=======================================  ============================  ============================================
int8 ... int64, bool                     Int64List                     Int64List
float                                    FloatList                     FloatList, Int64List
double                                   FloatList, rounded            FloatList, Int64List
decimal                                  BytesList of text             BytesList of text, FloatList, Int64List
string (UTF-8), binary                   BytesList                     BytesList
array of these                           the same, several values      the same
vector                                   as an array of double         as an array of double
array of arrays, in a SequenceExample    FeatureList                   FeatureList
=======================================  ============================  ============================================

A null value has no feature. An empty array has a feature with an empty list.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tfos_ml.data.schema import VECTOR_FIELDS
from tfos_ml.errors import ColumnTypeError

BYTES, FLOAT, INT64 = 0x0A, 0x12, 0x1A
"""Tags of the lists in a Feature."""
LIST_NAMES = {BYTES: "BytesList", FLOAT: "FloatList", INT64: "Int64List"}
EXAMPLE, SEQUENCE, BYTE_ARRAY = "Example", "SequenceExample", "ByteArray"
RECORD_TYPES = (EXAMPLE, SEQUENCE, BYTE_ARRAY)


@dataclass(frozen=True)
class Column:
    """A column of an Arrow schema that is stored in features."""

    name: str
    type: pa.DataType
    element: pa.DataType  # of the innermost values
    ndim: int  # levels of arrays; a vector is one
    is_vector: bool = False

    @property
    def key(self) -> bytes:
        """The name of the feature."""
        return self.name.encode()

    @property
    def lists(self) -> tuple[int, ...]:
        """Tags of the lists that the column can be read from; it is written to the first."""
        arrow_type = self.element
        if pa.types.is_integer(arrow_type) or pa.types.is_boolean(arrow_type):
            return (INT64,)
        if pa.types.is_decimal(arrow_type):
            return BYTES, FLOAT, INT64
        return (FLOAT, INT64) if pa.types.is_floating(arrow_type) else (BYTES,)


def columns_of(schema: pa.Schema, record_type: str) -> list[Column]:
    """The columns of a schema; raises ``ColumnTypeError`` if a record of that type cannot hold one."""
    columns = [_column(field) for field in schema]
    for column, field in zip(columns, schema, strict=True):
        if column is None:
            raise ColumnTypeError(
                f"Column '{field.name}' is {field.type}; expected integers, float, double, decimal, boolean, string, "
                "binary, arrays of these, or vectors. Cast or drop it."
            )
        if column.ndim > 1 and record_type != SEQUENCE:
            raise ColumnTypeError(
                f"Column '{column.name}' is an array of arrays ({field.type}), which an Example cannot hold. Set "
                "option recordType to 'SequenceExample', or flatten the column (pyspark.sql.functions.flatten)."
            )
    if record_type == BYTE_ARRAY and [field.type for field in schema] not in ([pa.binary()], [pa.large_binary()]):
        raise ColumnTypeError(
            f"Option recordType='{BYTE_ARRAY}' needs exactly one column, of type binary; got: "
            f"{', '.join(schema.names)}."
        )
    return [column for column in columns if column is not None]


def _column(field: pa.Field) -> Column | None:
    element, ndim = field.type, 0
    if pa.types.is_struct(element) and [part.name for part in element] == VECTOR_FIELDS:
        return Column(field.name, element, pa.float64(), 1, is_vector=True)
    while _is_list(element):
        element, ndim = element.value_type, ndim + 1
    known = (
        pa.types.is_signed_integer(element)
        or pa.types.is_boolean(element)
        or pa.types.is_float32(element)
        or pa.types.is_float64(element)
        or pa.types.is_decimal(element)
        or is_text(element)
    )
    return Column(field.name, field.type, element, ndim) if known and ndim <= 2 else None


def is_text(arrow_type: pa.DataType) -> bool:
    """Whether a type is text or bytes."""
    return arrow_type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_list(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type))
