"""Parquet files, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tfos_ml.agent.file_reader import BATCH_BYTES, FileReader, changed, check_unchanged, reading, with_constants
from tfos_ml.common import filesystems
from tfos_ml.data.file_plan import FilePiece, FilePlan, FileUnit, PlannedFile


class ParquetReader(FileReader):
    """The file that was read last stays open, since row groups of a large one are in several units."""

    def __init__(self, plan: FilePlan) -> None:
        super().__init__(plan)
        self._file: PlannedFile | None = None
        self._parquet: pq.ParquetFile | None = None
        self._source: pa.NativeFile | None = None

    def _batches(self, unit: FileUnit) -> Iterator[pa.RecordBatch]:
        for number, piece in enumerate(unit.pieces):
            yield from self._piece(piece)
            if number + 1 == len(unit.pieces) or unit.pieces[number + 1].file != piece.file:
                check_unchanged(self._plan.files[piece.file])

    def _piece(self, piece: FilePiece) -> Iterator[pa.RecordBatch]:
        file = self._plan.files[piece.file]
        columns, rows = self._plan.read_columns, 0
        with reading(file):
            parquet = self._open(file)
            for group in piece.row_groups:
                size = _batch_rows(parquet.metadata.row_group(group), columns)
                for batch in parquet.iter_batches(size, row_groups=[group], columns=columns):
                    rows += batch.num_rows
                    yield with_constants(batch, self._plan, file)
        if rows != piece.rows:
            raise changed(file, f"row groups of {rows} rows instead of {piece.rows}")

    def _open(self, file: PlannedFile) -> pq.ParquetFile:
        if file is not self._file:
            self.close()
            check_unchanged(file)
            filesystem, path = filesystems.open_uri(file.uri)
            self._source = filesystem.open_input_file(path)
            self._parquet = pq.ParquetFile(self._source, pre_buffer=not isinstance(filesystem, fs.LocalFileSystem))
            self._file = file
        return self._parquet

    def close(self) -> None:
        """Close the file that is open."""
        if self._source is not None:
            self._source.close()
        self._file = self._parquet = self._source = None


def _batch_rows(group: Any, columns: list[str]) -> int:
    """Rows of a row group that are about ``BATCH_BYTES`` when they are decoded."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    wanted = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns]
    size = sum(max(chunk.total_uncompressed_size, 8 * chunk.num_values) for chunk in wanted)
    return max(1, min(group.num_rows, BATCH_BYTES * group.num_rows // max(1, size)))
