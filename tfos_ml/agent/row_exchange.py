"""Rows that the nodes of a run read from files for each other: each piece of the files is read by one node.

The plan's units are dealt to the nodes (``data/file_plan.py``). A node reads its own, one after another, and writes the
rows of each node as chunks to its spool, its *outbox*. Each node takes what the others have for it: on one host it
moves the files into its own spool, from other hosts they come over Arrow Flight. It takes the units in the order of the
plan, so its rows have the order that they would have if it read all files itself. A unit is whole once the node that
reads it has said how many rows of it are for the one that takes it.

A reader waits while ``WINDOW_BYTES`` lie in its outbox, unless a node cannot go on without its rows: so nodes that take
rows at different speeds do not stop each other.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from tfos_ml import errors
from tfos_ml.agent.feeder import VALIDATION_COLUMN
from tfos_ml.data import blocks, spool
from tfos_ml.data.file_plan import FileUnit
from tfos_ml.protocol.control_client import CALL_TIMEOUT, ControlClient
from tfos_ml.protocol.control_messages import FetchPart, PartsReady, RowPart, TakeParts
from tfos_ml.protocol.graces import LEASE_SECONDS
from tfos_ml.protocol.transport import Service, command, connect

WINDOW_BYTES = 256 << 20
"""Of chunks that wait to be taken by other nodes, or, on their way in, by this one."""
PENDING_BYTES = 64 << 20
"""Of rows that are not in chunks yet, about."""
POLL_SECONDS = 0.05
LONG_POLL_SECONDS = 0.2
REACH_SECONDS = 3.0  # for a connection to another node
MOST_THREADS = 8
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
            self._parts[rank].append(replace(part, number=self._numbers[rank]))
            self._numbers[rank] += 1
            self._size += _size(part)
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
        self._size -= _size(part)
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


def _size(part: RowPart) -> int:
    return 0 if part.chunk is None else part.chunk.size


def _delete(part: RowPart) -> None:
    if part.chunk is not None:
        Path(part.chunk.path).unlink(missing_ok=True)  # who is on this host has moved it


class Peer:
    """A node that reads for this one; this node itself, without a connection, is one, too."""

    def __init__(self, rank: int, label: str, ask: Callable[[TakeParts], PartsReady]):
        self.rank, self.label = rank, label
        self.ask = ask  # raises ``ArrowException`` if no answer comes
        self.parts: deque[RowPart] = deque()  # that have come, in the own spool
        self.taken = 0
        self.steps = -1  # in which it reads
        self.heard_at = self.changed_at = time.monotonic()  # when it last answered, and had read more

    def fetch(self, call: FetchPart) -> pa.RecordBatch:
        """The message with a chunk that is on another host."""
        raise FileNotFoundError(f"chunk {call.number} of {self.label}")

    def close(self) -> None:
        """End the connection."""


class RemotePeer(Peer):
    """One of the others."""

    def __init__(self, rank: int, label: str, location: str, token: str):
        self._control = ControlClient(location, token)
        self._client = connect(location, token)
        super().__init__(rank, label, self._control.call)

    def fetch(self, call: FetchPart) -> pa.RecordBatch:
        """See :class:`Peer`."""
        try:
            writer, reader = self._client.do_exchange(command(call), flight.FlightCallOptions(timeout=LEASE_SECONDS))
            with writer:
                writer.begin(blocks.MESSAGE_SCHEMA)
                message = reader.read_chunk().data
        except (OSError, StopIteration) as error:  # Arrow's, of a stream that broke
            raise ConnectionError(f"{self.label} has not sent chunk {call.number}: {error}") from error
        blocks.check(message)
        return message

    def close(self) -> None:
        """See :class:`Peer`."""
        self._control.close()
        self._client.close()


class Inbox:
    """What the nodes have read for this one, in the order of the plan; it comes from construction to :meth:`close`."""

    def __init__(
        self,
        rank: int,
        directories: spool.SpoolDirectories,
        work: Sequence[tuple[FileUnit, int]],
        peers: Sequence[Peer],
        timeout: float,
    ):
        self._rank = rank
        self._directories = directories
        self._work = work  # all units, and who reads each
        self._peers = {peer.rank: peer for peer in peers}
        self._timeout = timeout  # seconds within which a node reads something
        self._changed = threading.Condition()
        self._size = 0
        self._waits_for: int | None = None
        self._closed = threading.Event()
        self._problem: BaseException | None = None
        count = min(MOST_THREADS, len(peers))
        self._threads = [
            threading.Thread(target=self._pull, args=(peers[i::count],), name="row exchange", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def chunks(self) -> Iterator[tuple[str, spool.Chunk]]:
        """All chunks, with their streams; raises ``NodeLostError`` if another node does not give all of its rows."""
        for unit, owner in self._work:
            peer, rows = self._peers[owner], 0
            while (part := self._next(peer)) is not None and part.chunk is not None:
                rows += part.rows
                yield part.stream, part.chunk
            if part is None:
                return
            if (part.unit, part.rows) != (unit.number, rows):
                raise errors.NodeLostError(
                    f"{peer.label} has sent {rows} of {part.rows} rows of unit {part.unit}, expected unit {unit.number}"
                )

    def _next(self, peer: Peer) -> RowPart | None:
        """The next part of a node's; None if rows are not wanted any more."""
        began = time.monotonic()
        with self._changed:
            self._waits_for = peer.rank
            while not peer.parts:
                if self._closed.is_set():
                    return None
                if self._problem is not None:
                    raise self._problem
                if time.monotonic() - max(began, peer.changed_at) > self._timeout:
                    raise errors.NodeLostError(
                        f"{peer.label} has read no more rows of the files for feedTimeout={self._timeout:g} s"
                    )
                self._changed.wait(LONG_POLL_SECONDS)
            self._waits_for = None
            part = peer.parts.popleft()
            self._size -= _size(part)
            return part

    def _pull(self, peers: Sequence[Peer]) -> None:
        try:
            while not self._closed.is_set():
                if not sum(self._ask(peer) for peer in peers if self._has_room_for(peer)):
                    self._closed.wait(max(POLL_SECONDS, len(self._peers) / 200))
        except BaseException as error:  # raised where rows are waited for
            with self._changed:
                self._problem = error
                self._changed.notify_all()
        for peer in peers:
            with contextlib.suppress(pa.ArrowException, OSError):
                peer.ask(TakeParts(self._rank, peer.taken, leaves=True))
            peer.close()

    def _has_room_for(self, peer: Peer) -> bool:
        return self._size < WINDOW_BYTES or self._waits_for == peer.rank

    def _ask(self, peer: Peer) -> bool:
        """Take what a node has for this one; whether that is anything."""
        waits = self._waits_for == peer.rank and not peer.parts
        try:
            ready = peer.ask(TakeParts(self._rank, peer.taken, waits))
            for part in ready.parts:
                chunk = None if part.chunk is None else self._moved(peer, part.number, part.chunk)
                self._arrived(peer, replace(part, chunk=chunk))
        except (pa.ArrowException, ConnectionError) as error:
            # Who fails tells the driver, which ends this node, too: this is for one that is cut off.
            if time.monotonic() - peer.heard_at > LEASE_SECONDS:
                raise errors.NodeLostError(f"{peer.label}, which reads files for this node, does not answer") from error
            return False
        peer.heard_at = time.monotonic()
        if ready.steps != peer.steps:
            peer.steps, peer.changed_at = ready.steps, peer.heard_at
        return bool(ready.parts)

    def _moved(self, peer: Peer, number: int, chunk: spool.Chunk) -> spool.Chunk:
        """A chunk in the own spool; raises ``NoRoomError``."""
        name = f"from-{peer.rank}-{number:06d}"
        is_own = peer.rank == self._rank
        if not (is_own or _is_here(chunk)):
            rows, block = blocks.unpack(peer.fetch(FetchPart(self._rank, number)))
            return replace(spool.write_block(self._directories, name, block, rows), nbytes=chunk.nbytes)
        place = self._place_for(chunk, is_own)
        if place is not None:
            path = place / f"{name}.arrow"
            with contextlib.suppress(OSError):  # of another filesystem
                os.rename(chunk.path, path)
                return replace(chunk, path=str(path))
        with pa.memory_map(chunk.path) as source:
            moved = spool.write_block(self._directories, name, source.read_buffer(), chunk.rows)
        return replace(moved, nbytes=chunk.nbytes)

    def _place_for(self, chunk: spool.Chunk, is_own: bool) -> Path | None:
        if is_own:
            return Path(chunk.path).parent
        return self._directories.disk if chunk.on_disk else self._directories.memory_for(chunk.size)

    def _arrived(self, peer: Peer, part: RowPart) -> None:
        with self._changed:
            peer.parts.append(part)
            peer.taken = part.number + 1
            peer.changed_at = time.monotonic()
            self._size += _size(part)
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more rows, and tell the others."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the others know."""
        for thread in self._threads:
            thread.join(CALL_TIMEOUT)


def _is_here(chunk: spool.Chunk) -> bool:
    """Whether a chunk of another node is on this host, and may be read; its directory has a name that no other has."""
    try:
        return os.stat(chunk.path).st_size == chunk.size and os.access(chunk.path, os.R_OK)
    except OSError:
        return False


def is_reached(location: str | None) -> bool:
    """Whether a node can be connected to."""
    if location is None:
        return False
    target = urlsplit(location)
    try:
        socket.create_connection((target.hostname, target.port or 0), REACH_SECONDS).close()
    except OSError:
        return False
    return True
