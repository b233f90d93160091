"""The connection between a node's supervisor and its TensorFlow process: messages over a socket pair.

The messages are in :mod:`tfos_ml.protocol.messages`. Nothing is unpickled, and no port is opened.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Iterator

from tfos_ml.common.timeouts import CHANNEL_CLOSE_SECONDS, HEARTBEAT_TIMEOUT
from tfos_ml.errors import NodeExitError, VersionMismatchError
from tfos_ml.protocol.codec import MessageError, decode, encode
from tfos_ml.protocol.frames import frame, receive_frame
from tfos_ml.protocol.messages import Message

HEARTBEAT = "TFOS_ML_HEARTBEAT"  # environment variable of the process: seconds between two heartbeats


class ChannelClosedError(ConnectionError):
    """The process at the other end is gone, or has not read for too long."""


class Channel:
    """One end of the socket pair. A peer that reads nothing for `send_timeout` seconds counts as gone."""

    def __init__(self, sock: socket.socket, send_timeout: float = HEARTBEAT_TIMEOUT):
        self._sock = sock
        self._timeout = send_timeout
        deadline = struct.pack("ll", int(send_timeout), int(send_timeout % 1 * 1e6))  # a struct timeval
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)
        self._lock = threading.Lock()
        self._broken: str | None = None

    def send(self, message: Message) -> None:
        """Send one message; safe from several threads.

        Raises ``ChannelClosedError`` if the other end is gone or stopped reading.
        """
        self._send_frame(frame(encode(message)))

    def _send_frame(self, data: bytes) -> None:
        with self._lock:
            if self._broken is not None:  # half of a message may have gone out: no more may follow it
                raise ChannelClosedError(self._broken)
            try:
                self._sock.sendall(data)
            except BlockingIOError as error:
                self._broken = f"the peer has read nothing for {self._timeout:g} s"
                raise ChannelClosedError(self._broken) from error
            except OSError as error:
                self._broken = f"the peer is gone: {error}"
                raise ChannelClosedError(self._broken) from error

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the other end closes; ``VersionMismatchError`` if it sends unknown ones."""
        while True:
            try:
                received = receive_frame(self._sock)
                if received is None:
                    return
                message: Message = decode(Message, received[0])  # type: ignore[arg-type]
            except OSError:
                return
            except MessageError as error:
                raise VersionMismatchError(
                    "the node's supervisor and its TensorFlow process do not understand each other. Install the same "
                    f"version of tfos_ml everywhere. {error}"
                ) from error
            yield message

    def close(self) -> None:
        """Close this end; wakes a reader of it."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()


class QueuedChannel(Channel):
    """A channel whose messages wait in a queue, so that sending one never waits for the other end.

    A thread, begun by :meth:`start`, sends them in order. Messages to a peer that is gone are dropped; its end is
    noticed elsewhere. :meth:`check` raises if a peer that is alive reads nothing for `send_timeout` seconds.
    """

    def __init__(self, sock: socket.socket, send_timeout: float = HEARTBEAT_TIMEOUT):
        super().__init__(sock, send_timeout)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_stuck = False
        self._sender = threading.Thread(target=self._send_queued, name="messages to the process", daemon=True)

    def start(self) -> None:
        self._sender.start()

    def send(self, message: Message) -> None:
        """Queue one message; safe from several threads, never waits."""
        if self._broken is None:
            self._queue.put(frame(encode(message)))

    def _send_queued(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                self._send_frame(data)
            except ChannelClosedError as error:
                self._is_stuck = isinstance(error.__cause__, BlockingIOError)
                return

    def check(self) -> None:
        """Raise ``NodeExitError`` if a message could not be delivered to a live process: rows would be missing."""
        if self._is_stuck:
            raise NodeExitError(
                f"the process has taken no message for {self._timeout:g} s while some waited for it (stopped, or stuck "
                "in C code)"
            )

    def close(self) -> None:
        """Close this end, and end the thread; what is still queued is dropped."""
        self._queue.put(None)
        super().close()
        if self._sender.is_alive():
            self._sender.join(CHANNEL_CLOSE_SECONDS)
