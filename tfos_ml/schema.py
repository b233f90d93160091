"""The one conversion table: Spark column -> Arrow array -> NumPy array -> tensor.

==========================  ===========================  ==========================
Spark type                  NumPy dtype of a batch       TensorFlow dtype
==========================  ===========================  ==========================
tinyint ... bigint          int8, int16, int32, int64    the same
float, double               float32, float64             the same
decimal                     float64 (nearest)            float64
boolean                     bool                         bool
string, char, varchar       object of ``str``            string (UTF-8)
binary                      object of ``bytes``          string (the bytes)
array<T>, array<array<T>>   T, one dimension more each   the same
vector (dense and sparse)   float64, one dimension more  float64
==========================  ===========================  ==========================

Everything else (map, struct, date, timestamp, interval, ...) is a ``ColumnTypeError``.
A batch of *n* rows of a scalar column has shape ``(n,)``; each level of array adds a
dimension. Rows of different lengths are padded to the longest of the batch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.errors import ColumnNotFoundError, ColumnTypeError, NullValueError, ShapeError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

Array = np.ndarray[Any, Any]

ROW_COLUMN = "row"
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
}
_SUPPORTED = "numbers, boolean, string, binary, arrays of these (nested too) and vectors"


@dataclass(frozen=True)
class ColumnSpec:
    """How one Spark column becomes a tensor.

    Attributes
    ----------
    name : str
        Name of the tensor.
    column : str
        Name of the Spark column.
    role : {"feature", "label", "weight"}
        What the column is to the model.
    dtype : str
        NumPy dtype of the elements, or ``"string"`` or ``"binary"``.
    ndim : int
        Levels of array nesting: 0 for a scalar column.
    vector : bool
        Whether the column holds ``pyspark.ml`` vectors.
    """

    name: str
    column: str
    role: str
    dtype: str
    ndim: int
    vector: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the elements are Python ``str`` or ``bytes`` objects."""
        return self.dtype in ("string", "binary")


@dataclass(frozen=True)
class FeedSchema:
    """The columns that go to the nodes, in the order features, labels, weight.

    Attributes
    ----------
    columns : tuple of ColumnSpec
        All columns.
    named_features, named_labels, named_weights : bool
        Whether features (labels, weights) are a dict by tensor name rather than a single tensor.
    """

    columns: tuple[ColumnSpec, ...]
    named_features: bool = False
    named_labels: bool = False
    named_weights: bool = False

    def of(self, role: str) -> list[int]:
        """Positions of the columns of one role."""
        return [i for i, spec in enumerate(self.columns) if spec.role == role]

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form, for :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FeedSchema:
        """The schema that :meth:`to_json` wrote."""
        columns = tuple(ColumnSpec(**c) for c in data["columns"])
        return cls(columns, data["named_features"], data["named_labels"], data["named_weights"])


def column_spec(schema: StructType, column: str, name: str, role: str) -> ColumnSpec:
    """Look a column up in the conversion table.

    Raises
    ------
    ColumnNotFoundError
        If the DataFrame has no such column.
    ColumnTypeError
        If the column has a type that no tensor can hold.
    """
    matches = [f for f in schema.fields if f.name == column]
    if not matches:
        close = difflib.get_close_matches(column, schema.names, 1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise ColumnNotFoundError(
            f"{role.capitalize()} column '{column}' does not exist.{hint} Available columns: {schema.names}"
        )
    if len(matches) > 1:
        raise ColumnNotFoundError(
            f"{role.capitalize()} column '{column}' is ambiguous: {len(matches)} columns have that name. "
            f"Rename all but one. Available columns: {schema.names}"
        )
    dtype, ndim, vector = _element_type(matches[0].dataType, column)
    return ColumnSpec(name, column, role, dtype, ndim, vector)


def _element_type(spark_type: DataType, column: str) -> tuple[str, int, bool]:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import ArrayType

    if isinstance(spark_type, VectorUDT):
        return "float64", 1, True
    ndim, element = 0, spark_type
    while isinstance(element, ArrayType):
        ndim, element = ndim + 1, element.elementType
    dtype = _SPARK_SCALARS.get(type(element).__name__)
    if dtype is None:
        raise ColumnTypeError(
            f"Column '{column}' has type {spark_type.simpleString()}, which no tensor can hold. "
            f"Supported: {_SUPPORTED}. Convert the column first, for instance with cast()."
        )
    return dtype, ndim, False


def spark_column(spec: ColumnSpec, df: DataFrame, vector_dtype: str = "float64") -> Column:
    """The expression that brings a column of `df` into a form Arrow can carry."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql.types import ArrayType, DecimalType

    column = df[f"`{spec.column}`"]
    if spec.vector:
        return vector_to_array(column, vector_dtype)
    element = df.schema[spec.column].dataType
    while isinstance(element, ArrayType):
        element = element.elementType
    if isinstance(element, DecimalType):
        return column.cast("array<" * spec.ndim + "double" + ">" * spec.ndim)
    return column


def no_nulls(df: DataFrame, specs: Iterable[ColumnSpec]) -> Column:
    """Whether a row has no null in any of some columns, at any level of nesting."""
    from pyspark.sql import functions as F

    condition = F.lit(True)
    for spec in specs:
        column = df[f"`{spec.column}`"]
        condition &= column.isNotNull()
        if spec.ndim and not spec.vector:
            condition &= _all_elements(column, spec.ndim)
    return condition


def _all_elements(column: Column, ndim: int) -> Column:
    """Whether an array has no null at any level."""
    from pyspark.sql import functions as F

    if ndim == 1:
        return F.forall(column, lambda x: x.isNotNull())
    return F.forall(column, lambda x: x.isNotNull() & _all_elements(x, ndim - 1))


def count_nulls(array: pa.Array, ndim: int) -> int:
    """Number of nulls in an array, at all levels of nesting."""
    nulls: int = array.null_count
    return nulls + (count_nulls(array.flatten(), ndim - 1) if ndim else 0)


def check_no_nulls(array: pa.Array, spec: ColumnSpec) -> None:
    """Raise ``NullValueError`` if an array holds a null at any level."""
    nulls = count_nulls(array, spec.ndim)
    if nulls:
        raise NullValueError(
            f"Column '{spec.column}' has {nulls} null value(s) among {len(array)} rows read together, and "
            "nullPolicy='error' allows none. Fill or drop them before fit (df.na.fill, df.na.drop), or set "
            "nullPolicy='skip' to leave such rows out."
        )


Extents = list[tuple[int, int]]


def list_extents(array: pa.Array, ndim: int) -> Extents:
    """Shortest and longest length at each level of nesting; ``[]`` for scalars or no rows."""
    extents: Extents = []
    for _ in range(ndim):
        if not len(array):
            break
        bounds = pc.min_max(pc.list_value_length(array))
        extents.append((bounds["min"].as_py(), bounds["max"].as_py()))
        array = array.flatten()
    return extents


def merge_extents(many: Iterable[Extents]) -> Extents:
    """Extents of several arrays taken together."""
    merged: Extents = []
    for extents in many:
        for level, (low, high) in enumerate(extents):
            if level == len(merged):
                merged.append((low, high))
            else:
                merged[level] = (min(low, merged[level][0]), max(high, merged[level][1]))
    return merged


def fixed_shape(extents: Extents, ndim: int) -> tuple[int | None, ...]:
    """Shape of a row: the length of each level, or None where rows differ."""
    shape = [low if low == high else None for low, high in extents]
    return tuple(shape + [None] * (ndim - len(shape)))


def to_numpy(array: pa.Array, spec: ColumnSpec, pad_value: float = 0) -> Array:
    """One Arrow array as one NumPy array, without a copy where the rows have one length.

    Parameters
    ----------
    array : pyarrow.Array
        *n* rows without nulls.
    spec : ColumnSpec
        What the column is.
    pad_value : float, default 0
        Fills rows shorter than the longest; text is padded with the empty string.

    Returns
    -------
    numpy.ndarray
        Shape ``(n,)`` plus one dimension for each level of nesting; dtype as in the table
        at the top of this module.
    """
    return _dense(array, spec.ndim, _fill(spec, pad_value))


def _fill(spec: ColumnSpec, pad_value: float) -> Any:
    if spec.is_text:
        return "" if spec.dtype == "string" else b""
    return pad_value


def _dense(array: pa.Array, ndim: int, fill: Any) -> Array:
    if ndim == 0:
        return array.to_numpy(zero_copy_only=False)
    values = _dense(array.flatten(), ndim - 1, fill)
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    longest = int(lengths.max()) if len(lengths) else 0
    if not len(lengths) or int(lengths.min()) == longest:
        return values.reshape(len(array), longest, *values.shape[1:])
    padded = np.full((len(array), longest, *values.shape[1:]), checked_fill(fill, values.dtype), dtype=values.dtype)
    padded[np.arange(longest) < lengths[:, None]] = values
    return padded


def checked_fill(fill: Any, dtype: np.dtype[Any]) -> Any:
    """The value that fills ragged rows, if the dtype can hold it.

    Raises
    ------
    ShapeError
        Otherwise.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        fits = dtype.kind not in "iu" or np.asarray(fill).astype(dtype) == fill
    if not fits:
        raise ShapeError(f"padValue={fill} cannot fill ragged rows of {dtype}. Set padValue to a number it can hold.")
    return fill


def concat_padded(parts: Sequence[Array], spec: ColumnSpec, pad_value: float = 0) -> Array:
    """Batches of one column joined, each first padded to the longest of them."""
    if len(parts) == 1:
        return parts[0]
    shape = tuple(np.max([p.shape[1:] for p in parts], axis=0)) if spec.ndim else ()
    return np.concatenate([pad_rows(p, shape, spec, pad_value) for p in parts])


def pad_rows(values: Array, shape: tuple[int, ...], spec: ColumnSpec, pad_value: float = 0) -> Array:
    """A batch of one column with its rows padded to a shape."""
    if values.shape[1:] == shape:
        return values
    fill = checked_fill(_fill(spec, pad_value), values.dtype)
    padded = np.full((len(values), *shape), fill, dtype=values.dtype)
    padded[tuple(map(slice, values.shape))] = values
    return padded
