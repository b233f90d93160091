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
        delimiter = re.escape(text.delimiter.encode())
        blanks = b"[ ]" if text.delimiter == "\t" else b"[ \t]"
        self._outer_blank = re.compile(
            b"(?:^|(?<=[\n" + delimiter + b"]))" + blanks + b"|" + blanks + b"(?=[\r\n" + delimiter + b"])"
        )
        self._hexadecimal = re.compile(b"(?:^|[\n" + delimiter + b"])-?0[xX]")
        self._has_integers = any(pa.types.is_integer(kind) for kind in text.types.values())

    def without_header(self, blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
        """The same lines without the first that is not empty, if that is a header."""
        is_before = self._text.has_header
        for block in blocks:
            if is_before:
                lines = block.content.lstrip(b"\r\n")
                is_before = not lines
                lines = lines[lines.find(b"\n") + 1 :]
                block = TextBlock(lines, block.offset + len(block.content) - len(lines))
            yield block

    def rows(self, block: TextBlock) -> pa.Table:
        """The rows of a block; raises ``UncertainLinesError``."""
        content = block.content
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
        if b" " in content or b"\t" in content:
            found = self._outer_blank.search(content)
            if found:
                raise UncertainLinesError("a blank at an end of a field", found.start())
