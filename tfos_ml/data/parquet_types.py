"""Types of columns that are in a Parquet file just as Spark has them, to Spark and to Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tfos_ml.data.schema import VECTOR_FIELDS, ColumnSpec

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_SCALARS = {
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "BooleanType": pa.bool_(),
    "StringType": pa.string(),
    "BinaryType": pa.binary(),
}
_VECTOR = pa.struct(
    list(zip(VECTOR_FIELDS, (pa.int8(), pa.int32(), pa.list_(pa.int32()), pa.list_(pa.float64())), strict=True))
)


def spark_arrow_type(kind: DataType) -> pa.DataType | None:
    """The Arrow type of a Spark type whose values Spark takes from Parquet as they are; None of any other."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import ArrayType

    if isinstance(kind, VectorUDT):
        return _VECTOR
    if isinstance(kind, ArrayType):
        element = spark_arrow_type(kind.elementType)
        return None if element is None or pa.types.is_struct(element) else pa.list_(element)
    return _SCALARS.get(type(kind).__name__)


def same_values(stored: pa.DataType, expected: pa.DataType) -> bool:
    """Whether values of an Arrow type are those of another one, in other containers at most."""
    return _plain(stored).equals(_plain(expected))


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type without names and nullability of elements, dictionaries, and large or fixed-size containers."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) else kind


def fed_type(spec: ColumnSpec) -> pa.DataType:
    """The Arrow type in which Spark would feed a column, for the types of :func:`spark_arrow_type`."""
    kind = pa.type_for_alias(spec.dtype)
    for _ in range(spec.ndim):
        kind = pa.list_(kind)
    return kind
