"""Records as bytes and as Arrow columns, beside TensorFlow and Protocol Buffers' own library."""

from __future__ import annotations

import pyarrow as pa
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfos_ml.tfrecord.decoding import decode_records
from tfos_ml.tfrecord.encoding import encode
from tfos_ml.tfrecord.feature_types import EXAMPLE, SEQUENCE, columns_of
from tfos_ml.tfrecord.framing import framed

SCALARS = {
    "i8": pa.int8(),
    "i64": pa.int64(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "flag": pa.bool_(),
    "text": pa.string(),
    "raw": pa.binary(),
    "price": pa.decimal128(20, 3),
}
WIDE = pa.schema([*SCALARS.items(), *((f"{name}s", pa.list_(kind)) for name, kind in SCALARS.items())])
VALUES = {
    "i8": st.integers(-128, 127),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(width=32, allow_nan=False),  # what a FloatList holds
    "flag": st.booleans(),
    "text": st.text(max_size=20),
    "raw": st.binary(max_size=200),
    "price": st.decimals(-(10**16), 10**16, places=3),
}
ROWS = st.fixed_dictionaries(
    {
        **{name: st.none() | values for name, values in VALUES.items()},
        **{f"{name}s": st.none() | st.lists(values, max_size=6) for name, values in VALUES.items()},
    }
)


def through_records(table: pa.Table, record_type=EXAMPLE):
    columns = columns_of(table.schema, record_type)
    batch = table.combine_chunks()
    arrays = [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in batch.columns]
    records = encode(arrays, columns, record_type)
    found = decode_records(records, columns, record_type)
    assert found.problems == {}
    return records, pa.Table.from_arrays(found.columns, schema=table.schema)


@settings(max_examples=25)
@given(st.lists(ROWS, max_size=40))
def test_columns_come_back_as_they_were_and_so_do_those_that_tensorflow_serialises(rows):
    table = pa.Table.from_pylist(rows, WIDE)
    records, found = through_records(table)
    assert found.equals(table)
    messages = [tf.train.Example.FromString(record).SerializeToString() for record in records.to_pylist()]
    # What was written is what Protocol Buffers write, but for the order of fields.
    assert [len(message) for message in messages] == [len(record) for record in records.to_pylist()]
    columns = columns_of(WIDE, EXAMPLE)
    found = decode_records(pa.array(messages, pa.large_binary()), columns, EXAMPLE)
    assert found.problems == {}
    assert pa.Table.from_arrays(found.columns, schema=WIDE).equals(table)


SEQUENCES = pa.schema([("id", pa.int64()), ("words", pa.list_(pa.list_(pa.string())))])
SEQUENCE_ROWS = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-5, 300),
        "words": st.none() | st.lists(st.none() | st.lists(st.text(max_size=5), max_size=4), max_size=5),
    }
)


@settings(max_examples=25)
@given(st.lists(SEQUENCE_ROWS, max_size=30))
def test_sequence_examples_come_back_as_they_were(rows):
    table = pa.Table.from_pylist(rows, SEQUENCES)
    records, found = through_records(table, SEQUENCE)
    assert found.equals(table)
    for record, row in zip(records.to_pylist(), rows, strict=True):
        lists = tf.train.SequenceExample.FromString(record).feature_lists.feature_list
        assert ("words" in lists) == (row["words"] is not None)
        for item, feature in zip(row["words"] or [], lists["words"].feature if row["words"] else [], strict=True):
            assert [v.decode() for v in feature.bytes_list.value] == (item or [])


def _read(messages, schema):
    found = decode_records(pa.array(messages, pa.large_binary()), columns_of(schema, EXAMPLE), EXAMPLE)
    return pa.Table.from_arrays(found.columns, schema=schema).to_pylist(), found.problems


def _field(number, payload):
    return bytes([number << 3 | 2, len(payload)]) + payload


NAME, SEVEN = _field(1, b"n"), _field(2, _field(3, _field(1, b"\x07")))
UNPACKED = bytes([0x08, 5, 0x08, 0x85, 1])  # two varints, each with a tag
UNUSUAL = {
    _field(1, _field(1, NAME + _field(2, _field(3, UNPACKED)))): [5, 133],
    _field(1, _field(1, SEVEN + NAME)): [7],  # the value first
    _field(1, _field(1, NAME + SEVEN)) + _field(1, b""): [7],  # features in two pieces
    _field(1, _field(1, NAME + SEVEN) + _field(1, NAME + _field(2, _field(3, _field(1, b"\x09"))))): [9],  # twice
    _field(1, _field(1, NAME + _field(2, _field(3, _field(1, b"\x01") + _field(1, b"\x02"))))): [1, 2],
    _field(1, _field(1, NAME + _field(2, b""))): None,
    b"\x0a\x80\x00": None,  # a length of more bytes than it needs
}


def test_unusual_messages_are_read_as_protocol_buffers_do():
    for message, expected in UNUSUAL.items():
        theirs = tf.train.Example.FromString(message).features.feature
        assert list(theirs["n"].int64_list.value) == (expected or [])
    found, problems = _read(list(UNUSUAL), pa.schema([("n", pa.list_(pa.int64()))]))
    assert problems == {}
    assert [row["n"] for row in found] == list(UNUSUAL.values())


@settings(max_examples=200)
@given(st.binary(max_size=40), st.integers(0, 60), st.integers(0, 255))
def test_damaged_messages_are_told_exactly_when_protocol_buffers_cannot_read_them(noise, place, byte):
    usual = tf.train.Example(
        features=tf.train.Features(
            feature={
                "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 300, -1])),
                "t": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"ab", b""])),
            }
        )
    ).SerializeToString()
    changed = bytearray(usual)
    changed[place % len(usual)] = byte
    schema = pa.schema([("n", pa.list_(pa.int64())), ("t", pa.list_(pa.binary()))])
    messages = [usual, noise, bytes(changed), usual[: place % len(usual)], usual]
    found, problems = _read(messages, schema)
    assert found[0] == found[4] == {"n": [1, 300, -1], "t": [b"ab", b""]}
    for row, message in enumerate(messages):
        try:
            theirs = tf.train.Example.FromString(message).features.feature
        except Exception:
            assert row in problems
            continue
        for name, kind in (("n", "int64_list"), ("t", "bytes_list")):
            has = theirs[name].WhichOneof("kind") if name in theirs else None
            if has not in (kind, None):
                assert row in problems
            elif row not in problems:
                assert found[row][name] == (list(getattr(theirs[name], kind).value) if has else None)


def test_features_that_do_not_fit_are_told_by_record():
    good = tf.train.Example().SerializeToString()
    for kind, feature, reason in (
        (pa.int64(), {"int64_list": tf.train.Int64List(value=[1, 2])}, "has 2 values"),
        (pa.int64(), {"float_list": tf.train.FloatList(value=[1])}, "is a FloatList"),
        (pa.int8(), {"int64_list": tf.train.Int64List(value=[128])}, "cannot hold"),
        (pa.string(), {"bytes_list": tf.train.BytesList(value=[b"\xff"])}, "not UTF-8"),
    ):
        bad = tf.train.Example(features=tf.train.Features(feature={"n": tf.train.Feature(**feature)}))
        found, problems = _read([good, bad.SerializeToString(), good], pa.schema([("n", kind)]))
        assert (len(found), list(problems)) == (3, [1])
        assert reason in problems[1]


def test_frames_are_those_of_tensorflow(tmp_path):
    """That they are read, also in parts, is in ``test_tfrecord_files.py``."""
    records = [b"", b"a", b"x" * 1000, bytes(70_000)]
    with tf.io.TFRecordWriter(f"{tmp_path}/theirs") as writer:
        for record in records:
            writer.write(record)
    assert bytes(framed(pa.array(records, pa.large_binary()))) == (tmp_path / "theirs").read_bytes()
