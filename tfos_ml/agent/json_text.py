"""Lines of JSON as Arrow reads them, if it is certain that Spark, whose parser is Jackson's, reads the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import json

from tfos_ml.agent.certain_text import check_bytes, check_finite, flat, narrowed
from tfos_ml.agent.text_blocks import TextBlock, UncertainLinesError
from tfos_ml.data.order import Int64s
from tfos_ml.data.text_format import TextFormat

LONGEST_NUMBER, LONGEST_NAME, DEEPEST = 300, 40_000, 900
"""Jackson refuses numbers of more than 1000 characters, names of more than 50,000, and depths of more than 1000."""
_EMPTY_LINES = re.compile(rb"\n[\r\n]+")
_WORD = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf(?:inity)?)\s*[,}\]]")
_NEGATIVE_ZERO = re.compile(rb"-0(?![.\deE])")
_LONG_NAME = re.compile(rb'"(?:[^"\\]|\\.){%d,}"\s*:' % LONGEST_NAME)
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_NUMBER = b"0" * LONGEST_NUMBER


class JSONText:
    """Reads blocks of lines."""

    def __init__(self, text: TextFormat):
        self._types = text.types
        self._parsing = json.ParseOptions(
            explicit_schema=pa.schema([(name, _widened(kind)) for name, kind in text.types.items()]),
            unexpected_field_behavior="ignore",
        )

    def without_header(self, blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
        """The same lines: there is no header."""
        return blocks

    def rows(self, block: TextBlock) -> pa.Table:
        """The rows of a block; raises ``UncertainLinesError``."""
        content = block.content
        check_bytes(content)
        starts, ends = _lines_of(content)
        if (starts == ends).any():
            content = _EMPTY_LINES.sub(b"\n", content).lstrip(b"\r\n")
            if not content:
                return pa.table({name: pa.array([], kind) for name, kind in self._types.items()})
            starts, ends = _lines_of(content)
        _check_lines(content, starts, ends)
        _check_limits(content, starts, ends)
        reading = json.ReadOptions(use_threads=False, block_size=len(content) + 1)
        try:
            rows = json.read_json(pa.BufferReader(content), reading, self._parsing)
        except pa.ArrowInvalid as error:
            raise UncertainLinesError(str(error)) from None
        if rows.num_rows != len(starts):
            raise UncertainLinesError("a line with several objects")
        return pa.table({name: _certain(rows.column(name), kind, content) for name, kind in self._types.items()})


def _widened(kind: pa.DataType) -> pa.DataType:
    """A type that holds floats as doubles, so that it shows if it matters how often they are rounded."""
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_type))
    return pa.float64() if pa.types.is_float32(kind) else kind


def _lines_of(content: bytes) -> tuple[Int64s, Int64s]:
    """Where each line begins, and where it is over but for the characters that end it."""
    codes = np.frombuffer(content, np.uint8)
    newlines = np.flatnonzero(codes == ord("\n"))
    starts = np.concatenate([[0], newlines[:-1] + 1])
    return starts, newlines - (codes[newlines - 1] == ord("\r"))


def _check_lines(content: bytes, starts: Int64s, ends: Int64s) -> None:
    """Raise unless each line is text, and begins and ends as an object does: other ones crash Arrow's parser."""
    codes = np.frombuffer(content, np.uint8)
    others = np.flatnonzero((codes[starts] != ord("{")) | (codes[ends - 1] != ord("}")))
    if len(others):
        raise UncertainLinesError("a line that is no object", int(starts[others[0]]))
    if not content.isascii():
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise UncertainLinesError("bytes that are no UTF-8", error.start) from None


def _check_limits(content: bytes, starts: Int64s, ends: Int64s) -> None:
    """Raise if there are words for numbers, which parsers spell differently, or what Jackson has limits for."""
    if b"NaN" in content or b"Inf" in content:
        _refuse(_WORD.search(content), "NaN or Infinity")
    number = content.translate(_DIGITS).find(_NUMBER)
    if number >= 0:
        raise UncertainLinesError(f"a number of more than {LONGEST_NUMBER} digits", number)
    codes = np.frombuffer(content, np.uint8)
    opened = np.flatnonzero((codes == ord("{")) | (codes == ord("[")))
    if np.diff(np.searchsorted(opened, starts), append=len(opened)).max() > DEEPEST:
        raise UncertainLinesError(f"a line with more than {DEEPEST} objects and arrays")
    if (ends - starts).max() > LONGEST_NAME:
        _refuse(_LONG_NAME.search(content), f"a name of more than {LONGEST_NAME:,} characters")


def _refuse(found: re.Match[bytes] | None, what: str) -> None:
    if found:
        raise UncertainLinesError(what, found.start())


def _certain(column: pa.ChunkedArray, kind: pa.DataType, content: bytes) -> pa.ChunkedArray:
    """A column of a type; raises unless it is certain that Spark has the same values."""
    values = flat(column)
    if not pa.types.is_floating(values.type):
        return column
    check_finite(values)
    numbers = values.drop_null().to_numpy()
    if np.any((numbers == 0) & np.signbit(numbers)):
        _refuse(_NEGATIVE_ZERO.search(content), "-0, which is 0 to Spark")
    return column if column.type == kind else narrowed(column, kind)
