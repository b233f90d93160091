"""The rows of a node: the interface to them, and those of its own Spark task, which come as Arrow batches.

Of those, at most ``WINDOW_BYTES`` (and one chunk) are unread, until the train function says how it reads and while it
streams rows; the task waits for space. There is no such bound for ``ctx.dataset()``, which needs all rows before the
first step, and for feeds of several epochs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.agent.task_input import polled
from tfos_ml.common.timeouts import POLL_SECONDS
from tfos_ml.data import spool
from tfos_ml.data.arrow import (
    Extents,
    check_extents,
    check_vector_size,
    list_extents,
    merge_extents,
    to_storage,
    value_bytes,
)
from tfos_ml.data.row_checks import RowChecks
from tfos_ml.data.row_order import pack_counts, partition_counts, total_counts
from tfos_ml.data.schema import ROW_COLUMN
from tfos_ml.errors import FeedTimeoutError
from tfos_ml.protocol.control_messages import ProgressAnswer
from tfos_ml.protocol.messages import ChunkReady, ChunkReleased, EndOfInput, Message, Reading, RowCounts
from tfos_ml.protocol.node_task import NodeTask

VALIDATION_COLUMN = "validation"
WINDOW_BYTES = 256 << 20
"""Unread bytes, at most, for a train function that reads its rows once."""

Send = Callable[[Message], None]
"""Sends a message to the TensorFlow process without waiting for it."""


class RowSource(Protocol):
    """Writes rows to the spool and announces them to the TensorFlow process."""

    location: str | None  # where feed tasks connect, if they feed this node
    rows: dict[str, int]  # by stream, "train" and "validation"
    skipped: int  # rows left out by ``handleInvalid="skip"``
    size: int  # bytes of the other rows
    example: bytes | None  # features of the first rows as an Arrow stream, if the run wants an example

    def start(self) -> None:
        """Prepare for rows."""
        return

    def check(self) -> None:
        """Raise an error that occurred outside of :meth:`feed`."""
        return

    def feed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[float]:
        """Write rows until there are no more, or the train function wants no more.

        Yields whenever the supervisor may check its
        process; the value is the number of seconds for which there is nothing to do.
        """
        ...

    def handle_message(self, message: Message) -> bool:
        """Handle a message of the process; False if it is not about rows."""
        ...

    def take_answer(self, answer: ProgressAnswer) -> None:
        """Handle an answer of the driver; called in a thread."""
        return

    def counts(self) -> RowCounts | None:
        """What the other nodes need to agree on the steps; None if not known yet."""
        ...

    def progress(self) -> dict[str, Any]:
        """The fields of :class:`NodeProgress` about rows."""
        ...

    def finish(self) -> None:
        """Announce the end of the input to the process."""
        ...

    def close(self) -> None:
        """Stop taking rows, because the train function has ended."""
        return

    def stop(self) -> None:
        """Stop serving, because the node ends."""
        return


MakeRowSource = Callable[[NodeTask, spool.SpoolDirectories, Send], RowSource]


class Feeder(RowSource):
    """Writes rows to the spool and announces each chunk to the TensorFlow process; see :class:`RowSource`.

    Batches hold the columns of the task's schema by position, then the row ids, then, if there are validation rows, a
    boolean that marks them.
    """

    location: str | None = None

    def __init__(self, task: NodeTask, directories: spool.SpoolDirectories, send: Send):
        self._schema = schema = task.schema
        self._timeout = task.settings.feed_timeout
        self._example_rows = task.settings.telemetry.example_rows
        self._send = send
        self._writers = {
            name: spool.SpoolWriter(directories, name, partial(self._announce, name))
            for name in ("train", "validation")
        }
        self._outstanding: dict[str, int] = {}
        self._counts = np.zeros(0, dtype=np.int64)
        self._checks = RowChecks(schema)
        self._extents: list[Extents] = [[] for _ in schema.columns]
        self.rows = {"train": 0, "validation": 0}
        self.skipped = 0
        self.size = 0
        self.example: bytes | None = None
        self._reading = Reading("", keeps_rows=False)
        self._train_bytes = 0
        self._complete = False

    def feed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[float]:
        """See :class:`RowSource`. A thread reads and checks the next batch while this one is written.

        Raises as :meth:`RowChecks.kept`, ``ShapeError``, ``NoRoomError``, and ``FeedTimeoutError`` if rows have to wait
        too long for space.
        """
        for checked in polled(map(self._checked, batches)):
            if checked is not None:
                self._write_checked(checked)
            yield POLL_SECONDS if checked is None else 0.0
            deadline = time.monotonic() + self._timeout
            while not (self._is_terminated or self._has_room()):
                if time.monotonic() > deadline:
                    raise FeedTimeoutError(
                        f"the train function took no rows for feedTimeout={self._timeout:g} s while "
                        "more were waiting. Read them with ctx.dataset() or ctx.get_data_feed(), end the feed with "
                        "feed.terminate(), or raise feedTimeout"
                    )
                yield POLL_SECONDS
            if self._is_terminated:
                return

    @property
    def _is_terminated(self) -> bool:
        return self._reading.how == "terminated"

    def _has_room(self) -> bool:
        return self._reading.keeps_rows or sum(self._outstanding.values()) < WINDOW_BYTES

    def _write_checked(self, checked: pa.RecordBatch) -> None:
        rows = checked
        if VALIDATION_COLUMN in rows.schema.names:
            marked = rows.column(VALIDATION_COLUMN)
            rows = rows.drop_columns([VALIDATION_COLUMN])
            self._write("validation", rows.filter(marked))
            rows = rows.filter(pc.invert(marked))
        self._write("train", rows)
        self._keep_example(checked)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch without skipped ones, which are counted all the same, because row ids include them."""
        if batch.num_rows:  # without rows, an array may have no memory
            row_ids = np.asarray(np.from_dlpack(batch.column(ROW_COLUMN)), np.int64)  # without pandas
            self._counts = total_counts([self._counts, partition_counts(row_ids)])
        specs = self._schema.columns
        columns = [to_storage(column, spec) for column, spec in zip(batch.columns, specs, strict=False)]
        kept = self._checks.rows_to_keep(columns)
        if kept is not None:
            columns, batch = [column.filter(kept) for column in columns], batch.filter(kept)
            self.skipped += len(kept) - batch.num_rows
        return pa.RecordBatch.from_arrays([*columns, *batch.columns[len(specs) :]], batch.schema.names)

    def _keep_example(self, batch: pa.RecordBatch) -> None:
        if self.example is not None or not self._example_rows or not batch.num_rows:
            return
        features = batch.select(self._schema.of("feature")).slice(0, self._example_rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, features.schema) as writer:
            writer.write_batch(features)
        self.example = sink.getvalue().to_pybytes()

    def _write(self, stream: str, batch: pa.RecordBatch) -> None:
        """Write rows, and note their shapes and sizes; raises ``ShapeError``."""
        if not batch.num_rows:
            return
        for i, spec in enumerate(self._schema.columns):
            extents = list_extents(batch.column(i))
            if spec.constraint.shape is not None:
                check_extents(extents, spec.constraint.shape, spec.column, spec.constraint.tensor)
            self._extents[i] = merge_extents([self._extents[i], extents])
            check_vector_size(self._extents[i], spec)
        self.rows[stream] += batch.num_rows
        self.size += batch.nbytes
        if stream == "train":
            self._train_bytes += sum(map(value_bytes, batch.columns))
        self._writers[stream].write(batch)

    def _announce(self, stream: str, chunk: spool.Chunk) -> None:
        self._outstanding[chunk.path] = chunk.size
        self._send(ChunkReady(stream, chunk))

    def handle_message(self, message: Message) -> bool:
        match message:
            case Reading():
                self._reading = message
            case ChunkReleased():
                del self._outstanding[message.path]
                Path(message.path).unlink()
            case _:
                return False
        return True

    def finish(self) -> None:
        for writer in self._writers.values():
            writer.flush()
        self._complete = True
        self._send(EndOfInput())

    def counts(self) -> RowCounts | None:
        if self._reading.how == "get_data_feed":
            return RowCounts(why="reads with ctx.get_data_feed()")
        if not self._complete:
            return None
        return RowCounts(
            pack_counts(self._counts),
            rows=self.rows,
            skipped=self.skipped,
            extents=[list(e) for e in self._extents],
            size=self._train_bytes,
        )

    def progress(self) -> dict[str, Any]:
        return {"rows": sum(self.rows.values()), "complete": self._complete}
