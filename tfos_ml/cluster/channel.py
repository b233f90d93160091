"""JSON messages between a node's supervisor and its TensorFlow process.

One connected socket pair; one JSON object a line, each with a ``type``. Nothing is
unpickled, and no port is opened.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]
BEAT = "TFOS_ML_BEAT"  # names, in the process's environment, the seconds between its signs of life


class ChannelClosedError(ConnectionError):
    """The process at the other end is gone, or has not read for too long."""


class Channel:
    """One end of the socket pair.

    Parameters
    ----------
    sock : socket.socket
        A connected stream socket; owned by the channel from now on.
    send_timeout : float, default 60
        Seconds after which a peer that reads nothing counts as gone.
    """

    def __init__(self, sock: socket.socket, send_timeout: float = 60.0):
        self._sock = sock
        deadline = struct.pack("ll", int(send_timeout), int(send_timeout % 1 * 1e6))  # a struct timeval
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)
        self._lines = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, kind: str, /, **content: Any) -> None:
        """Send one message; safe from several threads.

        Raises
        ------
        ChannelClosedError
            If the other end is gone or stopped reading.
        """
        line = json.dumps({"type": kind, **content}).encode() + b"\n"
        with self._lock:
            try:
                self._sock.sendall(line)
            except OSError as error:
                raise ChannelClosedError(f"the peer is gone: {error}") from error

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the other end closes."""
        while True:
            try:
                line = self._lines.readline()
            except OSError:
                return
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)

    def close(self) -> None:
        """Close this end; wakes a reader of it."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()
