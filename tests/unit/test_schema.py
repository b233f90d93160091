import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as t

from tfos_ml.data.arrow import (
    concat_padded,
    count_nulls,
    fixed_shape,
    list_extents,
    to_numpy,
)
from tfos_ml.data.schema import ColumnSpec, column_spec
from tfos_ml.errors import ColumnTypeError

NUMBERS = ["int8", "int16", "int32", "int64", "float32", "float64"]
ARROW = {**{name: getattr(pa, name)() for name in NUMBERS}, "bool": pa.bool_(), "string": pa.string()}
ARROW["binary"] = pa.binary()
SAMPLES = {
    **{name: [1, -2, 3] for name in NUMBERS},
    "bool": [True, False, True],
    "string": ["", "grüße 🎉", "a\0b"],
    "binary": [b"", b"\0\xff\0", b"ab\0"],
}


def spec(dtype="float64", ndim=0):
    return ColumnSpec("t", "c", "feature", dtype, ndim)


def lists(values, dtype, ndim):
    kind = ARROW[dtype]
    for _ in range(ndim):
        kind = pa.list_(kind)
    return pa.array(values, kind)


@pytest.mark.parametrize("dtype", SAMPLES)
def test_nested_arrays_gain_a_dimension_a_level_and_ragged_rows_are_padded_to_the_longest(dtype):
    row = SAMPLES[dtype]
    for ndim in (1, 2, 3):
        values = to_numpy(lists([row] * 4, dtype, ndim), spec(dtype, ndim))
        assert values.shape == (4, *[2] * (ndim - 1), 3)
        assert values.tolist() == [row] * 4
        row = [row, row]
    a, b, c = SAMPLES[dtype]
    fill = {"string": "", "binary": b""}.get(dtype, 0)
    values = to_numpy(lists([[a], [], [a, b, c]], dtype, 1), spec(dtype, 1))
    assert values.tolist() == [[a, fill, fill], [fill] * 3, [a, b, c]]
    rows = [[[a, b], [c]], [], [[], [a]]]
    values = to_numpy(lists(rows, dtype, 2), spec(dtype, 2))
    assert values.tolist() == [[[a, b], [c, fill]], [[fill] * 2] * 2, [[fill] * 2, [a, fill]]]
    parts = [to_numpy(lists([row], dtype, 2), spec(dtype, 2)) for row in rows]
    assert concat_padded(parts, spec(dtype, 2)).tolist() == values.tolist()


def test_nulls_are_counted_at_every_level():
    assert count_nulls(lists([1, None, 2, None], "int64", 0)) == 2
    assert count_nulls(lists([[1, None], None, [], [2]], "int64", 1)) == 2
    assert count_nulls(lists([None, [None, [None, 1, None]], [[2], []]], "int64", 2)) == 4


@pytest.mark.parametrize(
    ("ndim", "rows", "extents", "shape"),
    [
        (0, [1, 2], [], ()),
        (1, [[1, 2], [3]], [(1, 2)], (None,)),
        (1, [], [], (None,)),
        (2, [[[1], [2, 3]], [[3], [4]]], [(2, 2), (1, 2)], (2, None)),
        (2, [[], []], [(0, 0)], (0, None)),
    ],
)
def test_extents_tell_which_dimensions_are_fixed(ndim, rows, extents, shape):
    found = list_extents(lists(rows, "int64", ndim))
    assert found == extents
    assert fixed_shape(found, ndim) == shape


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("vectors", ("float64", 2, "plain")),
        ("events.at.day", ("int32", 1, "plain")),
        ("events.vector", ("float64", 2, "plain")),
    ],
)
def test_vectors_in_arrays_and_fields_of_structs_in_arrays(column, expected):
    event = t.StructType().add("vector", VectorUDT())
    event.add("at", t.StructType().add("day", t.DateType()))
    schema = t.StructType().add("vectors", t.ArrayType(VectorUDT()))
    found = column_spec(schema.add("events", t.ArrayType(event)), column, "x", "feature")
    assert (found.dtype, found.ndim, found.kind) == expected


@pytest.mark.parametrize("spark_type", [t.MapType(t.StringType(), t.LongType()), t.DayTimeIntervalType()])
def test_type_that_no_tensor_holds_is_refused_by_name(spark_type):
    schema = t.StructType([t.StructField("odd", spark_type)])
    with pytest.raises(ColumnTypeError) as caught:
        column_spec(schema, "odd", "x", "feature")
    assert str(caught.value).startswith(f"Column 'odd' has type {spark_type.simpleString()}")
    assert "Supported: numbers" in str(caught.value)
