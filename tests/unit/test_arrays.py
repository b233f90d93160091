import pyarrow as pa
import pytest

from tfos_ml.data import schema
from tfos_ml.data.arrow import to_numpy, to_storage
from tfos_ml.data.arrow_lists import list_array
from tfos_ml.data.casting import TensorInfo
from tfos_ml.errors import ShapeError
from tfos_ml.inference.row_blocks import RowBlocks

VECTOR = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)
SIZES = [(name, pa.int32()) for name in ("height", "width", "nChannels", "mode")]
IMAGE = pa.struct([("origin", pa.string()), *SIZES, ("data", pa.binary())])


def sparse(size, *indices):
    return {"type": 0, "size": size, "indices": indices, "values": [float(i) + 1 for i in indices]}


def test_vectors_are_lists_with_zeros_where_nothing_is():
    dense = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]}
    array = pa.array([dense, sparse(3, 1), None, sparse(3), sparse(3, 0, 2)], VECTOR)
    expected = [[1.0, 2.0, 3.0], [0.0, 2.0, 0.0], None, [0.0] * 3, [1.0, 0.0, 3.0]]
    assert to_storage(array).to_pylist() == expected
    assert to_storage(array.slice(1, 4)).to_pylist() == expected[1:5]


def test_wide_vectors_stay_sparse_until_a_batch_is_made():
    wide = schema.ColumnSpec("x", "x", "feature", "float32", 1, schema.VECTOR, schema.ColumnConstraint(shape=(9000,)))
    stored = to_storage(pa.array([sparse(9000, 1), sparse(9000, 0, 8999)], VECTOR), wide)
    assert stored.nbytes < 500
    assert to_numpy(stored, wide).sum(axis=1).tolist() == [2, 9001]
    assert len([*RowBlocks([TensorInfo("float32", (None, 9000))], [pa.array([sparse(9000, 1)] * 99, VECTOR)], 50)]) == 2
    with pytest.raises(ShapeError, match="2 rows has 2,147,483,648 numbers"):
        list_array([1 << 30, 1 << 30], pa.array([]))


def test_an_image_that_spark_could_not_read_is_named():
    image = {"origin": "", "height": 1, "width": 1, "nChannels": 3, "mode": 16, "data": b"abc"}
    broken = {name: -1 for name, _ in SIZES} | {"origin": "file:/pictures/cat.jpg", "data": b""}
    with pytest.raises(ShapeError, match=r"could not read the image 'file:/pictures/cat\.jpg'.*dropInvalid"):
        to_storage(pa.array([image, broken], IMAGE))
