"""The supervisor's side of the feed: Arrow batches of one task into its spool.

Until the train function says how it reads, and while it streams, at most ``WINDOW_BYTES``
(and one chunk) are outstanding; whoever feeds waits for room. ``ctx.dataset()``, which needs
all rows before the first step, and feeds of several epochs lift the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data import spool
from tfos_ml.data.arrow import Extents, check_extents, check_vector_size, list_extents, merge_extents, plain
from tfos_ml.data.order import pack_counts, partition_counts
from tfos_ml.data.row_checks import RowChecks
from tfos_ml.data.schema import ROW_COLUMN, FeedSchema
from tfos_ml.protocol.messages import ChunkReady, EndOfInput, Message, RowCounts

WINDOW_BYTES = 256 << 20
VALIDATION_COLUMN = "validation"


class Feeder:
    """Writes rows to the spool and announces each chunk to the TensorFlow process.

    Parameters
    ----------
    schema : FeedSchema
        The columns; batches hold them by position, then the row ids, then, if there are
        validation rows, a boolean that marks them.
    directories : spool.SpoolDirectories
        Where the spool is.
    send : callable
        Sends a message to the TensorFlow process.

    Attributes
    ----------
    location : None
        Rows come in the node's own task; nobody else feeds it.
    skipped : int
        Rows that were left out, as the policies for nulls and NaN say.
    """

    location = None

    def __init__(self, schema: FeedSchema, directories: spool.SpoolDirectories, send: Callable[[Message], None]):
        self._schema = schema
        self._send = send
        self._writers = {
            name: spool.SpoolWriter(directories, name, lambda chunk, name=name: self._announce(name, chunk))  # type: ignore[misc]
            for name in ("train", "validation")
        }
        self._outstanding: dict[str, int] = {}
        self._counts = np.zeros(0, dtype=np.int64)
        self._checks = RowChecks(schema)
        self._extents: list[Extents] = [[] for _ in schema.columns]
        self.rows = {"train": 0, "validation": 0}
        self.skipped = 0
        self.bytes = 0
        self.reading: str | None = None
        self.keeps_rows = False
        self.complete = False

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the rows of one batch; returns them as they came, without those that are left out.

        Raises
        ------
        NullValueError, NonFiniteValueError, LabelRangeError, ShapeError
            If a value is null, NaN or infinite and the policy allows none, or rows are not what the model takes.
        spool.NoRoomError
            If they fit nowhere.
        """
        self._count(batch)
        specs = self._schema.columns
        columns = [plain(column) for column in batch.columns[: len(specs)]]
        kept = self._checks.kept(columns)
        if kept is not None:
            columns, batch = [column.filter(kept) for column in columns], batch.filter(kept)
            self.skipped += len(kept) - batch.num_rows
        checked = pa.RecordBatch.from_arrays([*columns, *batch.columns[len(specs) :]], batch.schema.names)
        if VALIDATION_COLUMN in checked.schema.names:
            marked = checked.column(VALIDATION_COLUMN)
            checked = checked.drop_columns([VALIDATION_COLUMN])
            self._write("validation", checked.filter(marked))
            checked = checked.filter(pc.invert(marked))
        self._write("train", checked)
        return batch

    def _write(self, stream: str, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for i, spec in enumerate(self._schema.columns):
            found = list_extents(batch.column(i), spec.ndim)
            if spec.constraint.shape is not None:
                check_extents(found, spec.constraint.shape, spec.column, spec.constraint.tensor)
            self._extents[i] = merge_extents([self._extents[i], found])
            check_vector_size(self._extents[i], spec)
        self.rows[stream] += batch.num_rows
        self.bytes += batch.nbytes
        self._writers[stream].write(batch)

    def _count(self, batch: pa.RecordBatch) -> None:
        """Count rows by source partition, also those that are left out: row ids count them."""
        if not batch.num_rows:
            return
        found = partition_counts(batch.column(ROW_COLUMN).to_numpy())
        grown = np.zeros(max(len(found), len(self._counts)), dtype=np.int64)
        grown[: len(self._counts)] += self._counts
        grown[: len(found)] += found
        self._counts = grown

    def _announce(self, stream: str, chunk: spool.Chunk) -> None:
        self._outstanding[chunk.path] = chunk.size
        self._send(ChunkReady(stream, chunk))

    def has_room(self) -> bool:
        """Whether another batch may be written now."""
        return self.keeps_rows or sum(self._outstanding.values()) < WINDOW_BYTES

    def release(self, path: str) -> None:
        """Delete a chunk that has been read for the last time."""
        del self._outstanding[path]
        Path(path).unlink()

    def finish(self) -> None:
        """Publish the last rows and announce the end of the input."""
        for writer in self._writers.values():
            writer.flush()
        self.complete = True
        self._send(EndOfInput())

    def counts(self) -> RowCounts | None:
        """What the other nodes need to know to agree on the steps, or why they cannot; None if not known yet."""
        if self.reading == "get_data_feed":
            return RowCounts(why="reads with ctx.get_data_feed()")
        if not self.complete:
            return None
        return RowCounts(
            pack_counts(self._counts), rows=self.rows, skipped=self.skipped, extents=[list(e) for e in self._extents]
        )

    def progress(self) -> dict[str, Any]:
        """What the driver is told."""
        return {"rows": sum(self.rows.values()), "complete": self.complete}

    def hear(self, answer: dict[str, Any]) -> None:
        """Nothing: the driver has nothing to say of these rows."""

    def close(self) -> None:
        """Want no more rows."""
