"""Whether a node's train function only serves: then nobody needs to wait for its end, which never comes."""

from __future__ import annotations

import sys
import threading

from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.messages import Heartbeat


def send_heartbeat(channel: Channel) -> None:
    """Send the supervisor a heartbeat, and with it whether the train function only serves."""
    channel.send(Heartbeat(is_joining_server()))


def is_joining_server() -> bool:
    """Whether the main thread waits in ``join`` of a ``tf.distribute.Server``, no matter who started that."""
    library = sys.modules.get("tensorflow.python.training.server_lib")  # where it is; tensorflow may be half imported
    server = getattr(library, "Server", None)
    if server is None:
        return False
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not server.join.__code__:
        frame = frame.f_back
    return frame is not None
