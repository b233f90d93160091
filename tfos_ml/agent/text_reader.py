"""CSV and JSON files, block by block, as far as it is certain what Spark reads in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import cast

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.csv_text import CSVText
from tfos_ml.agent.file_reader import FileReader, check_unchanged, reading, with_constants
from tfos_ml.agent.json_text import JSONText
from tfos_ml.agent.text_blocks import TextBlock, UncertainLinesError, read_blocks
from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.data.file_plan import CSV, FilePiece, FilePlan, FileUnit, PlannedFile
from tfos_ml.data.text_format import TextFormat

ADVICE = " Set inputPath='auto' or 'spark', or write the rows to Parquet files and read those (spark.read.parquet)."
"""How to go on where the fit does not by itself."""
_SHOWN_CHARACTERS = 200


class TextReader(FileReader):
    """Raises ``UncertainTextError`` where Spark might read something else."""

    def __init__(self, plan: FilePlan) -> None:
        super().__init__(plan)
        text = cast(TextFormat, plan.decoding)
        self._text: CSVText | JSONText = CSVText(text) if plan.format == CSV else JSONText(text)

    def _batches(self, unit: FileUnit) -> Iterator[pa.RecordBatch]:
        for piece in unit.pieces:
            file = self._plan.files[piece.file]
            check_unchanged(file)
            with reading(file):
                for rows in self._piece(piece, file):
                    for batch in rows.to_batches():
                        yield with_constants(batch, self._plan, file)
            check_unchanged(file)

    def _piece(self, piece: FilePiece, file: PlannedFile) -> Iterator[pa.Table]:
        filesystem, path = filesystems.open_uri(file.uri)
        if file.compression is None:
            opened, end = filesystem.open_input_file(path), piece.start + piece.size
        else:
            opened, end = filesystem.open_input_stream(path, compression=file.compression), sys.maxsize
        with opened as stream:
            blocks = read_blocks(stream, piece.start, end)
            for block in self._text.without_header(blocks) if piece.start == 0 else blocks:
                try:
                    yield self._text.rows(block)
                except UncertainLinesError as error:
                    raise _uncertain(file, block, error) from None


def _uncertain(file: PlannedFile, block: TextBlock, error: UncertainLinesError) -> errors.UncertainTextError:
    if error.position < 0:
        where = f"between bytes {block.offset:,} and {block.offset + len(block.content):,}"
    else:
        where = f"at byte {block.offset + error.position:,}"
    found = redact(error)
    if len(found) > _SHOWN_CHARACTERS:  # Arrow shows whole lines
        found = found[:_SHOWN_CHARACTERS] + "..."
    return errors.UncertainTextError(
        f"{redact(file.uri)} has, {where}, what Spark may read otherwise than nodes do: {found}.{ADVICE}"
    )
