"""Files of any content, each of which is a row: Spark's format ``binaryFile``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from tfos_ml.agent.file_reader import BATCH_BYTES, FileReader, changed, check_unchanged, reading
from tfos_ml.common import filesystems
from tfos_ml.data.file_plan import CONTENT_COLUMN, FilePlan, FileUnit, PlannedFile

_THREADS = 8  # stores answer late, and many at a time


class WholeFileReader(FileReader):
    """Reads some files at a time."""

    def __init__(self, plan: FilePlan) -> None:
        super().__init__(plan)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="whole files")

    def _batches(self, unit: FileUnit) -> Iterator[pa.RecordBatch]:
        waiting: list[PlannedFile] = []
        size = 0
        for piece in unit.pieces:
            if waiting and size + piece.size > BATCH_BYTES:
                yield self._batch(waiting)
                waiting, size = [], 0
            waiting.append(self._plan.files[piece.file])
            size += piece.size
        if waiting:
            yield self._batch(waiting)

    def _batch(self, files: Sequence[PlannedFile]) -> pa.RecordBatch:
        told = {
            name: pa.array([file.constants[number] for file in files], kind)
            for number, (name, kind) in enumerate(self._plan.constants)
        }
        if CONTENT_COLUMN in self._plan.read_columns:
            told[CONTENT_COLUMN] = pa.array(self._pool.map(_content, files), pa.binary())
        else:
            list(self._pool.map(check_unchanged, files))
        return pa.RecordBatch.from_arrays(list(told.values()), list(told))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)


def _content(file: PlannedFile) -> bytes:
    with reading(file):
        filesystem, path = filesystems.open_uri(file.uri)
        with filesystem.open_input_file(path) as source:
            content: bytes = source.read()
        check_unchanged(file)
    if len(content) != file.size:
        raise changed(file, f"{len(content):,} bytes could be read")
    return content
