"""``Client``, with which another process requests the end of a program's stream."""

from __future__ import annotations

from typing import Any

from tfos_ml.common.timeouts import STOP_STREAM_SECONDS
from tfos_ml.errors import ParamError
from tfos_ml.protocol.addresses import SERVER_VARIABLE as TFOS_SERVER_PORT
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import RequestStop

__all__ = ["TFOS_SERVER_PORT", "Client"]


class Client:
    """Reaches the driver of a running cluster.

    `server_addr` is ``cluster.cluster_meta["server_addr"]``, or its location and token.
    """

    def __init__(self, server_addr: Any):
        is_pair = isinstance(server_addr, (tuple, list)) and [type(part) for part in server_addr] == [str, str]
        if not is_pair and not isinstance(server_addr, ControlAddress):
            raise ParamError(
                "server_addr must be cluster.cluster_meta['server_addr'], or its location and token as a pair of text. "
                f"Received: {type(server_addr).__name__}"
            )
        self.server_addr = ControlAddress(*server_addr) if is_pair else server_addr

    def request_stop(self) -> str:
        """Ask the program to end the stream that ``shutdown(ssc)`` waits for.

        Raises ``pyarrow.lib.ArrowException`` if it cannot be reached.
        """
        client = ControlClient(self.server_addr)
        try:
            client.call_reliably(RequestStop(), STOP_STREAM_SECONDS)
        finally:
            client.close()
        return "OK"

    def close(self) -> None:
        """Nothing is left open."""
