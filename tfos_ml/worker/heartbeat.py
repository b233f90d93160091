"""Heartbeats of a node. They say whether its train function only serves, and so will never return."""

from __future__ import annotations

import sys
import threading

from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.messages import Heartbeat


def send_heartbeat(channel: Channel) -> None:
    """Send a heartbeat to the supervisor. It says whether the train function only serves."""
    channel.send(Heartbeat(is_joining_server()))


def is_joining_server() -> bool:
    """Whether the main thread waits in ``join`` of any ``tf.distribute.Server``."""
    library = sys.modules.get(
        "tensorflow.python.training.server_lib"
    )  # not through tensorflow, which may be half imported
    server = getattr(library, "Server", None)
    if server is None:
        return False
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not server.join.__code__:
        frame = frame.f_back
    return frame is not None
