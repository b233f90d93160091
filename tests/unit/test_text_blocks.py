"""Which lines of a file a split has, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tfos_ml.agent.text_blocks import BLOCK_BYTES, LONGEST_LINE, read_blocks

TEXT = b"a\n\nbcd\r\nefghij\r\n\r\nk\n" + b"m" * 9 + b"\nno"


def lines_of(text):
    """Each line and the byte at which it begins."""
    start = 0
    for line in text.splitlines(keepends=True):
        yield start, line
        start += len(line)


@pytest.mark.parametrize("text", [TEXT, TEXT + b"\n", b"", b"\n", b"abc"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_each_line_is_in_the_split_after_whose_start_it_begins(text, size):
    for length in range(1, len(text) + 2):
        for start in range(0, len(text), length):
            end = min(start + length, len(text))
            expected = [line for place, line in lines_of(text) if start < place <= end or place == start == 0]
            blocks = list(read_blocks(pa.BufferReader(text), start, end, size))
            found = b"".join(block.content for block in blocks)
            assert found == b"".join(expected) + b"\n" * (bool(expected) and not expected[-1].endswith(b"\n"))
            assert all(block.content.endswith(b"\n") for block in blocks)
            assert all((text + b"\n")[block.offset :].startswith(block.content) for block in blocks)


def test_a_line_that_does_not_end_is_given_up():
    stream = pa.BufferReader(b"short\n" + b"x" * (LONGEST_LINE + 2 * BLOCK_BYTES) + b"\nmore\n")
    blocks = list(read_blocks(stream, 0, stream.size()))
    assert [block.content[:5] for block in blocks] == [b"short", b"xxxxx"]
    assert not blocks[-1].content.endswith(b"\n")
