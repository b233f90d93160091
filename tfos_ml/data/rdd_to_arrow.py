"""Converts elements of an RDD to Arrow record batches, to send them to another process.

The inverse is in :mod:`tfos_ml.data.arrow_to_rdd`.

=====================================  ================================  ===========================
Element, or a field of it              Arrow                             Comes back as
=====================================  ================================  ===========================
bool, int, float, str, bytes, None,    one column                        the same
date, datetime, timedelta, Decimal
NumPy number, datetime64, timedelta64  one column (times as int64)       the same
ndarray of numbers or text             lists of fixed size; if shapes    ndarray of the same dtype
                                       differ, a struct                  and shape
list of numbers, nested lists of them  lists                             int64, float64 or bool
                                                                         ndarray, or list
list of text                           lists                             list
tuple, other list, dict, Row           a column (of a struct) per field  tuple, list, dict, Row
namedtuple                             a column (of a struct) per field  Row with the same fields
tuple of > ``MAX_FIELDS`` numbers      lists                             ndarray, or tuple
vector or matrix of Spark ML           as an ndarray of float64          ndarray
=====================================  ================================  ===========================

Arrays are read-only, and mostly views of the batch. An element that is a list of lists is a list of fields; a list that
contains None stays a list. Some values change their type: integers among floats become floats, booleans among more than
``MAX_FIELDS`` numbers become numbers, NumPy numbers in lists or among Python numbers become Python numbers,
``bytearray`` becomes ``bytes``, and other subclasses of tuple, list and dict become their base class.

Other types, dicts with other keys than text, and values of several types in one field are errors, which say how to
convert them. The schema's metadata describes the form of all its rows in JSON, so batches of one schema can be cut and
joined.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
from array import array as packed
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow_lists import list_array
from tfos_ml.data.schema import Array
from tfos_ml.errors import ColumnTypeError

FORM_KEY = b"tfos_ml.form"
FIRST_ROWS = 64
MAX_FIELDS = 64  # a longer tuple of numbers is one column

Form = list[Any]  # the form of an array, from the table above, with the forms of its items or fields
Encoded = tuple[pa.Array, Form]
VALUE: Form = ["value"]
_ELEMENT = "element"  # the place of whole elements; those of their fields begin so
_NONE_TYPE = type(None)
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


def to_batches(elements: Iterable[Any], target_bytes: int = 4 << 20, max_rows: int = 8192) -> Iterator[pa.RecordBatch]:
    """Batch elements of any forms, read lazily, in order; a new batch begins where the form changes.

    Batches have about `target_bytes`; the first one has ``FIRST_ROWS`` rows. Raises ``ColumnTypeError`` if an element
    has a value that cannot be encoded.
    """
    stream, rows = iter(elements), min(FIRST_ROWS, max_rows)
    while held := list(islice(stream, rows)):
        batches = list(_batches(held))
        rows = max(1, min(max_rows, target_bytes * len(held) // max(1, sum(b.nbytes for b in batches))))
        del held
        yield from batches


def _batches(elements: list[Any]) -> Iterator[pa.RecordBatch]:
    """One batch, or several if elements differ in form."""
    try:
        array, form = _encode(elements, _ELEMENT)
    except _ChangedFormError as error:
        if len(elements) == 1:
            raise ColumnTypeError(str(error)) from None
        middle = len(elements) // 2
        yield from _batches(elements[:middle])
        yield from _batches(elements[middle:])
        return
    struct = array if form[0] == "fields" else pa.StructArray.from_arrays([array], ["value"])
    yield pa.RecordBatch.from_struct_array(struct).replace_schema_metadata({FORM_KEY: json.dumps(form)})


def _encode(values: list[Any], where: str) -> Encoded:
    """The values at a place as one array."""
    types = set(map(type, values))
    known = types - {_NONE_TYPE}
    families = set(map(_family, known))
    if families <= {"value"} or (families <= {"value", "numpy"} and len(known) > 1):
        return _scalars(values, known, where), VALUE
    if len(families) > 1 or families == {""}:
        raise (ColumnTypeError if "" in families else _ChangedFormError)(_unsupported(where, known))
    if known == types:
        return _ENCODERS[families.pop()](values, where)
    array, form = _encode([v for v in values if v is not None], where)
    if where == _ELEMENT and form[0] == "fields":
        raise _ChangedFormError(_unsupported(where, types))
    return with_nulls(array, np.array([v is not None for v in values])), form


def with_nulls(array: pa.Array, valid: Array) -> pa.Array:
    """Values of an array where `valid`, nulls elsewhere."""
    return array if valid.all() else array.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _item_lists(values: list[Any], where: str) -> Encoded:
    """Lists, and the form of their items."""
    items, form = _encode(list(chain.from_iterable(values)), f"{where}[*]")
    return list_array(list(map(len, values)), items), ["list", form]


def _encode_vectors(values: list[Any], where: str) -> Encoded:
    return _encode_arrays([np.asarray(v.toArray(), np.float64) for v in values], where)


def _scalars(values: list[Any], types: set[type], where: str, arrow_type: pa.DataType | None = None) -> pa.Array:
    arrow_type = arrow_type or _leaf_type(types)
    if arrow_type is None and len(types) > 1:
        raise ColumnTypeError(_unsupported(where, types))
    if types == {datetime.datetime} and len({v.tzinfo is None for v in values if v is not None}) > 1:
        raise ColumnTypeError(_unsupported(where, types, "with and without time zone"))
    try:
        array = pa.array(values, arrow_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ColumnTypeError(_unsupported(where, types, error)) from error
    if isinstance(array, pa.ChunkedArray):
        raise _ChangedFormError(_unsupported(where, types, "more than 2 GiB"))
    return array


def _encode_numbers(values: list[Any], where: str) -> Encoded:
    flat = np.array(values)
    return _numbers(flat, where), ["numpy", flat.dtype.str]


def _numbers(flat: Array, where: str) -> pa.Array:
    """NumPy numbers of shape ``(n,)``, not copied if in native byte order."""
    if flat.dtype.kind not in "biufmM" or flat.dtype.itemsize > 8:
        raise ColumnTypeError(_unsupported(where, [flat.dtype.type], "not supported"))
    native = flat.astype(flat.dtype.newbyteorder("="), copy=False)
    return pa.array(native.view(np.int64) if native.dtype.kind in "mM" else native)


def _encode_arrays(values: list[Array], where: str) -> Encoded:
    dtypes, shape = {v.dtype for v in values}, values[0].shape
    form = ["ndarray", values[0].dtype.str]
    if len(dtypes) > 1:
        if {d.kind for d in dtypes} not in ({"U"}, {"S"}):
            raise _ChangedFormError(_unsupported(where, {d.type for d in dtypes}, "arrays of several dtypes"))
        form[1] = values[0].dtype.kind  # each as wide as it needs
    if values[0].dtype.kind in "USO":
        texts = list(chain.from_iterable(v.reshape(-1).tolist() for v in values))
        items, text_form = _encode(texts, f"{where}[*]")
        if text_form != VALUE:
            raise ColumnTypeError(_unsupported(where, set(map(type, texts)), "not supported in an array"))
    else:
        items = _numbers(np.concatenate([v.reshape(-1) for v in values]), where)
    if 0 in shape or len(dtypes) > 1 or any(v.shape != shape for v in values):
        shapes = pa.array([v.shape for v in values], pa.list_(pa.int64()))
        lists = list_array([v.size for v in values], items)
        return pa.StructArray.from_arrays([lists, shapes], ["values", "shape"]), [*form, None]
    # One level only: Arrow 25 takes and filters garbage from slices of nested lists of fixed size.
    return pa.FixedSizeListArray.from_arrays(items, math.prod(shape)) if shape else items, [*form, list(shape)]


def _encode_tuples(values: list[Any], where: str) -> Encoded:
    lengths = set(map(len, values))
    if len(lengths) == 1 and max(lengths) <= MAX_FIELDS:
        return _encode_fields(values, "tuple", where)
    if where == _ELEMENT and min(lengths) <= MAX_FIELDS:
        raise _ChangedFormError(_unsupported(where, {tuple}, f"lengths {sorted(lengths)}"))
    return _encode_lists(values, where, "tuple")


def _encode_lists(values: list[Any], where: str, how: str = "list") -> Encoded:
    long_lists = _long_lists(values) if len(values[0]) > MAX_FIELDS and type(values[0][0]) in (int, float) else None
    if long_lists is not None:
        return long_lists, [how, VALUE]
    types = set(map(type, chain.from_iterable(values))) - {_NONE_TYPE}
    leaf = _leaf_type(types)
    if leaf is not None:
        return _scalars(values, types, f"{where}[*]", pa.list_(leaf)), [how, VALUE]
    if where != _ELEMENT and len(set(map(_family, types))) == 1:
        with contextlib.suppress(ColumnTypeError):  # if each position has a form of its own
            lists, form = _item_lists(values, where)
            return lists, [how, form[1]]
    if len(set(map(len, values))) > 1 or any(_leaf_type(set(map(type, v)) - {_NONE_TYPE}) is not None for v in values):
        raise _ChangedFormError(_unsupported(f"{where}[*]", types))
    return _encode_fields(values, how, where)


def _long_lists(values: list[Any]) -> pa.Array | None:
    """Long rows of numbers, converted quickly; None if there is anything else."""
    try:
        if type(values[0][0]) is float:
            return pa.array(values, pa.list_(pa.float64()))
        rows = [packed("q", row) for row in values]
    except (pa.ArrowException, TypeError, OverflowError):
        return None
    return list_array(list(map(len, rows)), pa.array(np.frombuffer(b"".join(rows), np.int64)))


def _encode_dicts(values: list[dict[str, Any]], where: str) -> Encoded:
    names = list(values[0])
    if not all(isinstance(name, str) for name in names):
        raise ColumnTypeError(_unsupported(where, {dict}, "its keys are not text"))
    if any(v.keys() != values[0].keys() for v in values):
        raise _ChangedFormError(_unsupported(where, {dict}, "keys differ"))
    return _encode_fields([[v[name] for name in names] for v in values], "dict", where, names)


def _encode_rows(values: list[Any], where: str) -> Encoded:
    # A Row takes 100 microseconds to say that it has no such attribute.
    names = {tuple(getattr(v, "_fields" if hasattr(type(v), "_fields") else "__fields__", ())) for v in values}
    if len(names) > 1:
        raise _ChangedFormError(_unsupported(where, {type(values[0])}, "fields differ"))
    fields = list(names.pop())
    return _encode_fields(values, "row", where, fields) if fields else _encode_tuples(values, where)


def _encode_fields(values: list[Any], how: str, where: str, names: list[str] | None = None) -> Encoded:
    keys: Any = names or range(len(values[0]))
    columns = zip(keys, zip(*values, strict=True), strict=True)
    encoded = [_encode(list(column), f"{where}[{key!r}]") for key, column in columns]
    arrays = [array for array, _ in encoded] or [pa.nulls(len(values))]  # its length is the number of rows
    struct = pa.StructArray.from_arrays(arrays, [str(key) for key in keys] or [""])
    return struct, ["fields", how, list(keys), [form for _, form in encoded]]


_ENCODERS: dict[str, Callable[[list[Any], str], Encoded]] = {
    "numpy": _encode_numbers,
    "ndarray": _encode_arrays,
    "tuple": _encode_tuples,
    "list": _encode_lists,
    "dict": _encode_dicts,
    "row": _encode_rows,
    "vector": _encode_vectors,
}


# The types of values


class _ChangedFormError(ColumnTypeError):
    """Values have no common form; parts of them may have one."""


def _family(value_class: type) -> str:
    """The name of the encoder of a type; empty if the type is not supported."""
    if issubclass(value_class, np.number | np.bool_ | np.datetime64):  # timedelta64 is a number
        return "numpy"
    if (
        value_class in (datetime.date, datetime.datetime, datetime.timedelta, Decimal)
        or _leaf_type({value_class}) is not None
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


def _leaf_type(types: set[type]) -> pa.DataType | None:
    """The Arrow type of items of lists, given the types of all items; None if there is no single one."""
    return next((leaf for known, leaf in _LEAVES if types <= known), None)


def _cast_for(value_class: type) -> str | None:
    """An expression that converts a value ``x`` to a supported type; None if unknown."""
    if issubclass(value_class, np.generic):
        return "float(x)"
    known = next((cast for attribute, cast in _CASTS if hasattr(value_class, attribute)), None)
    return known or ("vars(x)" if getattr(value_class, "__dictoffset__", 0) else None)


def _unsupported(where: str, types: Iterable[type], reason: object = "a mixture, or not supported") -> str:
    """The message of an error for values that cannot be encoded."""
    unknown = [t for t in types if not _family(t)]
    names = sorted(t.__name__ if t.__module__ == "builtins" else f"{t.__module__}.{t.__name__}" for t in types)
    casts = sorted({cast for t in unknown if (cast := _cast_for(t))})
    cast = f"{casts[0]} in place of x = {where}" if len(casts) == 1 else "a tuple, dict or NumPy array of its content"
    cast = cast if unknown else "one type for all rows, as float(x) or str(x)"
    return (
        f"{where} of the RDD holds {' and '.join(names)}, which cannot be a column: {reason}. {_SUPPORTED} Convert it "
        f"first, with rdd.map(): {cast}."
    )
