import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import types as t

from tfos_ml.data.arrow import (
    concat_padded,
    count_nulls,
    fixed_shape,
    list_extents,
    to_numpy,
)
from tfos_ml.data.schema import ColumnSpec, column_spec
from tfos_ml.errors import ColumnNotFoundError, ColumnTypeError

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


def test_raggedness_at_every_level_is_padded_with_the_pad_value():
    rows = [[[1, 2], [3]], [], [[], [4], [5, 6, 7]]]
    values = to_numpy(lists(rows, "int32", 2), spec("int32", 2), pad_value=-1)
    assert values.tolist() == [
        [[1, 2, -1], [3, -1, -1], [-1, -1, -1]],
        [[-1, -1, -1]] * 3,
        [[-1, -1, -1], [4, -1, -1], [5, 6, 7]],
    ]


NULLS = [
    (0, [1, None, 2, None], 2),
    (0, [], 0),
    (1, [[1, None], None, [], [2]], 2),
    (1, [[1, 2], []], 0),
    (2, [None, [None, [None, 1, None]], [[2], []]], 4),
    (2, [[[1]], [], [[]]], 0),
]


@pytest.mark.parametrize(("ndim", "rows", "nulls"), NULLS)
def test_nulls_are_counted_at_every_level(ndim, rows, nulls):
    assert count_nulls(lists(rows, "int64", ndim)) == nulls


@pytest.mark.parametrize(
    ("ndim", "rows", "extents", "shape"),
    [
        (0, [1, 2], [], ()),
        (1, [[1, 2], [3, 4]], [(2, 2)], (2,)),
        (1, [[1, 2], [3]], [(1, 2)], (None,)),
        (1, [[], []], [(0, 0)], (0,)),
        (1, [], [], (None,)),
        (2, [[[1], [2]], [[3], [4]]], [(2, 2), (1, 1)], (2, 1)),
        (2, [[[1], [2, 3]], [[3], [4]]], [(2, 2), (1, 2)], (2, None)),
        (2, [[[1, 2]], [[3, 4], [5, 6]]], [(1, 2), (2, 2)], (None, 2)),
        (2, [[], []], [(0, 0)], (0, None)),
    ],
)
def test_extents_tell_which_dimensions_are_fixed(ndim, rows, extents, shape):
    found = list_extents(lists(rows, "int64", ndim))
    assert found == extents
    assert fixed_shape(found, ndim) == shape


def test_parts_that_are_padded_and_put_together_are_what_all_rows_are_in_one_go():
    rows = [[[1, 2], [3]], [], [[], [4], [5, 6, 7]], [[1]]]
    two = spec("int32", 2)
    parts = [to_numpy(lists(rows[i : i + 1], "int32", 2), two, -1) for i in range(len(rows))]
    whole = to_numpy(lists(rows, "int32", 2), two, -1)
    assert concat_padded(parts, two, -1).tolist() == whole.tolist()


COLUMN_TYPES = [  # but for those of ``e2e/test_feed.py``
    (t.CharType(3), "string", 0),
    (t.VarcharType(3), "string", 0),
    (t.TimestampType(), "int64", 0),
    (t.ArrayType(t.ArrayType(t.ArrayType(t.LongType()))), "int64", 3),
]


@pytest.mark.parametrize(("spark_type", "dtype", "ndim"), COLUMN_TYPES, ids=lambda v: getattr(v, "typeName", str)())
def test_column_type_is_looked_up(spark_type, dtype, ndim):
    schema = t.StructType([t.StructField("c", spark_type)])
    assert column_spec(schema, "c", "tensor", "label") == ColumnSpec("tensor", "c", "label", dtype, ndim)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("old", ("float64", 1, "vector")),
        ("vectors", ("float64", 2, "plain")),
        ("events.v", ("float32", 1, "plain")),
        ("events.at.day", ("int32", 1, "plain")),
        ("events.vector", ("float64", 2, "plain")),
    ],
)
def test_vectors_in_arrays_and_fields_of_structs_in_arrays(column, expected):
    event = t.StructType().add("v", t.FloatType()).add("vector", VectorUDT())
    event.add("at", t.StructType().add("day", t.DateType()))
    schema = t.StructType().add("old", OldVectorUDT()).add("vectors", t.ArrayType(VectorUDT()))
    found = column_spec(schema.add("events", t.ArrayType(event)), column, "x", "feature")
    assert (found.dtype, found.ndim, found.kind) == expected


@pytest.mark.parametrize(
    "spark_type",
    [
        t.MapType(t.StringType(), t.LongType()),
        t.ArrayType(t.StructType([t.StructField("x", t.LongType())])),
        t.DayTimeIntervalType(),
        t.NullType(),
    ],
    ids=lambda kind: kind.typeName(),
)
def test_type_that_no_tensor_holds_is_refused_by_name(spark_type):
    schema = t.StructType([t.StructField("odd", spark_type)])
    with pytest.raises(ColumnTypeError) as caught:
        column_spec(schema, "odd", "x", "feature")
    assert str(caught.value).startswith(f"Column 'odd' has type {spark_type.simpleString()}")
    assert "Supported: numbers" in str(caught.value)


SCHEMA = t.StructType([t.StructField(name, t.LongType()) for name in ("pixels", "label", "twice", "twice")])


def test_missing_column_comes_with_a_suggestion_and_the_columns_there_are():
    with pytest.raises(ColumnNotFoundError) as caught:
        column_spec(SCHEMA, "pixel", "x", "feature")
    assert str(caught.value) == (
        "Feature column 'pixel' does not exist. Did you mean 'pixels'? "
        "Available columns: ['pixels', 'label', 'twice', 'twice']"
    )
