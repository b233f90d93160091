"""Arrow batches that two processes of a host hand each other in shared memory.

Each side of a connection (a Unix socket that keeps the bounds of messages) writes the batches that it sends into a
file in memory of its own, as an Arrow IPC stream, and says how long it is; the other side reads it where it lies. What
was read is valid until the next message is sent: who has read it then may write again.
"""

from __future__ import annotations

import mmap
import os
import socket
from dataclasses import dataclass

import pyarrow as pa

from tfos_ml.protocol.codec import MessageError, decode_tagged, encode_tagged

KIND = socket.SOCK_SEQPACKET
_TEXT_BYTES = 128 << 10  # two texts of all characters shown, each escaped as JSON has it
_SHOWN_CHARACTERS = 8192


@dataclass(frozen=True)
class Ready:
    """The server serves this connection; the first message on it."""

    pid: int


@dataclass(frozen=True)
class BatchSent:
    """A batch lies in the sender's memory; its first one, and each larger one, comes as a descriptor with this."""

    size: int  # of the stream, in bytes


@dataclass(frozen=True)
class ScoringFailed:
    """The server could not do it."""

    error: str  # name of the exception's class
    message: str
    traceback: str


Message = Ready | BatchSent | ScoringFailed
_KINDS: dict[str, type[Message]] = {cls.__name__: cls for cls in (Ready, BatchSent, ScoringFailed)}


class SharedBatches:
    """One side of a connection; not for several threads.

    Parameters
    ----------
    connection : socket.socket
        Of kind ``KIND``; closed with this object.
    """

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self._ours: mmap.mmap | None = None
        self._theirs: mmap.mmap | None = None

    def send(self, message: Message) -> None:
        """Send a message other than a batch."""
        self.connection.sendall(encode_tagged(message).encode())

    def fail(self, error: BaseException, traceback: str) -> None:
        """Say what went wrong."""
        shown = str(error)[:_SHOWN_CHARACTERS]
        self.send(ScoringFailed(type(error).__name__, shown, traceback[-_SHOWN_CHARACTERS:]))

    def send_batch(self, batch: pa.RecordBatch) -> None:
        """Send a batch; what was read from the other side is not valid any more."""
        measured = pa.MockOutputStream()
        _write(measured, batch)
        message = encode_tagged(BatchSent(measured.size())).encode()
        if self._ours is not None and len(self._ours) >= measured.size():
            _write(pa.FixedSizeBufferWriter(pa.py_buffer(self._ours)), batch)
            self.connection.sendall(message)
            return
        descriptor = os.memfd_create("tfos_ml-batches")
        try:
            os.ftruncate(descriptor, measured.size())
            self._ours = mmap.mmap(descriptor, measured.size())
            _write(pa.FixedSizeBufferWriter(pa.py_buffer(self._ours)), batch)
            socket.send_fds(self.connection, [message], [descriptor])
        finally:
            os.close(descriptor)

    def receive(self) -> Message:
        """The next message.

        Raises
        ------
        ConnectionError, TimeoutError
            If the other side has gone, or says nothing for as long as the connection's timeout.
        """
        text, descriptors, _, _ = socket.recv_fds(self.connection, _TEXT_BYTES, 1)
        for descriptor in descriptors:
            self._theirs = mmap.mmap(descriptor, 0)
            os.close(descriptor)
        if not text:
            raise ConnectionError("the other side has gone")
        return decode_tagged(_KINDS, text)

    def read(self, sent: BatchSent) -> pa.RecordBatch:
        """The batch of a message, in the sender's memory."""
        if self._theirs is None or len(self._theirs) < sent.size:
            raise MessageError(f"{sent} has no memory")
        return pa.ipc.open_stream(pa.py_buffer(self._theirs)[: sent.size]).read_next_batch()

    def copy(self, sent: BatchSent) -> pa.RecordBatch:
        """The batch of a message, in memory of its own."""
        if self._theirs is None:
            raise MessageError(f"{sent} has no memory")
        return pa.ipc.open_stream(pa.py_buffer(self._theirs[: sent.size])).read_next_batch()

    def close(self) -> None:
        """End the connection; batches that were read stay valid."""
        self.connection.close()


def _write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
