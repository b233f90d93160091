"""Which field of a row goes to which tensor, with column names and without."""

import warnings
from collections import namedtuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

from tfos_ml import errors
from tfos_ml.data.rdd_to_arrow import to_batches
from tfos_ml.data.spool import Chunk
from tfos_ml.worker.cluster_feed import ClusterFeed

Sample = namedtuple("Sample", "image label")
IMAGES = [[0.5, 1.5], [2.5, 3.5]]
PAIRS = [(IMAGES[0], 0), (IMAGES[1], 1)]
NAMED = [dict(zip(("image", "label"), pair, strict=True)) for pair in PAIRS]


class Inbox:
    """Gives chunks, then the end."""

    def __init__(self, chunks):
        self._chunks = iter(chunks)

    def next_item(self, stream, timeout):
        return next(self._chunks, None)


class Channel:
    def send(self, message):
        pass


@pytest.fixture
def read(tmp_path):
    """What a feed of these elements gives with a mapping, and the warnings on the way."""

    def read(mapping, *elements):
        chunks = []
        for i, batch in enumerate(batch for some in elements for batch in batches_of(some)):
            path = tmp_path / f"{i}.arrow"
            with pa.ipc.new_file(str(path), batch.schema) as writer:
                writer.write_batch(batch)
            chunks.append(Chunk(str(path), batch.num_rows, 0, False))
        feed = ClusterFeed(Inbox(chunks), Channel(), "input", mapping, True, str(tmp_path), 0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            arrays = feed.next_batch(1000)
            feed.next_batch(1000)
        return arrays, [warning for warning in said if issubclass(warning.category, errors.UnnamedFieldsWarning)]

    return read


def batches_of(elements):
    return [elements] if isinstance(elements, pa.RecordBatch) else to_batches(elements)


FRAME = pa.RecordBatch.from_pylist(NAMED)
IN_ORDER = {"image": "x", "label": "y"}
TURNED = {"label": "y", "image": "x"}


@pytest.mark.parametrize("mapping", [IN_ORDER, TURNED], ids=["in order", "turned"])
@pytest.mark.parametrize(
    "elements",
    [NAMED, [Row(**pair) for pair in NAMED], FRAME, [Sample(*pair) for pair in PAIRS]],
    ids=["dicts", "Rows", "DataFrame", "namedtuples"],
)
def test_names_decide_where_there_are_any(read, elements, mapping):
    arrays, said = read(mapping, elements)
    assert arrays["x"].tolist() == IMAGES
    assert arrays["y"].tolist() == [0, 1]
    assert not said


@pytest.mark.parametrize("elements", [PAIRS, [list(pair) for pair in PAIRS]], ids=["tuples", "lists"])
def test_without_names_the_order_of_the_mapping_decides_and_is_told(read, elements):
    arrays, (said,) = read({"pixels": "x", "digit": "y"}, elements)
    assert arrays["x"].tolist() == IMAGES
    message = str(said.message)
    assert "field 0 (list) is 'pixels', field 1 (int64) is 'digit'" in message
    assert "TensorFlowOnSpark takes columns in the order of their names, ['digit', 'pixels']" in message
    assert "Row(pixels=..., digit=...)" in message


@pytest.mark.parametrize("elements", [[(1,), (2,)], [1, 2], [np.zeros(3)]], ids=["tuples", "numbers", "arrays"])
def test_fewer_fields_than_columns_are_an_error(read, elements):
    with pytest.raises(errors.ColumnNotFoundError, match=r"names 2 columns, \['image', 'label'\].* have 1 field "):
        read(IN_ORDER, elements)


def test_a_name_that_is_not_there_is_an_error(read):
    with pytest.raises(errors.ColumnNotFoundError, match="no fields 'label', expected one. Available: .'image'"):
        read(IN_ORDER, [{"image": 1.5}])
