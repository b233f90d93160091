"""A port that a node holds for TensorFlow."""

from __future__ import annotations

import contextlib
import socket

from tfos_ml.common.session_settings import ANY_PORT, NODE_PORTS
from tfos_ml.errors import ClusterConfigError
from tfos_ml.protocol.addresses import described_ports


class ReservedPort:
    """A TCP port held until just before TensorFlow binds it: its server does not set ``SO_REUSEPORT``."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.number = 0

    def reserve(self, ports: range = ANY_PORT, setting: str = NODE_PORTS.name) -> None:
        """Bind the first port that is free on all addresses of this host, as TensorFlow needs it.

        If none is free, raises ``ClusterConfigError``, which names the `setting` that has the ports.
        """
        is_dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET, socket.SOCK_STREAM)
        if is_dual:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for port in ports:
            with contextlib.suppress(OSError):
                self._socket.bind(("", port))
                self.number = self._socket.getsockname()[1]
                return
        raise ClusterConfigError(
            f"{described_ports(ports, setting)}: none of these {len(ports)} ports is free on {socket.gethostname()}. "
            "Give more: one for each node on a host, two if TFCluster feeds it, and some to spare, since a port may "
            "stay in use for a minute after its last connection."
        )

    def release(self) -> None:
        """Free the port; may be called again."""
        if self._socket is not None:
            self._socket.close()
