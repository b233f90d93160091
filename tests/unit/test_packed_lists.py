"""Lists of numbers are packed and unpacked without a change."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tfos_ml.data.packed_lists import MAX_BYTES, pack, slices, unpack

NUMBERS = {
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "float64": st.floats(),
}


@st.composite
def lists(draw):
    """A column of lists, some of them null, and the type of their numbers."""
    dtype, depth = draw(st.sampled_from(sorted(NUMBERS))), draw(st.integers(1, 3))
    kind = pa.type_for_alias(dtype)
    values = st.lists(NUMBERS[dtype], max_size=5)
    kind = pa.list_(kind)
    for _ in range(depth - 1):
        values, kind = st.lists(values, max_size=4), pa.list_(kind)
    return pa.array(draw(st.lists(st.none() | values, max_size=8)), kind), dtype


def same(one: pa.Array, other: pa.Array) -> bool:
    """Whether two columns have the same lists, also where numbers are NaN."""
    return one.type == other.type and repr(one.to_pylist()) == repr(other.to_pylist())


@settings(max_examples=200)
@given(lists(), st.integers(0, 8))
def test_any_part_of_a_column_comes_back(drawn, first):
    column, dtype = drawn
    assert same(unpack(pack(column), dtype), column)
    assert same(unpack(pack(column.slice(first)), dtype), column.slice(first))
    assert same(unpack(pack(column).slice(first), dtype), column.slice(first))


def test_a_list_with_a_null_becomes_null():
    column = pa.array([[1, 2], [3, None], [], None, [4]], pa.list_(pa.int32()))
    assert unpack(pack(column), "int32").to_pylist() == [[1, 2], None, [], None, [4]]
    nested = pa.array([[[1.0], [None]], [[2.0, 3.0]]])
    assert unpack(pack(nested), "float64").to_pylist() == [[[1.0], None], [[2.0, 3.0]]]


def test_the_numbers_are_not_copied():
    packed = pack(pa.array([[1.0, 2.0], [3.0]], pa.list_(pa.float32())))
    assert unpack(packed, "float32").values.buffers()[1].address == packed.buffers()[2].address


def test_large_batches_are_cut(monkeypatch):
    batch = pa.record_batch({"c0": pa.array(np.arange(1000))})
    assert [len(part) for part in slices(batch)] == [1000]
    assert not list(slices(batch.slice(0, 0)))
    monkeypatch.setattr("tfos_ml.data.packed_lists.MAX_BYTES", 8 * 300)
    assert [len(part) for part in slices(batch)] == [300, 300, 300, 100]
    assert MAX_BYTES < 2**31
