"""The record batches of a spool. Batches in shared memory are mapped; those on disk are read one by one."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_ml.data.row_order import Int64s
from tfos_ml.data.schema import ROW_COLUMN
from tfos_ml.data.spool import Chunk, read_chunk

OPEN_FILES = 32


@dataclass(frozen=True)
class _OnDisk:
    path: str
    number: int  # in the file


class StoredBatches:
    """The batches of chunks, in order: mapped if in shared memory, else read when asked for. For several threads."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch | _OnDisk] = []
        self._ids: list[Int64s] = []
        self._files: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0  # size that all rows have in memory
        self.nbytes_held = 0  # size of the rows in shared memory
        self.directory: str | None = None  # of the rows on disk; None if there are none

    def add(self, chunk: Chunk) -> None:
        """Add the batches of a chunk; if it is on disk, only the row ids are read now."""
        if chunk.on_disk:
            self.directory = os.path.dirname(chunk.path)
            ids = list(_ids_on_disk(chunk.path))
            self._batches.extend(_OnDisk(chunk.path, number) for number in range(len(ids)))
            self._ids.extend(ids)
        else:
            batches = list(read_chunk(chunk.path))
            self._batches.extend(batches)
            self._ids.extend(batch.column(ROW_COLUMN).to_numpy() for batch in batches)
            self.nbytes_held += chunk.nbytes
        self.nbytes += chunk.nbytes

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> pa.RecordBatch:
        batch = self._batches[number]
        return self._read(batch) if isinstance(batch, _OnDisk) else batch

    @property
    def sizes(self) -> list[int]:
        """Number of rows of each batch, until :meth:`forget_ids`."""
        return [len(ids) for ids in self._ids]

    @property
    def row_ids(self) -> Int64s:
        """Row ids of all batches until :meth:`forget_ids`, shape ``(rows,)``."""
        return np.concatenate([np.zeros(0, np.int64), *self._ids])

    def forget_ids(self) -> None:
        """Free the memory of the row ids."""
        self._ids = []

    def _read(self, batch: _OnDisk) -> pa.RecordBatch:
        with self._lock:
            reader = self._files.pop(batch.path, None)
            if reader is None:
                reader = open_stored(batch.path)
            self._files[batch.path] = reader  # the most recently used is last
            if len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)
            return reader.get_batch(batch.number)


def open_stored(path: str, **options: Any) -> Any:
    """A reader that reads single batches. It does not map the file, because mapped pages count as memory."""
    return pa.ipc.open_file(pa.OSFile(path), options=pa.ipc.IpcReadOptions(use_threads=False, **options))


def _ids_on_disk(path: str) -> list[Int64s]:
    with pa.OSFile(path) as file:
        column = pa.ipc.open_file(file).schema.get_field_index(ROW_COLUMN)
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=[column], use_threads=False))
        return [reader.get_batch(i).column(0).to_numpy().copy() for i in range(reader.num_record_batches)]
