"""Whatever bytes come from outside, and whatever has become of right ones: errors of a known type, and little memory.

Each format has right examples, what parses it, and the errors that its callers expect.
"""

import base64
import io
import tarfile
import tempfile
import tracemalloc
import zlib
from contextlib import nullcontext, suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfos_ml import errors
from tfos_ml.common.local_files import LocalFile
from tfos_ml.data import blocks, row_order
from tfos_ml.inference import archive
from tfos_ml.protocol import messages
from tfos_ml.protocol.codec import MessageError, decode, encode
from tfos_ml.protocol.failure import Failure, find_failure
from tfos_ml.tfrecord import feature_types
from tfos_ml.tfrecord.decoding import decode_records
from tfos_ml.tfrecord.encoding import encode as encode_records

OVERHEAD, FACTOR = 4 << 20, 64  # bytes that a parser may take, and for each byte of the input
FORMATS = {}


def format_of(*examples, raises=()):
    """Add a parser, with right examples of what it parses."""
    kinds = raises if isinstance(raises, tuple) else (raises,)

    def add(parse):
        FORMATS[parse.__name__] = parse, examples, kinds
        return parse

    return add


def mutated(examples):
    """Right examples in which some bytes have been changed, or pieces cut out, doubled or brought in."""
    places = st.integers(0, 1 << 16)
    piece = st.binary(max_size=12) | st.sampled_from([b"\xff" * 8, b"\x00" * 8, b"\x7f\xff\xff\xff", b"9" * 12, b"-1"])
    changes = st.lists(st.tuples(places, st.integers(0, 40), piece), min_size=1, max_size=4)

    def change(example, all_changes):
        for place, length, new in all_changes:
            at = place % (len(example) + 1)
            example = example[:at] + new + example[at + min(length, len(new)) if length < 20 else at + length :]
        return example

    return st.builds(change, st.sampled_from(examples), changes)


# Messages
FAILURE = Failure(errors.TrainFnError, "raised", "worker", 1, "h", "Traceback ...", "tail", 1)


@format_of(
    encode(FAILURE), encode(messages.Agreement({"w": messages.RowCounts("AA", extents=[[1]])})), raises=MessageError
)
def messages_of_a_channel(content):
    decode(messages.Message, content)


@format_of(FAILURE.encode().encode(), raises=())
def failures_in_the_text_of_an_error(content):
    find_failure(content.decode("utf-8", "replace"))


# Rows

BATCH = pa.record_batch({"x": [[1.0, 2.0], [3.0]], "s": ["a", None]})


def content_of(rows):
    return rows.column("block")[0].as_buffer().to_pybytes()


@format_of(content_of(blocks.pack([BATCH])), content_of(blocks.pack([BATCH[:1], BATCH[1:]])), raises=pa.ArrowInvalid)
def blocks_of_rows(content):
    blocks.check(blocks.message(pa.py_buffer(content), 2))


@format_of(row_order.pack_counts(np.array([3, 0, 5])).encode(), raises=ValueError)
def row_counts(content):
    row_order.unpack_counts(content.decode("utf-8", "replace"))


# TFRecords

TABLE = pa.table({"x": [[1.0, 2.0], [3.0]], "n": [1, None], "s": ["a", "b"], "d": [1.5, 2.5]})
COLUMNS = feature_types.columns_of(TABLE.schema, feature_types.EXAMPLE)
EXAMPLES = encode_records([column.chunk(0) for column in TABLE.columns], COLUMNS, feature_types.EXAMPLE)


@format_of(*EXAMPLES.to_pylist())
def tfrecords(content):
    records = pa.array([content, EXAMPLES[0].as_py(), content], pa.large_binary())
    for kind in (feature_types.EXAMPLE, feature_types.SEQUENCE):
        decode_records(records, feature_types.columns_of(TABLE.schema, kind), kind)


# What is saved


def tar_of(**files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@format_of(tar_of(a=b"1", b=b"22"), tar_of(**{"variables/x": b"3" * 600}), raises=(errors.ModelError, tarfile.TarError))
def archives_of_models(content):
    with tempfile.TemporaryDirectory() as directory:
        archive.Archive(LocalFile.of(content)).unpack(directory)


def test_only_errors_of_known_types():
    for name in FORMATS:
        fuzz(name, 50, fails_as_told)


def sparse_tar():
    """A few hundred bytes that GNU tar reads as a file of a terabyte."""
    member = tarfile.TarInfo("a")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 0
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[386:398], block[398:410], block[483:495] = b"77777777777\0", b"00000000000\0", b"77777777777\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


ZEROS = bytes(128 << 20)
BOMBS = {
    "sparse archive": ("archives_of_models", sparse_tar()),
    "compressed counts": ("row_counts", base64.b64encode(zlib.compress(ZEROS, 1))),
    "compressed failure": (
        "failures_in_the_text_of_an_error", b"<tfos_ml:" + base64.b64encode(zlib.compress(ZEROS, 1)) + b">",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), BOMBS.values(), ids=BOMBS)
def test_what_says_that_it_is_large_takes_little_memory(name, content):
    parse, _, raises = FORMATS[name]
    takes_little_memory(parse, content, raises, 48 << 20)
    with pytest.raises(raises) if raises else nullcontext():
        parse(content)


@pytest.mark.chaos
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.timeout(3600)
def test_the_same_at_length_and_in_little_memory(name):
    fuzz(name, 20_000, takes_little_memory)


def fuzz(name, examples, check):
    """Parse right content, which has to succeed, and check so many times wrong content."""
    parse, right, raises = FORMATS[name]
    for content in right:
        parse(content)

    @settings(max_examples=examples, derandomize=True, database=None)
    @given(mutated(right) | st.binary(max_size=200))
    def checked(content):
        check(parse, content, raises)

    checked()


def fails_as_told(parse, content, raises):
    with suppress(*raises):
        parse(content)


def takes_little_memory(parse, content, raises, overhead=OVERHEAD):
    # There are two trials, because Python's table of interned strings may grow in one, by megabytes.
    assert any(peak_memory(fails_as_told, parse, content, raises) < overhead + FACTOR * len(content) for _ in range(2))


def peak_memory(function, *arguments):
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
