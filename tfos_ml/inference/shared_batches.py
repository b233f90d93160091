"""Exchanges Arrow batches between two processes of a host in shared memory.

Each side of a connection (a stream socket) writes its batches to its own memory file, as an Arrow IPC stream, and sends
the length of the stream. The other side reads the batch without a copy. A batch is valid until its reader sends the
next message, because the writer may then overwrite it.
"""

from __future__ import annotations

import mmap
import os
import socket

import pyarrow as pa

from tfos_ml.protocol.codec import MessageError, Struct, decode, encode
from tfos_ml.protocol.frames import receive_frame, send_frame

_SHOWN_CHARACTERS = 8192


class Ready(Struct, frozen=True):
    """The first message of the server: it serves this connection."""

    pid: int


class BatchSent(Struct, frozen=True):
    """A batch is in the sender's memory file. A new or larger memory file is sent with this, as a descriptor."""

    size: int  # of the stream, in bytes


class ScoringFailed(Struct, frozen=True):
    """The server could not score a batch."""

    error: str  # name of the exception's class
    message: str
    traceback: str


Message = Ready | BatchSent | ScoringFailed


class SharedBatches:
    """One side of a connection, a stream socket, which is closed with this object; not thread-safe."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self._ours: mmap.mmap | None = None
        self._theirs: mmap.mmap | None = None

    def send(self, message: Message) -> None:
        """Send a message other than a batch."""
        send_frame(self.connection, encode(message))

    def fail(self, error: BaseException, traceback: str) -> None:
        """Send an error."""
        message = str(error)[:_SHOWN_CHARACTERS]
        self.send(ScoringFailed(type(error).__name__, message, traceback[-_SHOWN_CHARACTERS:]))

    def send_batch(self, batch: pa.RecordBatch) -> None:
        """Send a batch; batches that were read from the other side become invalid."""
        measured = pa.MockOutputStream()
        _write(measured, batch)
        message = encode(BatchSent(measured.size()))
        if self._ours is not None and len(self._ours) >= measured.size():
            _write(pa.FixedSizeBufferWriter(pa.py_buffer(self._ours)), batch)
            send_frame(self.connection, message)
            return
        descriptor = os.memfd_create("tfos_ml-batches")
        try:
            os.ftruncate(descriptor, measured.size())
            self._ours = mmap.mmap(descriptor, measured.size())
            _write(pa.FixedSizeBufferWriter(pa.py_buffer(self._ours)), batch)
            send_frame(self.connection, message, [descriptor])
        finally:
            os.close(descriptor)

    def receive(self) -> Message:
        """The next message.

        Raises ``ConnectionError`` if the other side has closed the connection, ``TimeoutError`` if it sends nothing.
        """
        received = receive_frame(self.connection, max_descriptors=1)
        if received is None:
            raise ConnectionError("the other side has closed the connection")
        content, descriptors = received
        for descriptor in descriptors:
            self._theirs = mmap.mmap(descriptor, 0)
            os.close(descriptor)
        message: Message = decode(Message, content)  # type: ignore[arg-type]
        return message

    def read(self, sent: BatchSent) -> pa.RecordBatch:
        """The batch of a message, in the sender's memory; no copy is made."""
        if self._theirs is None or len(self._theirs) < sent.size:
            raise MessageError(f"{sent} has no memory")
        return pa.ipc.open_stream(pa.py_buffer(self._theirs)[: sent.size]).read_next_batch()

    def copy(self, sent: BatchSent) -> pa.RecordBatch:
        """A copy of the batch of a message."""
        if self._theirs is None:
            raise MessageError(f"{sent} has no memory")
        return pa.ipc.open_stream(pa.py_buffer(self._theirs[: sent.size])).read_next_batch()

    def close(self) -> None:
        """Close the connection; batches that were read stay valid."""
        self.connection.close()


def _write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
