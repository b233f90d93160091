"""Messages over a stream socket between two processes of a host: 4 bytes of length, then the content.

A message may carry file descriptors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence

from tfos_ml.protocol.codec import MessageError

_LENGTH = struct.Struct("!I")
MAX_BYTES = (1 << 29) - 1
"""The limit of one message. Any text that is not such a message begins with a larger number."""


def frame(content: bytes) -> bytes:
    """A message as it goes over the socket."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"a message of {len(content)} bytes, expected at most {MAX_BYTES}")
    return _LENGTH.pack(len(content)) + content


def send_frame(sock: socket.socket, content: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message; raises ``OSError`` if the other end is gone."""
    data = frame(content)
    sent = socket.send_fds(sock, [data], list(descriptors)) if descriptors else 0
    sock.sendall(data[sent:])


def receive_frame(sock: socket.socket, max_descriptors: int = 0) -> tuple[bytes, list[int]] | None:
    """The next message and its descriptors; None if the other end has closed.

    Raises ``TimeoutError`` if nothing comes within the socket's timeout, ``ConnectionError`` if only a part of a
    message comes, and ``MessageError`` if it is no message.
    """
    descriptors: list[int] = []
    try:
        if max_descriptors:
            head, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, max_descriptors)
        else:
            head = sock.recv(_LENGTH.size)
        head += _receive(sock, _LENGTH.size - len(head)) if head else b""
        size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        if size > MAX_BYTES:
            raise MessageError(f"the other end has sent something that is no message: {head!r}...")
        content = _receive(sock, size)
    except BaseException:
        _close(descriptors)
        raise
    if len(head) == _LENGTH.size and len(content) == size:
        return content, descriptors
    _close(descriptors)
    return None


def _receive(sock: socket.socket, size: int) -> bytes:
    """Read `size` bytes, or fewer if the other end closes."""
    parts = []
    try:
        while size and (part := sock.recv(min(size, 1 << 20))):
            parts.append(part)
            size -= len(part)
    except TimeoutError as error:
        raise ConnectionError("only a part of a message has come") from error
    return b"".join(parts)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
