"""Which Arrow column is which list of a feature.

=======================================  ============================  ============================================
Column                                   Written as                    Read from
=======================================  ============================  ============================================
int8 ... int64, bool                     Int64List                     Int64List
float                                    FloatList                     FloatList, Int64List
double                                   FloatList, or BytesList of    FloatList, Int64List, BytesList of eight
                                         eight bytes a value           little-endian bytes a value
decimal                                  BytesList of text             BytesList of text, FloatList, Int64List
string (UTF-8), binary                   BytesList                     BytesList
array of these                           the same, several values      the same
vector                                   as an array of double         as an array of double
array of arrays, in a SequenceExample    FeatureList                   FeatureList
=======================================  ============================  ============================================

A null is a feature that is not there; an empty array one whose list has no value.
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
    """A column of an Arrow schema, as features hold it."""

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
        """The lists that may hold it, as tags; the first is the one that it is written to."""
        kind = self.element
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return (INT64,)
        if pa.types.is_decimal(kind):
            return BYTES, FLOAT, INT64
        if pa.types.is_float64(kind):
            return FLOAT, INT64, BYTES
        return (FLOAT, INT64) if pa.types.is_float32(kind) else (BYTES,)


def columns_of(schema: pa.Schema, record_type: str) -> list[Column]:
    """The columns of a schema; raises ``ColumnTypeError`` if a record of that type cannot hold one."""
    columns = [_column(field) for field in schema]
    for column, field in zip(columns, schema, strict=True):
        if column is None:
            raise ColumnTypeError(
                f"Column '{field.name}' is {field.type}; a TFRecord holds integers, float, double, decimal, boolean, "
                "string, binary, arrays of these, and vectors. Cast it, or leave it out."
            )
        if column.ndim > 1 and record_type != SEQUENCE:
            raise ColumnTypeError(
                f"Column '{column.name}' is an array of arrays ({field.type}), which an Example cannot hold. Set "
                "option recordType to 'SequenceExample', or make it one array (pyspark.sql.functions.flatten)."
            )
    return [column for column in columns if column is not None]


def _column(field: pa.Field) -> Column | None:
    kind, ndim = field.type, 0
    if pa.types.is_struct(kind) and [part.name for part in kind] == VECTOR_FIELDS:
        return Column(field.name, kind, pa.float64(), 1, is_vector=True)
    while _is_list(kind):
        kind, ndim = kind.value_type, ndim + 1
    known = (
        pa.types.is_signed_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_decimal(kind)
        or is_text(kind)
    )
    return Column(field.name, field.type, kind, ndim) if known and ndim <= 2 else None


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text or bytes."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
