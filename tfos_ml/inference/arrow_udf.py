"""``arrow_udf``, which came with Spark 4.1; before, on top of ``pandas_udf``, without what pandas would lose.

pandas has no nulls among integers, booleans and the elements of arrays, and takes them for NaN among floats. So columns
are sent without nulls, each beside a column that tells where they were, and become Arrow arrays again on arrival.

============================  ==========================================================================
Column                        What is sent
============================  ==========================================================================
numbers, boolean              values, 0 for null; whether there is one
date, timestamp               days, or microseconds, as integers: likewise
string, binary                as it is
array of numbers              elements, 0 for null; whether the array has a null element
array of strings              as it is
nested array                  likewise; an array with a null anywhere becomes ``[[null]]``
vector                        as an array
struct, such as an image      each of its fields; whether there is one
============================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from tfos_ml.data.arrow import list_array
from tfos_ml.errors import ColumnTypeError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import ArrayType, DataType

Function = Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]
_EXACT = 1 << 53  # integers up to it are floats, too


def apply(df: DataFrame, function: Function, result: DataType, inputs: Sequence[Column]) -> Column:
    """The column that a function, which takes an iterator of batches of Arrow arrays, makes of columns of `df`."""
    if hasattr(F, "arrow_udf"):
        column: Column = F.arrow_udf(function, result)(*inputs)
        return column
    types = [field.dataType for field in df.select(*inputs).schema.fields]
    sent = [_sent(column, kind) for column, kind in zip(inputs, types, strict=True)]
    arrived = tuple(arrival for _, arrival in sent)
    return _pandas_udf(_Converted(function, arrived), result)(*(column for columns, _ in sent for column in columns))


def register(spark: SparkSession, name: str, function: Function, result: DataType, integers: Sequence[bool]) -> Any:
    """Register a function for SQL, as ``spark.udf.register`` does; `integers` says which arguments are integers.

    Before Spark 4.1 NaN among floats becomes null, because pandas cannot tell them apart, and integers of 2 ** 53 or
    more beside nulls are an error.
    """
    if hasattr(F, "arrow_udf"):
        return spark.udf.register(name, F.arrow_udf(function, result))
    return spark.udf.register(name, _pandas_udf(_Guessed(function, tuple(integers)), result))


def _pandas_udf(function: Callable[[Iterator[Any]], Iterator[Any]], result: DataType) -> Any:
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    def convert(batches):  # type: ignore[no-untyped-def]
        return function(batches)

    # By which Spark knows the kind of function.
    convert.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    return pandas_udf(convert, result)  # type: ignore[call-overload]


# On the executors


class Arrival(Protocol):
    """What makes an Arrow array of the series that are sent for one column."""

    @property
    def width(self) -> int:
        """How many there are."""

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        """The array."""


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
    """The same of columns whose types only their values tell."""

    function: Function
    integers: tuple[bool, ...]  # whether an argument is one, by argument

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        return map(_to_pandas, self.function(map(self._arrays, batches)))

    def _arrays(self, batch: Any) -> tuple[pa.Array, ...]:
        series = batch if isinstance(batch, tuple) else (batch,)
        return tuple(map(_guessed, series, self.integers))


def _to_pandas(array: pa.Array) -> Any:
    """A series, which holds the array itself where it can; a DataFrame of the fields of a struct."""
    import pandas as pd

    if isinstance(array, pa.StructArray):
        names = [field.name for field in array.type]
        return pd.DataFrame(dict(zip(names, map(_to_pandas, array.flatten()), strict=True)))
    if pa.types.is_list(array.type):  # which Spark converts row by row, and knows None for null
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
    """What was integers and nulls before pandas had it; raises ``ColumnTypeError`` if digits may be lost."""
    missing = np.isnan(values)
    if (np.abs(values[~missing]) >= _EXACT).any():
        raise ColumnTypeError(
            f"Argument '{column}' has integers of 2 ** 53 or more beside nulls, which this Spark hands to SQL "
            "functions as floats. Leave the nulls out (WHERE ... IS NOT NULL), or use model.transform(df)."
        )
    return pa.array(np.where(missing, 0, values).astype("int64"), mask=missing)


@dataclass(frozen=True)
class _Values:
    """Numbers or booleans, and whether there is one."""

    kind: pa.DataType
    width: int = 2

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        values, valid = (one.to_numpy() for one in series)
        return pa.array(values, self.kind, mask=~valid.astype(bool))


@dataclass(frozen=True)
class _Texts:
    """Strings or bytes."""

    kind: pa.DataType
    width: int = 1

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        return pa.array(series[0].to_numpy(), self.kind, from_pandas=True)


@dataclass(frozen=True)
class _Arrays:
    """Arrays of one level; with a second column, whether one has a null element."""

    kind: pa.DataType
    width: int

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        rows, is_text = series[0].to_numpy(), not pa.types.is_primitive(self.kind.value_type)
        missing = np.fromiter((row is None for row in rows), bool, len(rows))
        lengths = np.fromiter((0 if row is None else len(row) for row in rows), np.int64, len(rows))
        present = [row for row in rows if row is not None]
        values = np.concatenate(present) if present else np.empty(0)
        holes = None
        if self.width == 2 and (has_null := series[1].to_numpy().astype(bool)).any():
            holes = np.zeros(len(values), bool)
            holes[(np.cumsum(lengths) - lengths)[has_null]] = True  # one is enough: the row counts as null
        elements = pa.array(values, self.kind.value_type, mask=holes, from_pandas=is_text)
        return list_array(lengths, elements, pa.array(missing) if missing.any() else None)


@dataclass(frozen=True)
class _Nested:
    """Arrays of several levels, and whether one has a null anywhere."""

    kind: pa.DataType
    width: int = 2

    def array(self, series: Sequence[pd.Series[Any]]) -> pa.Array:
        a_null: Any = None
        arrow_type = self.kind
        while pa.types.is_list(arrow_type):
            a_null, arrow_type = [a_null], arrow_type.value_type
        rows = zip(series[0].to_numpy(), series[1].to_numpy(), strict=True)
        return pa.array([a_null if flag else None if row is None else _listed(row) for row, flag in rows], self.kind)


@dataclass(frozen=True)
class _Structs:
    """Fields, and whether there is a struct."""

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
    """Arrays in arrays as lists."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [_listed(item) for item in value]
    return value


# On the driver


def _sent(column: Column, data_type: DataType) -> tuple[list[Column], Arrival]:
    """The columns that are sent for one, and what becomes of them on arrival."""
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
    """Dates and timestamps, in arrays too, as the integers that Arrow has in their place."""
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
    """Whether an array of numbers has a null; without a call for each element, as ``exists`` would make.

    ``array_contains`` is null where the array has a null and not the value, and false where it has neither: one look is
    enough for most rows. Two values that are both found leave it open.
    """
    first, second = (F.array_contains(column, value) for value in _seldom(element))
    looked = F.when(first.isNull() | second.isNull(), F.lit(True)).when(second, F.exists(column, lambda x: x.isNull()))
    rest = F.when(column.isNotNull(), looked.otherwise(F.lit(False))).otherwise(F.lit(False))
    return F.when(F.coalesce(~first, F.lit(False)), F.lit(False)).otherwise(rest)


def _seldom(element: DataType) -> list[Column]:
    """Two values of a type of numbers; the first is found in few arrays, if the type has enough of them."""
    from pyspark.sql.types import BooleanType, ByteType, ShortType

    if isinstance(element, BooleanType):
        return [F.lit(True), F.lit(False)]
    first = -102 if isinstance(element, ByteType) else -12_345 if isinstance(element, ShortType) else -1_234_567_891
    return [F.lit(value).cast(element) for value in (first, 101)]


def _is_whole(column: Column, data_type: ArrayType) -> Column:
    """Whether an array has no null at any level; null for null."""
    from pyspark.sql.types import ArrayType

    inner = data_type.elementType
    if not isinstance(inner, ArrayType):
        return F.forall(column, lambda x: x.isNotNull())
    return F.forall(column, lambda x: x.isNotNull() & F.coalesce(_is_whole(x, inner), F.lit(False)))
