import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tfos_ml.data.arrow import spec_of, to_numpy, to_storage
from tfos_ml.errors import ShapeError

VECTOR = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)
IMAGE = pa.struct(
    [
        ("origin", pa.string()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("nChannels", pa.int32()),
        ("mode", pa.int32()),
        ("data", pa.binary()),
    ]
)


def dense(*values):
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def sparse(size, **entries):
    return {"type": 0, "size": size, "indices": [int(k[1:]) for k in entries], "values": list(entries.values())}


def image(height, width, channels, data=None):
    data = bytes(range(height * width * channels)) if data is None else data
    return {"origin": "", "height": height, "width": width, "nChannels": channels, "mode": 16, "data": data}


class TestPlain:
    def test_days_microseconds_and_decimals_are_numbers(self):
        assert to_storage(pa.array([datetime.date(1970, 1, 3), None])).equals(pa.array([2, None], pa.int32()))
        moments = pa.array([[datetime.datetime(1970, 1, 1, 0, 0, 1), None], None], pa.list_(pa.timestamp("us")))
        assert to_storage(moments).equals(pa.array([[1_000_000, None], None], pa.list_(pa.int64())))
        zoned = pa.array([7, -7], pa.timestamp("us", "America/New_York"))
        assert to_storage(zoned).equals(pa.array([7, -7], pa.int64()))
        assert to_storage(pa.array([Decimal("0.10")])).equals(pa.array([0.1]))

    def test_vectors_are_lists_with_zeros_where_nothing_is(self):
        rows = [
            dense(1.0, 2.0, 3.0),
            sparse(3, i1=5.0),
            None,
            sparse(3),
            sparse(3, i0=1.0, i2=-1.0),
            dense(0.0, 0.0, 9.0),
        ]
        expected = [[1.0, 2.0, 3.0], [0.0, 5.0, 0.0], None, [0.0] * 3, [1.0, 0.0, -1.0], [0.0, 0.0, 9.0]]
        array = pa.array(rows, VECTOR)
        assert to_storage(array).to_pylist() == expected
        assert to_storage(array.slice(1, 4)).to_pylist() == expected[1:5]
        assert to_storage(pa.array([], VECTOR)).to_pylist() == []
        assert to_storage(pa.array([None], VECTOR)).to_pylist() == [None]

    def test_images_are_lists_of_rows_of_pixels(self):
        array = pa.array([image(2, 1, 3), None, image(1, 2, 1), image(0, 0, 3)], IMAGE)
        expected = [[[[0, 1, 2]], [[3, 4, 5]]], None, [[[0], [1]]], []]
        assert to_storage(array).to_pylist() == expected
        assert to_storage(array.slice(2)).to_pylist() == expected[2:]
        same = to_storage(pa.array([image(2, 2, 3)] * 2, IMAGE))
        values = to_numpy(same, spec_of(same.type, "x", "x"))
        assert (values.shape, values.dtype) == ((2, 2, 2, 3), np.uint8)

    def test_an_image_of_another_size_than_it_says_is_an_error(self):
        with pytest.raises(ShapeError, match="2 x 2 pixels and 3 channels has 5 bytes of data, expected 12"):
            to_storage(pa.array([image(2, 2, 3, b"12345")], IMAGE))

    def test_an_image_that_spark_could_not_read_is_named(self):
        broken = {
            "origin": "file:/pictures/cat.jpg",
            "height": -1,
            "width": -1,
            "nChannels": -1,
            "mode": -1,
            "data": b"",
        }
        with pytest.raises(ShapeError, match=r"could not read the image 'file:/pictures/cat\.jpg'.*dropInvalid"):
            to_storage(pa.array([image(2, 2, 3), broken], IMAGE))


@pytest.mark.parametrize(
    ("kind", "ndim", "text"),
    [
        (pa.large_string(), 0, True),
        (pa.int8(), 0, False),
        (pa.list_(pa.list_(pa.float32())), 2, False),
        (pa.list_(pa.string()), 1, True),
    ],
)
def test_spec_of_an_arrow_type(kind, ndim, text):
    spec = spec_of(kind, "x", "c")
    assert (spec.name, spec.column, spec.ndim, spec.is_text) == ("x", "c", ndim, text)
