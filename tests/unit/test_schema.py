import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as t

from tfos_ml.data.arrow import concat_padded, count_nulls, fixed_shape, list_extents, to_numpy
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


@pytest.mark.parametrize("dtype", ["int8", "float64", "bool", "string", "binary"])
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


def test_extents_tell_which_dimensions_are_fixed():
    for ndim, rows, extents, shape in (
        (0, [1, 2], [], ()),
        (1, [[1, 2], [3]], [(1, 2)], (None,)),
        (1, [], [], (None,)),
        (2, [[[1], [2, 3]], [[3], [4]]], [(2, 2), (1, 2)], (2, None)),
        (2, [[], []], [(0, 0)], (0, None)),
    ):
        found = list_extents(lists(rows, "int64", ndim))
        assert found == extents
        assert fixed_shape(found, ndim) == shape


def test_vectors_in_arrays_and_fields_of_structs_in_arrays_have_a_type_and_others_none():
    event = t.StructType().add("vector", VectorUDT()).add("at", t.StructType().add("day", t.DateType()))
    schema = t.StructType().add("vectors", t.ArrayType(VectorUDT())).add("events", t.ArrayType(event))
    for column, expected in {
        "vectors": ("float64", 2, "plain"),
        "events.at.day": ("int32", 1, "plain"),
        "events.vector": ("float64", 2, "plain"),
    }.items():
        found = column_spec(schema, column, "x", "feature")
        assert (found.dtype, found.ndim, found.kind) == expected
    odd = t.MapType(t.StringType(), t.LongType())
    with pytest.raises(ColumnTypeError, match="Column 'odd' has type map<string,bigint>.*Supported: numbers"):
        column_spec(schema.add("odd", odd), "odd", "x", "feature")
