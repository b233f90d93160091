"""Rows that a node has read from files for the others, until they take them (:mod:`tfos_ml.agent.row_exchange`)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from tfos_ml.agent.feeder import VALIDATION_COLUMN
from tfos_ml.data import blocks, spool
from tfos_ml.protocol.control_messages import FetchPart, PartsReady, RowPart, TakeParts
from tfos_ml.protocol.transport import Service

WINDOW_BYTES = 256 << 20
"""Of chunks that wait to be taken by other nodes, or, on their way in, by this one."""
PENDING_BYTES = 64 << 20
"""Of rows that are not in chunks yet, about."""
LONG_POLL_SECONDS = 0.2
MOST_PARTS = 500  # in one answer


class Outbox:
    """Chunks of rows that this node has read, by the node that they are for, until that has taken them.

    One thread writes; any may take.
    """

    def __init__(self, directories: spool.SpoolDirectories, ranks: Sequence[int]):
        self._directories = directories
        self._changed = threading.Condition()
        self._parts: dict[int, deque[RowPart]] = {rank: deque() for rank in ranks}
        self._numbers: Counter[int] = Counter()
        self._writers: dict[tuple[int, str], spool.SpoolWriter] = {}
        self._unit = 0
        self._unit_rows: Counter[int] = Counter()
        self._size = 0
        self._pending = 0  # bytes that writers may hold
        self._steps = 0
        self._hungry: set[int] = set()  # nodes that cannot go on without rows of this one
        self._left: set[int] = set()
        self._closed = False

    # For the reader

    def wait_for_room(self) -> bool:
        """Wait until more may be read; False if nobody wants more."""
        with self._changed:
            self._steps += 1
            while self._is_wanted() and self._size >= WINDOW_BYTES and not self._is_anyone_starving():
                self._changed.wait(LONG_POLL_SECONDS)
            return self._is_wanted()

    def _is_wanted(self) -> bool:
        return not self._closed and len(self._left) < len(self._parts)

    def _is_anyone_starving(self) -> bool:
        return any(not self._parts[rank] for rank in self._hungry)

    def begin(self, unit: int) -> None:
        """Begin a unit."""
        self._unit = unit
        self._unit_rows.clear()

    def write(self, rank: int, rows: pa.RecordBatch) -> None:
        """Add rows of the unit for a node; raises ``NoRoomError``."""
        if rank not in self._parts or rank in self._left:
            return
        self._unit_rows[rank] += rows.num_rows
        for stream, part in _by_stream(rows):
            if part.num_rows:
                self._writer(rank, stream).write(part)
                self._pending += part.nbytes
        if self._pending > PENDING_BYTES:
            self._flush()

    def end(self) -> None:
        """End the unit: all of its rows have been written."""
        self._flush()
        for rank in self._parts:
            self._add(rank, RowPart(0, self._unit, self._unit_rows[rank]))

    def _writer(self, rank: int, stream: str) -> spool.SpoolWriter:
        if (rank, stream) not in self._writers:
            publish = partial(self._publish, rank, stream)
            self._writers[rank, stream] = spool.SpoolWriter(self._directories, f"for-{rank}-{stream}", publish)
        return self._writers[rank, stream]

    def _flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()
        self._pending = 0

    def _publish(self, rank: int, stream: str, chunk: spool.Chunk) -> None:
        self._add(rank, RowPart(0, self._unit, chunk.rows, stream, chunk))

    def _add(self, rank: int, part: RowPart) -> None:
        with self._changed:
            if rank in self._left or self._closed:
                _delete(part)
                return
            self._parts[rank].append(structs.replace(part, number=self._numbers[rank]))
            self._numbers[rank] += 1
            self._size += size_of(part)
            self._changed.notify_all()

    # For those who take rows

    def take(self, call: TakeParts) -> PartsReady:
        """Answer what there is for a node; waits a little for a node that cannot go on without it."""
        deadline = time.monotonic() + LONG_POLL_SECONDS
        with self._changed:
            parts = self._parts_of(call.rank)
            while parts and parts[0].number < call.taken:
                self._drop(parts.popleft())
            if call.leaves:
                self._left.add(call.rank)
                while parts:
                    self._drop(parts.popleft())
            (self._hungry.add if call.waits else self._hungry.discard)(call.rank)
            self._changed.notify_all()
            while call.waits and not parts and not self._closed and time.monotonic() < deadline:
                self._changed.wait(LONG_POLL_SECONDS)
            return PartsReady(list(islice(parts, MOST_PARTS)), self._steps)

    def _parts_of(self, rank: int) -> deque[RowPart]:
        if rank not in self._parts:
            raise pa.ArrowKeyError(f"rank {rank} takes no rows, expected one of {sorted(self._parts)}")
        return self._parts[rank]

    def _drop(self, part: RowPart) -> None:
        self._size -= size_of(part)
        _delete(part)

    def _send(self, call: FetchPart, reader: Any, writer: Any) -> None:
        """Send the file of a chunk."""
        with self._changed:
            chunk = next((part.chunk for part in self._parts_of(call.rank) if part.number == call.number), None)
        if chunk is None:
            raise pa.ArrowKeyError(f"there is no chunk {call.number} for rank {call.rank}")
        writer.begin(blocks.MESSAGE_SCHEMA)
        with pa.memory_map(chunk.path) as source:
            writer.write_batch(blocks.message(source.read_buffer(), chunk.rows))
        with contextlib.suppress(StopIteration):  # until the other end has it
            reader.read_chunk()

    def service(self) -> Service:
        """What other nodes may ask for."""
        return Service(actions={TakeParts: self.take}, exchanges={FetchPart: self._send})

    def close(self) -> None:
        """Wait for nobody any more; the files go with the spool."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _by_stream(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    if VALIDATION_COLUMN not in rows.schema.names:
        yield "train", rows
        return
    marked, rows = rows.column(VALIDATION_COLUMN), rows.drop_columns([VALIDATION_COLUMN])
    yield "validation", rows.filter(marked)
    yield "train", rows.filter(pc.invert(marked))


def size_of(part: RowPart) -> int:
    """Bytes of the chunk of a part."""
    return 0 if part.chunk is None else part.chunk.size


def _delete(part: RowPart) -> None:
    if part.chunk is not None:
        Path(part.chunk.path).unlink(missing_ok=True)  # who is on this host has moved it
