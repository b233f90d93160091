"""How another process requests the end of a program's stream.

Differences: nodes meet at the driver of tfos_ml, whose calls carry a token and no pickles. Of TensorFlowOnSpark's
``Reservations``, ``MessageSocket``, ``Server`` and ``Client`` there is only what programs use of the last.
"""

from __future__ import annotations

from typing import Any

from tfos_ml.errors import ParamError
from tfos_ml.protocol.addresses import SERVER_VARIABLE as TFOS_SERVER_PORT
from tfos_ml.tfcluster.address import ClusterAddress

__all__ = ["TFOS_SERVER_PORT", "Client"]


class Client:
    """Reaches the driver of a running cluster, at ``cluster.cluster_meta["server_addr"]``.

    That, or where it has been carried to another process its location and token, is `server_addr`.

    Differences: the address has a token instead of a port alone. Only :meth:`request_stop` and :meth:`close` are there.
    """

    def __init__(self, server_addr: Any):
        if isinstance(server_addr, ClusterAddress):
            self.server_addr = server_addr
            return
        try:
            location, token = server_addr
        except (TypeError, ValueError):
            location = token = None
        if not isinstance(location, str) or not isinstance(token, str):
            raise ParamError(
                "server_addr must be cluster.cluster_meta['server_addr'], or its location and token as a pair of text. "
                f"Received: {type(server_addr).__name__}"
            )
        self.server_addr = ClusterAddress(location, token)

    def request_stop(self) -> str:
        """Ask the program to end the stream that ``shutdown(ssc)`` waits for."""
        self.server_addr.request_stop()
        return "OK"

    def close(self) -> None:
        """Nothing is left open."""
