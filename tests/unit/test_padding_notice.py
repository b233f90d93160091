"""A few long rows, to which all others are padded, are told before they cost hours."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from tfos_ml.data.casting import TensorInfo
from tfos_ml.keras.rows import TrainingData
from tfos_ml.worker.row_store import RowStore


def notice(lengths, is_ragged=False):
    batch = pa.record_batch([pa.array([[1] * length for length in lengths])], names=["c0"])
    store = SimpleNamespace(longest=[(max(lengths),)], is_ragged=lambda column: True, spilled=False)
    store._each_batch = lambda: [batch]
    store.mean_length = lambda column: RowStore.mean_length(store, column)
    schema = SimpleNamespace(of=lambda role: [0], columns=[SimpleNamespace(column="tokens")])
    rows = type("Store", (), {**vars(store), "__len__": lambda self: len(lengths)})()
    rows.mean_length, rows.is_ragged = store.mean_length, store.is_ragged
    inputs = {"tokens": TensorInfo("int64", (None, None), ragged=is_ragged)}
    return TrainingData.padding_notice.fget(SimpleNamespace(stores={"train": rows}, _schema=schema, _inputs=inputs))


def test_one_long_row_among_short_ones_is_told():
    told = notice([50] * 199 + [10_000])
    assert "column 'tokens' have 100 values on average" in told
    assert "the longest, 10,000: about 100 times the work" in told


@pytest.mark.parametrize("lengths", [[50] * 20, [10, 30, 60], [0, 0, 4]])
def test_rows_of_like_lengths_are_not(lengths):
    assert notice(lengths) == ""


def test_rows_that_are_not_padded_are_not():
    assert notice([1] * 100 + [1000], is_ragged=True) == ""
