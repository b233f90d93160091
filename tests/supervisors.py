"""Which process supervises a node: for train functions that kill it, or look at what is its own."""

from __future__ import annotations

import socket
import struct
from typing import Any


def supervisor_of(ctx: Any) -> int:
    """Pid of the process that made the channel; the parent of the node may be a fork server."""
    pid: int = struct.unpack("3i", ctx._channel._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid
