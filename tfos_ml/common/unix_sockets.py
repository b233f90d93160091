"""Sockets of servers on this host, for processes of the same user only.

A server's socket has a directory of its own, which is locked while a process starts or ends a server there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tfos_ml.common.timeouts import LOCK_SECONDS

_PEER = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED, unix(7)
_BACKLOG = 64
_CONNECT = struct.pack("ll", int(LOCK_SECONDS), 0)  # a struct timeval: a server that stands still takes no more


@contextlib.contextmanager
def locked(directory: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Lock the directory, made if needed, against others that start or end a server there; may raise ``OSError``."""
    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
            raise PermissionError(f"{directory} is of user {status.st_uid}, with mode {status.st_mode:o}")
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def connect(path: Path) -> socket.socket | None:
    """A connection to a server; if there is no server, its socket is deleted and None returned."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _CONNECT)
        with _address(path) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        path.unlink(missing_ok=True)
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def listen(path: Path) -> socket.socket:
    """Take connections from now on, in a directory that is locked."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with _address(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """A short name of a path, valid within the context.

    An address has at most 107 bytes (unix(7)). Directories of YARN's containers are longer.
    """
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def serve_as_this_process(listener: socket.socket) -> None:
    """Let :func:`peer` of later connections name this process, not the one that has made the listener."""
    listener.listen(_BACKLOG)


def peer(connection: socket.socket) -> int:
    """The pid of the process at the other side of a connection."""
    return int(_PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0])


def check_peer(connection: socket.socket) -> None:
    """Raise ``PermissionError`` if the other side belongs to another user."""
    _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid != os.getuid():
        raise PermissionError(f"user {uid} is not {os.getuid()}")
