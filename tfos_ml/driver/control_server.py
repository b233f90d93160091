"""The driver's server of a run. Its services: the state of nodes, their exchanges, and feeds.

It speaks Arrow Flight, protected by a random token for each run. Any answer may be lost, late or doubled. So callers
repeat a call, unchanged, until they have an answer (:mod:`tfos_ml.protocol.control_client`), and every call that
changes something has no effect the second time, or after a later call.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from tfos_ml.driver.node_exchanges import AllGather
from tfos_ml.driver.nodes import Nodes
from tfos_ml.driver.partitions import Feeds
from tfos_ml.protocol.addresses import ControlAddress, Endpoint
from tfos_ml.protocol.cluster_template import ClusterTemplate
from tfos_ml.protocol.transport import TransportServer


class ControlServer(TransportServer):
    """Listens from construction until :meth:`close`; `is_wanted` as of :class:`Nodes`."""

    def __init__(
        self, endpoint: Endpoint | str, template: ClusterTemplate, is_wanted: Callable[[], bool] | None = None
    ):
        token = secrets.token_urlsafe(32)
        self.nodes = Nodes(template, is_wanted)
        self.all_gather = AllGather(self.nodes.changed)
        self.feeds = Feeds(self.nodes)
        services = (part.service() for part in (self.nodes, self.all_gather, self.feeds))
        super().__init__(endpoint, token, *services, changed=self.nodes.changed)
        self.address = ControlAddress(self.location, token)
