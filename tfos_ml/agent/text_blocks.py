"""Blocks of whole lines: those that Spark's own reader, Hadoop's ``LineRecordReader``, has in a split of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

BLOCK_BYTES = 4 << 20
LONGEST_LINE = 16 << 20
"""In bytes, about: so much is held of a line before it is given up."""


class UncertainLinesError(Exception):
    """Lines that Spark might read otherwise than we do; the text says what is in them."""

    def __init__(self, found: str, position: int = -1):
        super().__init__(found)
        self.position = position  # in the block; -1 if it is not known


@dataclass(frozen=True)
class TextBlock:
    """Lines that follow each other, each with its end."""

    content: bytes
    offset: int  # of its first byte in the text of the file


def read_blocks(stream: pa.NativeFile, start: int, end: int, size: int = BLOCK_BYTES) -> Iterator[TextBlock]:
    """The lines that begin after byte `start`, or at byte 0, and not after `end`; about `size` bytes at a time.

    What is longer than ``LONGEST_LINE`` without the end of a line is the last block, and has none.
    """
    if start:
        stream.seek(start)
    offset, rest, is_within_line = start, b"", start > 0
    while True:
        chunk = stream.read(size)
        lines = rest + chunk
        if is_within_line:
            skipped = lines.find(b"\n") + 1
            is_within_line = not skipped
            lines, offset = (lines[skipped:], offset + skipped) if skipped else (b"", offset + len(lines))
            if offset > end:
                return
        last = lines.find(b"\n", end - offset) + 1 if offset + len(lines) > end else 0
        if last or not chunk:
            if lines:
                yield TextBlock(lines[:last] if last else lines + b"\n", offset)
            return
        whole = lines.rfind(b"\n") + 1
        if whole:
            yield TextBlock(lines[:whole], offset)
        offset, rest = offset + whole, lines[whole:]
        if len(rest) > LONGEST_LINE:
            yield TextBlock(rest, offset)
            return
