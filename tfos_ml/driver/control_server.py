"""The driver's server of a run. Its services: the state of nodes, their exchanges, and feeds.

It speaks Arrow Flight, protected by a random token for each run. Any answer may be lost, late or doubled. So callers
repeat a call, unchanged, until they have an answer (:mod:`tfos_ml.protocol.control_client`), and every call that
changes something has no effect the second time, or after a later call.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Condition
from typing import Any

from tfos_ml.driver.all_gather import AllGather
from tfos_ml.driver.nodes import Nodes
from tfos_ml.driver.partitions import Feeds
from tfos_ml.protocol.addresses import ControlAddress, Endpoint
from tfos_ml.protocol.cluster_template import ClusterTemplate
from tfos_ml.protocol.transport import Service, TransportServer


class ControlServer(TransportServer):
    """Listens from construction until :meth:`close`; `is_wanted` as of :class:`Nodes`."""

    def __init__(
        self, endpoint: Endpoint | str, template: ClusterTemplate, is_wanted: Callable[[], bool] | None = None
    ):
        token = secrets.token_urlsafe(32)
        self.nodes = Nodes(template, is_wanted)
        self.all_gather = AllGather(self.nodes.changed)
        self.feeds = Feeds(self.nodes)
        services = [part.service() for part in (self.nodes, self.all_gather, self.feeds)]
        super().__init__(endpoint, token, *(_locked(self.nodes.changed, service) for service in services))
        self.address = ControlAddress(self.location, token)


def _locked(changed: Condition, service: Service) -> Service:
    """The same service, whose actions hold a lock and notify those who wait for a change."""

    def answer(action: Callable[[Any], Any], call: Any) -> Any:
        with changed:
            answered = action(call)
            changed.notify_all()
            return answered

    return replace(service, actions={kind: partial(answer, action) for kind, action in service.actions.items()})
