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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight
from msgspec import structs

from tfos_ml import errors
from tfos_ml.agent import row_outbox
from tfos_ml.agent.row_outbox import LONG_POLL_SECONDS, size_of
from tfos_ml.data import blocks, spool
from tfos_ml.data.file_plan import FileUnit
from tfos_ml.protocol.control_client import CALL_TIMEOUT, ControlClient
from tfos_ml.protocol.control_messages import FetchPart, PartsReady, RowPart, TakeParts
from tfos_ml.protocol.graces import LEASE_SECONDS
from tfos_ml.protocol.transport import command, connect

POLL_SECONDS = 0.05
REACH_SECONDS = 3.0  # for a connection to another node
MOST_THREADS = 8


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
            self._size -= size_of(part)
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
        return self._size < row_outbox.WINDOW_BYTES or self._waits_for == peer.rank

    def _ask(self, peer: Peer) -> bool:
        """Take what a node has for this one; whether that is anything."""
        waits = self._waits_for == peer.rank and not peer.parts
        try:
            ready = peer.ask(TakeParts(self._rank, peer.taken, waits))
            for part in ready.parts:
                chunk = None if part.chunk is None else self._moved(peer, part.number, part.chunk)
                self._arrived(peer, structs.replace(part, chunk=chunk))
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
            self._size += size_of(part)
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
