"""Files of TFRecords, decoded as the tasks of the format ``tfrecord`` do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pyarrow as pa

from tfos_ml.agent.file_reader import FileReader, check_unchanged, reading
from tfos_ml.common import filesystems
from tfos_ml.data.file_plan import FileUnit
from tfos_ml.tfrecord.files import DataFile
from tfos_ml.tfrecord.plan import ReadPlan


class TFRecordReader(FileReader):
    """Reads all columns: whether a record can be read is a matter of all of them."""

    def _batches(self, unit: FileUnit) -> Iterator[pa.RecordBatch]:
        records = cast(ReadPlan, self._plan.decoding)
        for piece in unit.pieces:
            file = self._plan.files[piece.file]
            check_unchanged(file)
            with reading(file):
                _, path = filesystems.open_uri(file.uri)
                yield from records.read_files([DataFile(file.uri, path, file.size, file.directories)])
            check_unchanged(file)
