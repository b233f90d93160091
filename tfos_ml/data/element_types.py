"""The types that elements of an RDD may have, and the errors for other types."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from decimal import Decimal

import numpy as np
import pyarrow as pa

from tfos_ml.errors import ColumnTypeError

NONE_TYPE = type(None)
_INTS = {int, *(np.dtype(code).type for code in "bhilqBHILQ")}
_LEAVES: list[tuple[set[type], pa.DataType]] = [  # Arrow types by the Python types of items; empty lists are of floats
    (set(), pa.float64()),
    ({bool, np.bool_}, pa.bool_()),
    (_INTS, pa.int64()),
    (_INTS | {float, np.float16, np.float32, np.float64}, pa.float64()),
    ({str, np.str_}, pa.string()),
    ({bytes, bytearray, np.bytes_}, pa.binary()),
]
_SUPPORTED = (
    "Supported: bool, int, float, str, bytes, date, datetime, timedelta, Decimal, NumPy numbers and arrays of numbers "
    "or text, vectors of Spark; lists, tuples, Rows and dicts of these; None."
)
_CASTS = [  # expressions that convert a value ``x`` of a class with an attribute
    ("toArray", "x.toArray()"),
    ("toarray", "x.toarray()"),
    ("to_pydatetime", "x.to_pydatetime()"),
    ("to_numpy", "x.to_numpy()"),
    ("filled", "x.filled()"),
    ("numpy", "x.numpy()"),
    ("__dataclass_fields__", "dataclasses.asdict(x)"),
    ("_member_map_", "x.value"),
    ("__array__", "numpy.asarray(x)"),
    ("numerator", "float(x)"),
    ("imag", "(x.real, x.imag)"),
    ("isdisjoint", "sorted(x)"),
    ("__getitem__", "list(x)"),
    ("isoformat", "str(x)"),
    ("urn", "str(x)"),
]
_SPARK_LINALG = ("pyspark.ml.linalg", "pyspark.mllib.linalg")


class ChangedFormError(ColumnTypeError):
    """Values have no common form; parts of them may have one."""


def family(value_class: type) -> str:
    """The name of the encoder of a type; empty if the type is not supported."""
    if issubclass(value_class, np.number | np.bool_ | np.datetime64):  # timedelta64 is a number
        return "numpy"
    if (
        value_class in (datetime.date, datetime.datetime, datetime.timedelta, Decimal)
        or leaf_type({value_class}) is not None
    ):
        return "value"
    if (value_class.__module__, value_class.__name__) == ("pyspark.sql.types", "Row"):
        return "row"
    if value_class.__module__ in _SPARK_LINALG and hasattr(value_class, "toArray"):
        return "vector"
    if issubclass(value_class, tuple) and hasattr(value_class, "_fields"):  # a namedtuple
        return "row"
    bases = (tuple, list, dict) if value_class is not np.ndarray else (np.ndarray,)
    return next((base.__name__ for base in bases if issubclass(value_class, base)), "")


def leaf_type(types: set[type]) -> pa.DataType | None:
    """The Arrow type of items of lists, given the types of all items; None if there is no single one."""
    return next((leaf for known, leaf in _LEAVES if types <= known), None)


def _cast_for(value_class: type) -> str | None:
    """An expression that converts a value ``x`` to a supported type; None if unknown."""
    if issubclass(value_class, np.generic):
        return "float(x)"
    known = next((cast for attribute, cast in _CASTS if hasattr(value_class, attribute)), None)
    return known or ("vars(x)" if getattr(value_class, "__dictoffset__", 0) else None)


def unsupported(where: str, types: Iterable[type], reason: object = "a mixture, or not supported") -> str:
    """The message of an error for values that cannot be encoded."""
    unknown = [t for t in types if not family(t)]
    names = sorted(t.__name__ if t.__module__ == "builtins" else f"{t.__module__}.{t.__name__}" for t in types)
    casts = sorted({cast for t in unknown if (cast := _cast_for(t))})
    cast = f"{casts[0]} in place of x = {where}" if len(casts) == 1 else "a tuple, dict or NumPy array of its content"
    cast = cast if unknown else "one type for all rows, as float(x) or str(x)"
    return (
        f"{where} of the RDD holds {' and '.join(names)}, which cannot be a column: {reason}. {_SUPPORTED} Convert it "
        f"first, with rdd.map(): {cast}."
    )
