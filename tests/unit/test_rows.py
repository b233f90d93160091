import datetime as dt
import enum
import random
from collections import namedtuple
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Matrices, Vectors
from pyspark.mllib import linalg as mllib
from pyspark.sql import Row

from tfos_ml.data.arrow_to_rdd import column_of, is_row_batch, to_elements
from tfos_ml.data.rdd_to_arrow import to_batches
from tfos_ml.errors import ColumnNotFoundError, ColumnTypeError

NAN, INF = float("nan"), float("inf")
Point = namedtuple("Point", "x y")


def there_and_back(elements, lists=False, **options):
    return [e for batch in to_batches(elements, **options) for e in to_elements(batch, lists)]


def one_batch(elements):
    (batch,) = to_batches(elements)
    return batch


def same(a, b):
    """Equal in value, type and shape; NaN equals NaN, and 0.0 is not -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and same(a.reshape(-1).tolist(), b.reshape(-1).tolist())
    if isinstance(a, dict):
        return list(a) == list(b) and same(list(a.values()), list(b.values()))
    if isinstance(a, (list, tuple)):
        fields = getattr(a, "__fields__", []), getattr(b, "__fields__", [])
        return list(fields[0]) == list(fields[1]) and len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def through_a_file(batch, path):
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)


SCALARS = {
    "bools": [True, False, None],
    "ints": [0, -1, 2**63 - 1, -(2**63), None],
    "floats": [0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, INF, -INF, NAN, None],
    "strings": ["", "a\0b", "naïve", "\U0001f600 x", "日本", None],
    "bytes": [b"", b"\0\xff", None],
    "dates": [dt.date.min, dt.date(1969, 12, 31), dt.date.max, None],
    "datetimes": [dt.datetime.min, dt.datetime(2020, 2, 29, 12, 30, 1, 123456), dt.datetime.max, None],
    "durations": [dt.timedelta(microseconds=-1), dt.timedelta(days=3), None],
    "decimals": [Decimal("1.50"), Decimal("-0.01"), None],
    "int32": [np.int32(-5), np.int32(7)],
    "float32": [np.float32(0.1), np.float32(NAN), None],
    "numpy bools": [np.True_, None, np.False_],
    "numpy days": [np.datetime64("2020-01-01"), np.datetime64("NaT", "D"), None],
}
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">i4", ">f8"]
DTYPES += ["M8[us]", "M8[D]", ">M8[h]", "m8[ns]", "U5", "S5"]
ARRAYS = {
    **{dtype: [np.arange(6).reshape(2, 3).astype(dtype), np.ones((2, 3), dtype)] for dtype in DTYPES},
    "not a time": [np.array(["NaT", "2020-01-01"], "M8[s]")],
    "not a number": [np.array([NAN, INF, -0.0])],
    "0-d": [np.array(1.5), np.array(-0.0)],
    "strided": [np.arange(10)[::-2], np.arange(5)],
    "objects": [np.array(["a", None, "\U0001f600"], object), np.array([], object)],
    "texts of several widths": [np.array(["a", "bc"]), np.array([["wider"]])],
    "ragged": [np.arange(3), np.zeros(0, int), np.arange(7)],
    "ragged in number of dimensions": [np.ones((2, 3)), np.array(1.0), np.ones(4)],
}
FORMS = {
    "tuples": [(1, "a", 0.5), (2, None, -0.0)],
    "empty tuples": [(), ()],
    "dicts": [{"b": 1, "a": "x"}, {"b": 2, "a": None}],
    "odd keys": [{"": 1, "a.b": 2, "\U0001f600": 3}],
    "rows": [Row(label=1, text="x"), Row(label=None, text="y")],
    "lists of text": [["a", "b"], [], ["\U0001f600"], [None, "c"]],
    "tuple in tuple": [("k", (1, 0.5)), ("l", (2, 1.5)), ("m", None)],
    "tuples of several lengths": [("k", (1, 2)), ("l", ()), ("m", (3,))],
    "dicts in list": [([{"a": 1}, {"a": 2}],), ([],), (None,)],
    "arrays in dict": [{"x": np.ones((2, 2), "f4"), "y": np.int64(1)}, {"x": np.zeros((2, 2), "f4"), "y": np.int64(0)}],
    "arrays in tuple in tuple": [(1, (np.ones((2, 2)), "a")), (2, None), (3, (None, "b"))],
    "None for an array": [(np.ones((2, 2)), 1), (None, 2)],
    "None for a dict": [(None,), ({"a": None, "b": 1},), (None,)],
}
NUMBERS = {
    "floats": [[0.5, -0.0, NAN, INF], [1.5, 2.5, 3.5, 4.5]],
    "flags": [[True, False], [False, True]],
    "ragged": [[1.5], [], [2.5, 3.5]],
    "with None": [[1.5, None], [2.5]],
    "long floats": [[0.1] * 200, [-0.0, NAN] * 100],
    "long ragged ints": [[3] * 200, [2**63 - 1] * 100, []],
    "long with None": [[0.5] * 200, [None] * 200, [0.5] * 3],
    "long text after a number": [[0.5] * 100 + ["a" * 1000]] * 2,
    "nested": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
    "jagged": [[[0.5], [1.5, 2.5]], [[], [3.5]]],
    "deep": [[[[True], [False]]], [[[True], [True]]]],
    "nested with None": [[[1, None], [2, 3]], [None, [4]]],
}
POOLS = {**SCALARS, **ARRAYS, **FORMS, **{f"lists of {name}": values for name, values in NUMBERS.items()}}


def test_elements_come_back_as_they_were():
    for name, elements in {**SCALARS, **ARRAYS, **FORMS}.items():
        assert same(there_and_back(elements), elements), name


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"x": ({"y": v},)}])
def test_slices_files_and_joined_batches(wrap, tmp_path):
    for name, values in POOLS.items():
        for batch in to_batches([wrap(v) for v in values] * 4):
            whole = to_elements(batch)
            assert is_row_batch(batch)
            assert same(to_elements(through_a_file(batch, tmp_path / "batch.arrow")), whole), name
            for start, length in ((1, 2), (0, 0), (2, 100)):
                part, expected = batch.slice(start, length), whole[start : start + length]
                assert same(to_elements(part), expected), name
                mask = [i % 2 == 1 for i in range(len(part))]
                assert same(to_elements(part.filter(pa.array(mask, pa.bool_()))), expected[1::2]), name
            joined = pa.Table.from_batches([batch.slice(2), batch.slice(0, 2)]).combine_chunks().to_batches()
            assert same([e for b in joined for e in to_elements(b)], whole[2:] + whole[:2]), name


def test_random_mixtures():
    rng = random.Random(20)
    values = list(POOLS.values())
    for _ in range(60):
        elements = []
        for _ in range(rng.randrange(1, 8)):
            names = rng.sample("abcdef", rng.randrange(1, 4))
            columns = [rng.choice(values) for _ in names]
            make = rng.choice([lambda *row: row, lambda *row: dict(zip(names, row, strict=True)), Row(*names)])  # noqa: B023
            elements += [make(*map(rng.choice, columns)) for _ in range(rng.randrange(1, 100))]
        assert same(there_and_back(elements, lists=True), elements)


def test_namedtuples_come_back_as_rows():
    (point,) = there_and_back([Point(1, "a")])
    assert (point.x, point.y, *point) == (1, "a", 1, "a")
    assert same(there_and_back([(Point(1, "a"), 2)]), [(Row(x=1, y="a"), 2)])


DENSE, SPARSE = Vectors.dense(0.5, -0.0, NAN), Vectors.sparse(3, {2: 1.5})
VECTORS = {
    "both, as VectorAssembler gives them": [SPARSE, DENSE, SPARSE],
    "of mllib": [mllib.Vectors.dense(1, 2), mllib.Vectors.sparse(2, {0: 1.0})],
    "of several sizes": [DENSE, Vectors.dense(1.0), Vectors.sparse(5, {4: 1.0})],
    "matrices": [Matrices.dense(2, 2, [1, 2, 3, 4]), Matrices.sparse(2, 2, [0, 1, 1], [1], [5])],
}


def test_vectors_come_back_as_arrays():
    for name, values in VECTORS.items():
        rows = [Row(features=v, label=1) for v in values]
        assert same(there_and_back(rows), [Row(features=v.toArray(), label=1) for v in values]), name


def test_lists_of_numbers_come_back_as_an_array():
    for elements, dtype in (
        ([[0.5, NAN], [1.5, 2.5]], "f8"),
        ([[1] * 100, [0.5] * 100], "f8"),
        ([[True] * 100], "?"),
        ([[np.int8(1), 2]], "i8"),
    ):
        for found in (there_and_back(elements), [e["x"] for e in there_and_back([{"x": e} for e in elements])]):
            assert same(found, [np.array(e, dtype) for e in elements])


class Colour(enum.Enum):
    RED = 1


def test_batches_of_a_dataframe_are_tuples_of_columns():
    batch = pa.RecordBatch.from_pydict(
        {
            "x": pa.array([[0.5, 1.5], [2.5]], pa.list_(pa.float32())),
            "y": pa.array([1, None], pa.int32()),
            "z": [{"a": 1}, {"a": 2}],
        }
    )
    assert not is_row_batch(batch)
    expected = [(np.array([0.5, 1.5], "f4"), 1, {"a": 1}), (np.array([2.5], "f4"), None, {"a": 2})]
    assert same(to_elements(batch), expected)
    assert same(to_elements(batch.slice(1)), expected[1:])
    assert same(to_elements(batch, lists=True), [([0.5, 1.5], 1, {"a": 1}), ([2.5], None, {"a": 2})])
    assert column_of(batch, "y").to_pylist() == column_of(batch, 1).to_pylist() == [1, None]


def test_columns_by_name_or_position_and_a_missing_one_is_a_typed_error():
    for by_position in (one_batch([(1, "x"), (2, "y")]), one_batch([[1, "x"], [2, "y"]])):
        assert column_of(by_position, 1).to_pylist() == ["x", "y"]
    row = one_batch([Row(a=1, b="x")])
    assert column_of(row, "b").to_pylist() == column_of(row, 1).to_pylist() == ["x"]
    named = one_batch([{"a": 1, "b": 2}])
    with pytest.raises(ColumnNotFoundError, match=r"no fields 'c', expected one. Available: \['a', 'b'\]"):
        column_of(named, "c")
    with pytest.raises(ColumnNotFoundError, match=r"no fields 2, expected one. Available: \[0, 1\]"):
        column_of(one_batch([(1, 2)]), 2)


def test_errors_say_where_what_and_what_to_do():
    one_type = "one type for all rows, as float(x) or str(x)"
    for elements, where, what, cast in (
        ([(1, [{"a": object()}])], "element[1][0]['a']", "object", "a tuple, dict or NumPy array of its content"),
        ([(1, Colour.RED)], "element[1]", "Colour", "x.value in place of x = element[1]"),
        ([pd.Timestamp("2020-01-01")], "element", "Timestamp", "x.to_pydatetime()"),
        ([[1, 2**63]], "element[*]", "int", one_type),
        ([(1, "a"), ("b", "c")], "element[0]", "int and str", one_type),
    ):
        with pytest.raises(ColumnTypeError) as error:
            there_and_back(elements)
        message = str(error.value)
        assert message.startswith(f"{where} of the RDD holds ")
        for part in (what, "Supported: bool, int, float", "rdd.map()", cast):
            assert part in message


def test_elements_before_a_batch_with_an_error_have_been_delivered():
    batches = to_batches([*range(64), object()])
    assert to_elements(next(batches)) == list(range(64))
    with pytest.raises(ColumnTypeError, match="element of the RDD holds object"):
        next(batches)
