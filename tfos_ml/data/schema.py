"""The one conversion table: Spark column -> Arrow array -> NumPy array -> tensor.

==========================  ===========================  ==========================
Spark type                  NumPy dtype of a batch       TensorFlow dtype
==========================  ===========================  ==========================
tinyint ... bigint          int8, int16, int32, int64    the same
float, double               float32, float64             the same
decimal                     float64 (nearest)            float64
boolean                     bool                         bool
date                        int32 (days since 1970)      int32
timestamp (also ntz)        int64 (microseconds since    int64
                            1970, UTC or local time)
string, char, varchar       object of ``str``            string (UTF-8)
binary                      object of ``bytes``          string (the bytes)
array<T>, array<array<T>>   T, one dimension more each   the same
vector (dense and sparse,   float64, one dimension more  float64
of ml and mllib)
image (Spark's schema)      uint8, (height, width,       uint8
                            channels) more, as BGR
==========================  ===========================  ==========================

A field of a struct, or of an array of structs, is named by its path, ``"parent.child"``. Everything else (map, other
structs, interval, ...) is a ``ColumnTypeError``.
A batch of *n* rows of a scalar column has shape ``(n,)``; each level of array adds a
dimension. Rows of different lengths are for dimensions that a model leaves open.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfos_ml.errors import ColumnNotFoundError, ColumnTypeError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

Array = np.ndarray[Any, Any]

ROW_COLUMN = "row"
CASE_SENSITIVE = "spark.sql.caseSensitive"
_SPARK_SCALARS = {
    "ByteType": "int8",
    "ShortType": "int16",
    "IntegerType": "int32",
    "LongType": "int64",
    "FloatType": "float32",
    "DoubleType": "float64",
    "DecimalType": "float64",
    "BooleanType": "bool",
    "StringType": "string",
    "CharType": "string",
    "VarcharType": "string",
    "BinaryType": "binary",
    "DateType": "int32",
    "TimestampType": "int64",
    "TimestampNTZType": "int64",
}
_SUPPORTED = (
    "numbers, boolean, string, binary, date, timestamp, vectors, arrays of these (nested too), images, and fields of "
    "structs, or of arrays of structs, by dotted name"
)
PLAIN, VECTOR, IMAGE = "plain", "vector", "image"
WIDE_VECTOR = 8192  # numbers; vectors of more are kept as Spark has them, sparse or dense, until a batch is made
VECTOR_FIELDS = ["type", "size", "indices", "values"]
IMAGE_FIELDS = ["origin", "height", "width", "nChannels", "mode", "data"]


@dataclass(frozen=True)
class ColumnConstraint:
    """Constraints of a model on the rows of a column."""

    tensor: str = ""  # the input or output it belongs to, for messages
    shape: tuple[int | None, ...] | None = None  # length of each level of arrays, None for any; None alone: not known
    classes: int | None = None  # number of classes, if values are class indices: integers from 0 to ``classes - 1``
    ignored: int | None = None  # a further value that stands for no class
    probabilities: bool = False  # whether values must lie between 0 and 1


@dataclass(frozen=True)
class ColumnSpec:
    """How one Spark column becomes a tensor."""

    name: str  # of the tensor
    column: str  # the Spark column, or the dotted path of a struct's field
    role: str  # "feature", "label" or "weight"
    dtype: str  # NumPy dtype of the elements, or "string" or "binary"
    ndim: int  # levels of array nesting: 0 for a scalar column
    kind: str = PLAIN  # ``VECTOR`` of ``pyspark.ml``, ``IMAGE`` of Spark's image schema, or ``PLAIN``
    constraint: ColumnConstraint = ColumnConstraint()

    @property
    def is_vector(self) -> bool:
        return self.kind == VECTOR

    @property
    def width(self) -> int:
        """The number of elements that a model takes in each row; 0 if it is not known, or takes any number."""
        shape = self.constraint.shape or (None,)
        return (len(shape) == 1 and shape[0]) or 0

    @property
    def is_wide(self) -> bool:
        """Whether these are feature vectors of more than ``WIDE_VECTOR`` numbers."""
        return self.is_vector and self.role == "feature" and self.width > WIDE_VECTOR

    @property
    def is_text(self) -> bool:
        """Whether the elements are Python ``str`` or ``bytes`` objects."""
        return self.dtype in ("string", "binary")


@dataclass(frozen=True)
class FeedSchema:
    """The columns that go to the nodes, in the order features, labels, weight."""

    columns: tuple[ColumnSpec, ...]
    named_features: bool = False  # whether features are a dict by tensor name rather than a single tensor
    named_labels: bool = False  # the same of labels, as the next of weights
    named_weights: bool = False
    handle_invalid: str = "error"  # or "skip", "keep": what becomes of rows with null, NaN or infinity

    def of(self, role: str) -> list[int]:
        """Positions of the columns of one role."""
        return [i for i, spec in enumerate(self.columns) if spec.role == role]


def column_spec(schema: StructType, column: str, name: str, role: str) -> ColumnSpec:
    """Look up a column in the conversion table.

    Raises ``ColumnNotFoundError`` if the DataFrame has no such column, ``ColumnTypeError`` if no tensor can hold its
    type.
    """
    spark_type, _ = _find(schema, column, role)
    dtype, ndim, kind = _element_type(spark_type, column)
    return ColumnSpec(name, column, role, dtype, ndim, kind)


def _find(schema: StructType, column: str, role: str) -> tuple[DataType, str]:
    """The type of a column, or of a field of a struct or of an array of structs by its path; and the expression."""
    from pyspark.sql.types import ArrayType, StructType

    matches = [f.dataType for f in schema.fields if f.name == column]
    if len(matches) == 1:
        _check_case(schema, column, role)
        return matches[0], quoted(column)
    if len(matches) > 1:
        raise ColumnNotFoundError(
            f"{role.capitalize()} column '{column}' is ambiguous: {len(matches)} columns have that name. "
            f"Rename all but one. Available columns: {schema.names}"
        )
    for field in schema.fields:
        in_array = isinstance(field.dataType, ArrayType)
        struct = field.dataType.elementType if isinstance(field.dataType, ArrayType) else field.dataType
        if isinstance(struct, StructType) and column.startswith(f"{field.name}."):
            field_type, path = _find(struct, column[len(field.name) + 1 :], role)
            return ArrayType(field_type) if in_array else field_type, f"{quoted(field.name)}.{path}"
    close = difflib.get_close_matches(column, schema.names, 1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise ColumnNotFoundError(
        f"{role.capitalize()} column '{column}' does not exist.{hint} Available columns: {schema.names}"
    )


def _check_case(schema: StructType, column: str, role: str) -> None:
    """Raise ``ColumnNotFoundError`` if another name is the same to Spark, which then cannot select the column."""
    from pyspark.sql import SparkSession

    alike = [name for name in schema.names if name.lower() == column.lower()]
    if len(alike) < 2:
        return
    session = SparkSession.getActiveSession()
    if session is not None and session.conf.get(CASE_SENSITIVE, "false") != "true":
        raise ColumnNotFoundError(
            f"{role.capitalize()} column '{column}' is ambiguous: to Spark, {alike} are the same name. Rename all but "
            f"one, or set {CASE_SENSITIVE} to true."
        )


def column_of(df: DataFrame, column: str, role: str) -> Column:
    """A column of `df`, or a field of a struct by its path; raises ``ColumnNotFoundError`` if there is none."""
    return df[_find(df.schema, column, role)[1]]


def quoted(name: str) -> str:
    """A column's name, with any characters, as a Spark expression."""
    return "`" + name.replace("`", "``") + "`"


def _element_type(spark_type: DataType, column: str) -> tuple[str, int, str]:
    from pyspark.sql.types import ArrayType, StructType

    if _is_vector(spark_type):
        return "float64", 1, VECTOR
    if isinstance(spark_type, StructType) and spark_type.names == IMAGE_FIELDS:
        return "uint8", 3, IMAGE
    ndim, element = 0, spark_type
    while isinstance(element, ArrayType):
        ndim, element = ndim + 1, element.elementType
    if _is_vector(element):
        return "float64", ndim + 1, PLAIN
    dtype = _SPARK_SCALARS.get(type(element).__name__)
    if dtype is None:
        raise ColumnTypeError(
            f"Column '{column}' has type {spark_type.simpleString()}, which no tensor can hold. "
            f"Supported: {_SUPPORTED}. Convert the column first, for instance with cast()."
        )
    return dtype, ndim, PLAIN


def _is_vector(spark_type: DataType) -> bool:
    """Whether it is the type of the vectors of ``pyspark.ml`` or of ``pyspark.mllib``."""
    return type(spark_type).__name__ == "VectorUDT"


def spark_column(spec: ColumnSpec, df: DataFrame, vector_dtype: str | None = None) -> Column:
    """The expression that converts a column of `df` to an Arrow type that ``arrow.plain`` reads.

    With `vector_dtype`, vectors become arrays of that dtype in the JVM, unless they are wide.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DecimalType

    element, path = _find(df.schema, spec.column, spec.role)
    if spec.is_vector and vector_dtype and not spec.is_wide:
        return F.when(df[path].isNotNull(), vector_to_array(df[path], vector_dtype))  # which takes no nulls
    while isinstance(element, ArrayType):
        element = element.elementType
    if _is_vector(element) and not spec.is_vector:
        return _vectors_as_arrays(df[path], spec.ndim)
    if isinstance(element, DecimalType):
        return df[path].cast("array<" * spec.ndim + "double" + ">" * spec.ndim)
    return df[path]


def _vectors_as_arrays(column: Column, ndim: int) -> Column:
    """Nested arrays of numbers in place of arrays of vectors; `ndim` counts the vectors, too."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    if ndim == 1:
        return F.when(column.isNotNull(), vector_to_array(column))
    return F.transform(column, lambda x: _vectors_as_arrays(x, ndim - 1))


def no_nulls(df: DataFrame, specs: Iterable[ColumnSpec]) -> Column:
    """Whether a row has no null in any of some columns, at any level of nesting."""
    from pyspark.sql import functions as F

    condition = F.lit(True)
    for spec in specs:
        column = column_of(df, spec.column, spec.role) if spec.kind != PLAIN else spark_column(spec, df)
        condition &= column.isNotNull()
        if spec.ndim and spec.kind == PLAIN:
            condition &= _all_elements(column, spec.ndim)
    return condition


def all_finite(df: DataFrame, specs: Iterable[ColumnSpec]) -> Column:
    """Whether a row has neither NaN nor infinity in any of some columns, at any level of nesting; nulls may be."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    condition = F.lit(True)
    for spec in specs:
        if spec.dtype not in ("float32", "float64"):
            continue
        column = column_of(df, spec.column, spec.role) if spec.is_vector else spark_column(spec, df)
        if spec.is_vector:
            column = F.when(column.isNotNull(), vector_to_array(column))
        condition &= F.coalesce(_finite_elements(column, spec.ndim), F.lit(True))
    return condition


def _finite_elements(column: Column, ndim: int) -> Column:
    from pyspark.sql import functions as F

    if ndim == 0:  # to Spark, NaN is greater than all other numbers
        return F.coalesce(F.abs(column) < F.lit(float("inf")), F.lit(True))
    return F.forall(column, lambda x: F.coalesce(_finite_elements(x, ndim - 1), F.lit(True)))


def _all_elements(column: Column, ndim: int) -> Column:
    """Whether an array has no null at any level."""
    from pyspark.sql import functions as F

    if ndim == 1:
        return F.forall(column, lambda x: x.isNotNull())
    return F.forall(column, lambda x: x.isNotNull() & _all_elements(x, ndim - 1))
