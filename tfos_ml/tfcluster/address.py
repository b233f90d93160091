"""How another process reaches the driver of a running cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfos_ml.common.limits import STOP_STREAM_SECONDS
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import RequestStop


@dataclass(frozen=True)
class ClusterAddress:
    """Where, and with which token, another process may reach a running cluster's driver.

    Examples
    --------
    >>> ClusterAddress(location, token).request_stop()              # doctest: +SKIP
    """

    location: str
    token: str = field(repr=False)

    def request_stop(self) -> None:
        """Ask the driver to end the stream that feeds it; raises ``pyarrow.lib.ArrowException`` if it is not there."""
        client = ControlClient(self.location, self.token)
        try:
            client.call_reliably(RequestStop(), STOP_STREAM_SECONDS)
        finally:
            client.close()
