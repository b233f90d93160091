"""Doubles of a text that are to be floats: whether it matters how often they are rounded, without Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfos_ml.agent.certain_text import narrowed
from tfos_ml.agent.text_blocks import UncertainLinesError

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(FLOATS.filter(lambda value: abs(value) < np.finfo(np.float32).max))
def test_what_is_halfway_between_floats_is_not_certain(value):
    above = np.nextafter(np.float32(value), np.float32(np.inf))
    half = (value + float(above)) / 2
    with pytest.raises(UncertainLinesError, match="halfway"):
        narrowed(pa.chunked_array([[None, 1.5], [half]]), pa.float32())
    near = [np.nextafter(half, -np.inf), np.nextafter(half, np.inf), value]
    assert narrowed(pa.chunked_array([near]), pa.float32()).to_pylist() == [value, float(above), value]


def test_what_is_larger_than_floats_is_not_certain():
    with pytest.raises(UncertainLinesError, match="too large for a float"):
        narrowed(pa.chunked_array([[[1.0], [-3.4028235e38]]]), pa.list_(pa.float32()))
