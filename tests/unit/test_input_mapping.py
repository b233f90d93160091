"""Which field of a row goes to which tensor, with column names and without."""

import warnings
from collections import namedtuple
from types import SimpleNamespace

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


@pytest.fixture
def read(tmp_path):
    """What a feed of these elements gives with a mapping, and the warnings on the way."""

    def read(mapping, elements):
        chunks = []
        for i, batch in enumerate([elements] if isinstance(elements, pa.RecordBatch) else to_batches(elements)):
            path = tmp_path / f"{i}.arrow"
            with pa.ipc.new_file(str(path), batch.schema) as writer:
                writer.write_batch(batch)
            chunks.append(Chunk(str(path), batch.num_rows, 0, False))
        left = iter(chunks)
        inbox = SimpleNamespace(next_item=lambda stream, timeout: next(left, None))
        feed = ClusterFeed(inbox, SimpleNamespace(send=print), "input", mapping, True, str(tmp_path), 0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            arrays = feed.next_batch(1000)
            feed.next_batch(1000)
        return arrays, [warning for warning in said if issubclass(warning.category, errors.UnnamedFieldsWarning)]

    return read


FRAME = pa.RecordBatch.from_pylist(NAMED)
IN_ORDER = {"image": "x", "label": "y"}


@pytest.mark.parametrize(
    "elements",
    [[Row(**pair) for pair in NAMED], FRAME, [Sample(*pair) for pair in PAIRS]],
    ids=["Rows", "DataFrame", "namedtuples"],
)
def test_names_decide_where_there_are_any(read, elements):
    arrays, said = read({"label": "y", "image": "x"}, elements)
    assert arrays["x"].tolist() == IMAGES
    assert arrays["y"].tolist() == [0, 1]
    assert not said


def test_without_names_the_order_of_the_mapping_decides_and_is_told(read):
    arrays, (said,) = read({"pixels": "x", "digit": "y"}, PAIRS)
    assert arrays["x"].tolist() == IMAGES
    message = str(said.message)
    assert "field 0 (list) is 'pixels', field 1 (int64) is 'digit'" in message
    assert "TensorFlowOnSpark takes columns in the order of their names, ['digit', 'pixels']" in message
    assert "Row(pixels=..., digit=...)" in message


def test_fewer_fields_than_columns_and_a_name_that_is_not_there_are_errors(read):
    with pytest.raises(errors.ColumnNotFoundError, match=r"names 2 columns, \['image', 'label'\].* have 1 field "):
        read(IN_ORDER, [1, 2])
    with pytest.raises(errors.ColumnNotFoundError, match="no fields 'label', expected one. Available: .'image'"):
        read(IN_ORDER, [{"image": 1.5}])
