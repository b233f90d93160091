"""Sorts rows on disk into files, one for each window of a pass, to read them in random order.

If windows of a permutation of all rows were read directly, nearly every batch would be read for every window. Instead,
all batches are read once, in the order of the disk. Each row is appended to the file of its window. Then the files are
read one after another. This takes three times the traffic of one pass, all of it sequential, and disk space for a
second copy of the rows.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_ml.data.row_order import Int64s
from tfos_ml.data.spool import DISK_CODEC, room_in
from tfos_ml.worker.rows import Part, RowFormat, Rows, joined
from tfos_ml.worker.shuffle_windows import Load
from tfos_ml.worker.stored_batches import StoredBatches, open_stored

MOST_FILES = 256  # open at a time


def readings(order: Int64s, bounds: Int64s, starts: Int64s) -> float:
    """How often a batch is read in a pass on average, if windows ``order[bounds[i] : bounds[i + 1]]`` are loaded."""
    batches = len(starts) - 1
    batch_of = np.searchsorted(starts, order[: bounds[-1]], side="right") - 1
    windows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return len(np.unique(windows * batches + batch_of)) / max(1, batches)


@contextlib.contextmanager
def scattered(
    form: RowFormat, batches: StoredBatches, starts: Int64s, order: Int64s, bounds: Int64s
) -> Generator[Load]:
    """A function that loads the windows ``order[bounds[i] : bounds[i + 1]]``, one after another, from files."""
    window_of = np.full(starts[-1], -1, np.int32)  # -1: the pass leaves the row out
    window_of[order[: bounds[-1]]] = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
    directory = Path(tempfile.mkdtemp(prefix="pass-", dir=batches.directory))
    try:
        paths = [directory / f"{window:06d}.arrow" for window in range(len(bounds) - 1)]
        with room_in(directory):
            _scatter(batches, starts, window_of, paths, rows_at_a_time=int(np.diff(bounds).max(initial=1)) // 2)
        remaining = iter(paths)

        def load(positions: Int64s, carried: Sequence[Part]) -> Rows:
            path = next(remaining)
            batches = _read(path) if len(positions) else iter(())
            parts = ((form.views(b), np.arange(b.num_rows)) for b in batches)
            rows = joined(form, len(positions) + sum(len(at) for _, at in carried), chain(carried, parts))
            path.unlink(missing_ok=True)
            return rows

        yield load
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _scatter(batches: StoredBatches, starts: Int64s, window_of: Any, paths: list[Path], rows_at_a_time: int) -> None:
    """Append every row to the file of its window, in the order of the batches."""
    with contextlib.ExitStack() as stack:
        writers: dict[int, Any] = {}
        for first, table in _tables(batches, starts, rows_at_a_time):
            windows = window_of[first : first + table.num_rows]
            by_window = np.argsort(windows, kind="stable")
            numbers, firsts = np.unique(windows[by_window], return_index=True)
            for number, rows in zip(numbers.tolist(), np.split(by_window, firsts[1:]), strict=True):
                if number < 0:
                    continue
                if number not in writers:
                    writers[number] = stack.enter_context(_writer(paths[number], table.schema))
                writers[number].write_table(table.take(pa.array(rows)).combine_chunks())


def _tables(batches: StoredBatches, starts: Int64s, rows: int) -> Iterator[tuple[int, pa.Table]]:
    """Tables of consecutive batches with about `rows` rows, each with the position of its first row."""
    first = 0
    while first < len(batches):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + rows, side="right")) - 1)
        last = min(last, len(batches))
        yield int(starts[first]), pa.Table.from_batches([batches[i] for i in range(first, last)]).combine_chunks()
        first = last


@contextlib.contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=DISK_CODEC)) as writer,
    ):
        yield writer


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    reader = open_stored(str(path))
    return (reader.get_batch(i) for i in range(reader.num_record_batches))
