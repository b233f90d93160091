"""``arrow_udf`` of Spark 4.1; for older Sparks, a replacement on top of ``pandas_udf`` that keeps nulls.

pandas has no nulls among integers, booleans and elements of arrays, and cannot tell null from NaN among floats. So each
column is sent without nulls, with a second column that says where the nulls are. The executor makes Arrow arrays of
both.

============================  ==========================================================================
Column                        What is sent
============================  ==========================================================================
numbers, boolean              values, 0 for null; whether the value is not null
date, timestamp               days or microseconds as integers; likewise
string, binary                unchanged
array of numbers              elements, 0 for null; whether the array has a null element
array of strings              unchanged
nested array                  unchanged; an array with a null at any level becomes ``[[null]]``
vector                        as an array
struct, such as an image      each of its fields; whether the struct is not null
============================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from tfos_ml.data.arrow_lists import list_array
from tfos_ml.errors import ColumnTypeError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import ArrayType, DataType

Function = Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]
_EXACT = 1 << 53  # floats represent all integers up to this


def apply(df: DataFrame, function: Function, result: DataType, inputs: Sequence[Column]) -> Column:
    """Apply a function to columns of `df`; it takes an iterator of batches of Arrow arrays and returns arrays."""
    if hasattr(F, "arrow_udf"):
        column: Column = F.arrow_udf(function, result)(*inputs)
        return column
    types = [field.dataType for field in df.select(*inputs).schema.fields]
    sent = [_sent(column, data_type) for column, data_type in zip(inputs, types, strict=True)]
    arrived = tuple(arrival for _, arrival in sent)
    return _pandas_udf(_Converted(function, arrived), result)(*(column for columns, _ in sent for column in columns))


def register(spark: SparkSession, name: str, function: Function, result: DataType, integers: Sequence[bool]) -> Any:
    """Register a function for SQL, as ``spark.udf.register`` does; `integers` says which arguments are integers.

    Before Spark 4.1, NaN among floats becomes null, because pandas cannot tell them apart; and integers of 2 ** 53 or
    more in a column with nulls are an error.
    """
    if hasattr(F, "arrow_udf"):
        return spark.udf.register(name, F.arrow_udf(function, result))
    return spark.udf.register(name, _pandas_udf(_Guessed(function, tuple(integers)), result))


def _pandas_udf(function: Callable[[Iterator[Any]], Iterator[Any]], result: DataType) -> Any:
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    def convert(batches):  # type: ignore[no-untyped-def]
        return function(batches)

    # Spark determines the kind of function from the annotations.
    convert.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    return pandas_udf(convert, result)  # type: ignore[call-overload]


# On the executors


class Arrival(Protocol):
    """Makes an Arrow array from the pandas series that are sent for one column."""

    @property
    def width(self) -> int:
        """The number of series."""

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        """The Arrow array."""


@dataclass(frozen=True)
class _Converted:
    function: Function
    arrivals: tuple[Arrival, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        return map(_to_pandas, self.function(map(self._arrays, batches)))

    def _arrays(self, batch: Any) -> tuple[pa.Array, ...]:
        series = iter(batch if isinstance(batch, tuple) else (batch,))
        return tuple(arrival.array([next(series) for _ in range(arrival.width)]) for arrival in self.arrivals)


@dataclass(frozen=True)
class _Guessed:
    """Wraps a function for SQL, whose columns have types that only their values show."""

    function: Function
    integers: tuple[bool, ...]  # whether each argument is an integer

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        return map(_to_pandas, self.function(map(self._arrays, batches)))

    def _arrays(self, batch: Any) -> tuple[pa.Array, ...]:
        series = batch if isinstance(batch, tuple) else (batch,)
        return tuple(map(_guessed, series, self.integers))


def _to_pandas(array: pa.Array) -> Any:
    """A series, without a copy of the array where possible; for a struct, a DataFrame of its fields."""
    import pandas as pd

    if isinstance(array, pa.StructArray):
        names = [field.name for field in array.type]
        return pd.DataFrame(dict(zip(names, map(_to_pandas, array.flatten()), strict=True)))
    if pa.types.is_list(array.type):  # Spark converts lists row by row and takes None for null
        return array.to_pandas()
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([array])))


def _guessed(series: Any, is_integer: bool) -> pa.Array:
    if hasattr(series, "columns"):
        return pa.StructArray.from_arrays([_guessed(series[name], is_integer) for name in series], list(series))
    values = series.to_numpy()
    if is_integer and values.dtype.kind == "f":
        return _integers(values, str(series.name))
    if values.dtype == object:
        values = [_listed(value) if isinstance(value, np.ndarray) else value for value in values]
    return pa.array(values, from_pandas=True)


def _integers(values: np.ndarray[Any, Any], column: str) -> pa.Array:
    """Restore integers and nulls from floats and NaN; raises ``ColumnTypeError`` if digits may be lost."""
    missing = np.isnan(values)
    if (np.abs(values[~missing]) >= _EXACT).any():
        raise ColumnTypeError(
            f"Argument '{column}' has nulls and integers of 2 ** 53 or more, which this Spark passes to SQL functions "
            "as floats. Filter the nulls out (WHERE ... IS NOT NULL), or use model.transform(df)."
        )
    return pa.array(np.where(missing, 0, values).astype("int64"), mask=missing)


@dataclass(frozen=True)
class _Values:
    """Numbers or booleans, and a mask of values that are not null."""

    arrow_type: pa.DataType
    width: int = 2

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        values, valid = (one.to_numpy() for one in series)
        return pa.array(values, self.arrow_type, mask=~valid.astype(bool))


@dataclass(frozen=True)
class _Texts:
    """Strings or bytes."""

    arrow_type: pa.DataType
    width: int = 1

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        return pa.array(series[0].to_numpy(), self.arrow_type, from_pandas=True)


@dataclass(frozen=True)
class _Arrays:
    """Arrays of one level; if `width` is 2, also whether an array has a null element."""

    arrow_type: pa.DataType
    width: int

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        rows, is_text = series[0].to_numpy(), not pa.types.is_primitive(self.arrow_type.value_type)
        missing = np.fromiter((row is None for row in rows), bool, len(rows))
        lengths = np.fromiter((0 if row is None else len(row) for row in rows), np.int64, len(rows))
        present = [row for row in rows if row is not None]
        values = np.concatenate(present) if present else np.empty(0)
        holes = None
        if self.width == 2 and (has_null := series[1].to_numpy().astype(bool)).any():
            holes = np.zeros(len(values), bool)
            holes[(np.cumsum(lengths) - lengths)[has_null]] = (
                True  # one is enough, because a null element makes the row invalid
            )
        elements = pa.array(values, self.arrow_type.value_type, mask=holes, from_pandas=is_text)
        return list_array(lengths, elements, pa.array(missing) if missing.any() else None)


@dataclass(frozen=True)
class _Nested:
    """Arrays of several levels, and whether an array has a null at any level."""

    arrow_type: pa.DataType
    width: int = 2

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        a_null: Any = None
        arrow_type = self.arrow_type
        while pa.types.is_list(arrow_type):
            a_null, arrow_type = [a_null], arrow_type.value_type
        rows = zip(series[0].to_numpy(), series[1].to_numpy(), strict=True)
        return pa.array(
            [a_null if flag else None if row is None else _listed(row) for row, flag in rows], self.arrow_type
        )


@dataclass(frozen=True)
class _Structs:
    """A mask of structs that are not null, and the fields."""

    names: tuple[str, ...]
    fields: tuple[Arrival, ...]

    @property
    def width(self) -> int:
        return 1 + sum(field.width for field in self.fields)

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        valid, *rest = series
        parts = iter(rest)
        arrays = [field.array([next(parts) for _ in range(field.width)]) for field in self.fields]
        return pa.StructArray.from_arrays(arrays, list(self.names), mask=pa.array(~valid.to_numpy().astype(bool)))


def _listed(value: Any) -> Any:
    """Convert nested arrays to lists."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [_listed(item) for item in value]
    return value


# On the driver


def _sent(column: Column, data_type: DataType) -> tuple[list[Column], Arrival]:
    """The columns to send for one column, and how the executor makes an Arrow array from them."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import ArrayType, BinaryType, DoubleType, StringType, StructType

    if isinstance(data_type, VectorUDT):
        column, data_type = F.when(column.isNotNull(), vector_to_array(column)), ArrayType(DoubleType(), False)
    if isinstance(data_type, StructType):
        fields = [_sent(column.getField(field.name), field.dataType) for field in data_type.fields]
        sent = [column.isNotNull(), *(part for parts, _ in fields for part in parts)]
        return sent, _Structs(tuple(data_type.names), tuple(arrival for _, arrival in fields))
    column, data_type = _as_number(column, data_type)
    arrow = to_arrow_type(data_type)
    if isinstance(data_type, StringType | BinaryType):
        return [column], _Texts(arrow)
    if not isinstance(data_type, ArrayType):
        return [F.coalesce(column, F.lit(0).cast(data_type)), column.isNotNull()], _Values(arrow)
    if isinstance(data_type.elementType, ArrayType):
        has_null = ~F.coalesce(_is_whole(column, data_type), F.lit(True))
        return [F.when(~has_null, column), has_null], _Nested(arrow)
    if isinstance(data_type.elementType, StringType | BinaryType) or not data_type.containsNull:
        return [column], _Arrays(arrow, 1)
    has_null = _has_null(column, data_type.elementType)
    zero = F.lit(0).cast(data_type.elementType)
    whole = F.when(has_null, F.transform(column, lambda x: F.coalesce(x, zero))).otherwise(column)
    return [whole, has_null], _Arrays(arrow, 2)


def _as_number(column: Column, data_type: DataType) -> tuple[Column, DataType]:
    """Convert dates and timestamps, also within arrays, to the integers that Arrow stores for them."""
    from pyspark.sql.types import ArrayType, DateType, IntegerType, LongType, TimestampNTZType, TimestampType

    if isinstance(data_type, ArrayType):
        inner = _as_number(F.lit(None), data_type.elementType)[1]
        if inner == data_type.elementType:
            return column, data_type
        of_element = data_type.elementType
        return F.transform(column, lambda x: _as_number(x, of_element)[0]), ArrayType(inner, data_type.containsNull)
    if isinstance(data_type, DateType):
        return F.datediff(column, F.lit("1970-01-01").cast("date")), IntegerType()
    if isinstance(data_type, TimestampType):
        return F.unix_micros(column), LongType()
    if isinstance(data_type, TimestampNTZType):
        return F.unix_micros(F.concat(column.cast("string"), F.lit("Z")).cast("timestamp")), LongType()
    return column, data_type


def _has_null(column: Column, element: DataType) -> Column:
    """Whether an array of numbers has a null; faster than ``exists``, which calls a function for each element.

    ``array_contains`` is null if the array has a null but not the value, and false if it has neither. So one call is
    enough for most rows. ``exists`` is only needed if the array has both of two values.
    """
    first, second = (F.array_contains(column, value) for value in _rare_values(element))
    by_second = F.when(first.isNull() | second.isNull(), F.lit(True)).when(
        second, F.exists(column, lambda x: x.isNull())
    )
    rest = F.when(column.isNotNull(), by_second.otherwise(F.lit(False))).otherwise(F.lit(False))
    return F.when(F.coalesce(~first, F.lit(False)), F.lit(False)).otherwise(rest)


def _rare_values(element: DataType) -> list[Column]:
    """Two values of a numeric type; the first is rare in most data."""
    from pyspark.sql.types import BooleanType, ByteType, ShortType

    if isinstance(element, BooleanType):
        return [F.lit(True), F.lit(False)]
    first = -102 if isinstance(element, ByteType) else -12_345 if isinstance(element, ShortType) else -1_234_567_891
    return [F.lit(value).cast(element) for value in (first, 101)]


def _is_whole(column: Column, data_type: ArrayType) -> Column:
    """Whether an array has no null at any level; null if the array is null."""
    from pyspark.sql.types import ArrayType

    inner = data_type.elementType
    if not isinstance(inner, ArrayType):
        return F.forall(column, lambda x: x.isNotNull())
    return F.forall(column, lambda x: x.isNotNull() & F.coalesce(_is_whole(x, inner), F.lit(False)))
