"""CSV as Arrow reads it, if it is certain that Spark, whose parser is univocity's, reads the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import csv

from tfos_ml.agent.certain_text import check_bytes, check_finite
from tfos_ml.agent.text_blocks import TextBlock, UncertainLinesError
from tfos_ml.data.text_format import TextFormat

_SPECIAL = b'"\\'  # what they mean depends on their surroundings
_MARK = b"\xef\xbb\xbf"  # of byte order: Arrow leaves it out at the begin of all that it reads, Spark of a file only
_ONLY_TABS = re.compile(rb"^\t+\r?$", re.MULTILINE)  # no row to Spark
_TRIMMED = bytes(range(0x21))  # by Java, before Spark looks whether a line is empty
_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]


class CSVText:
    """Reads blocks of lines."""

    def __init__(self, text: TextFormat):
        self._text = text
        self._parsing = csv.ParseOptions(delimiter=text.delimiter, quote_char=False, escape_char=False)
        self._conversion = csv.ConvertOptions(
            column_types=text.types,
            include_columns=list(text.types),
            null_values=[""],
            strings_can_be_null=True,
            true_values=_TRUE,
            false_values=_FALSE,
        )
        delimiter = text.delimiter.encode()
        self._blanks = [b" "] if delimiter == b"\t" else [b" ", b"\t"]
        ends = (b"\n", b"\r", delimiter)
        self._outer = [pair for blank in self._blanks for end in ends for pair in (end + blank, blank + end)]
        self._hexadecimal = re.compile(rb"(?:^|%s)-?0[xX]" % re.escape(delimiter), re.MULTILINE)
        self._has_integers = any(pa.types.is_integer(kind) for kind in text.types.values())

    def without_header(self, blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
        """The same lines without the first that is not empty, if that is a header."""
        is_before = self._text.has_header
        for block in blocks:
            if is_before:
                lines = block.content.lstrip(b"\r\n")
                is_before = not lines
                block = _without_first(block, lines)
            if block.content:
                yield block

    def rows(self, block: TextBlock) -> pa.Table:
        """The rows of a block; raises ``UncertainLinesError``."""
        content = block.content
        _check_begin(content)
        check_bytes(content, _SPECIAL)
        self._check_blanks(content)
        if self._has_integers and (b"0x" in content or b"0X" in content):
            found = self._hexadecimal.search(content)
            if found:
                raise UncertainLinesError("a hexadecimal number", found.start())
        if not content.strip(b"\r\n"):
            return pa.table({name: pa.array([], kind) for name, kind in self._text.types.items()})
        reading = csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=list(self._text.names))
        try:
            rows = csv.read_csv(pa.BufferReader(content), reading, self._parsing, self._conversion)
        except pa.ArrowInvalid as error:
            raise UncertainLinesError(str(error)) from None
        for column in rows.columns:
            check_finite(column)
        return rows

    def _check_blanks(self, content: bytes) -> None:
        """Raise if a field begins or ends with a blank, or a line has nothing else."""
        places = [content.find(pair) for pair in self._outer] if any(b in content for b in self._blanks) else []
        places = [place for place in places if place >= 0] + [0] * (content[:1] in self._blanks)
        if places:
            raise UncertainLinesError("a blank at an end of a field", min(places))
        if content.startswith(b"\t") or b"\n\t" in content:
            found = _ONLY_TABS.search(content)
            if found:
                raise UncertainLinesError("a line of tabs only", found.start())


def _without_first(block: TextBlock, lines: bytes) -> TextBlock:
    """The lines of a block without the first; all of them, which are refused, if Spark might have another one."""
    end = lines.find(b"\n") + 1
    first = lines[:end].rstrip(b"\r\n")
    if block.content.startswith(_MARK) or b"\r" in first or (lines and not first.strip(_TRIMMED)):
        return block
    return TextBlock(lines[end:], block.offset + len(block.content) - len(lines) + end)


def _check_begin(content: bytes) -> None:
    if content.startswith(_MARK):
        raise UncertainLinesError("a byte order mark", 0)
