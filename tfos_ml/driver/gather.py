"""The driver's side of nodes that meet at its control server instead of in a barrier stage.

Spark starts the tasks of a plain job one by one, tries failed ones again, and knows of no
meeting: who is missing, and what has gone wrong, is found here.
"""

from __future__ import annotations

import threading
import time

from tfos_ml import errors
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.control_client import CALL_TIMEOUT
from tfos_ml.protocol.failure import Failure, find_failure
from tfos_ml.protocol.graces import LEASE_SETTING
from tfos_ml.protocol.template import ClusterTemplate

one_at_a_time = threading.Lock()
"""Held while nodes gather: of two clusters that each had some of their slots, neither would get the rest."""


class Gather:
    """Watches the nodes of one cluster gather.

    Parameters
    ----------
    control : ControlServer
        Where they meet.
    template : ClusterTemplate
        The roles.
    timeout : float
        Seconds within which all must follow the first.
    """

    def __init__(self, control: ControlServer, template: ClusterTemplate, timeout: float):
        self._control = control
        self._template = template
        self._timeout = timeout
        self._since = time.monotonic()

    def missing(self) -> list[str]:
        """Labels of the nodes that have not come yet."""
        met = self._control.met()
        return [node.label for node in self._template.nodes if node.rank not in met]

    def check(self, waiting_for_slots: bool) -> None:
        """Raise what has gone wrong.

        Parameters
        ----------
        waiting_for_slots : bool
            Whether there is a reason to wait on, however long it takes.

        Raises
        ------
        NodeError
            The first failure of a node.
        ReservationTimeoutError
            Names the missing nodes.
        """
        raise_failure(self._control)
        missing = self.missing()
        if waiting_for_slots or not missing:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > self._timeout:
            raise errors.ReservationTimeoutError(
                f"{len(missing)} of {self._template.size} nodes have not started within reservationTimeout="
                f"{self._timeout:g} s: {missing}. Is there room for them "
                "(spark.dynamicAllocation.maxExecutors, other jobs)? Raise reservationTimeout if executors are slow "
                "to come."
            )


def raise_failure(control: ControlServer) -> None:
    """Raise the first failure that a node has told the driver of."""
    told = control.failure()
    if told is not None:
        found = find_failure(told)
        assert found is not None
        raise found.to_error()


def raise_silence(control: ControlServer, template: ClusterTemplate, lease: float | None) -> None:
    """Raise if a node has not been heard of for longer than its lease, after which it ends itself if it can."""
    if lease is None:
        return
    for rank, seconds in control.silent(lease + 2 * CALL_TIMEOUT).items():
        node = template.nodes[rank]
        message = (
            f"the node has not been heard of for {seconds:.0f} s: its Spark Python worker is stopped, or its host is "
            f"cut off from the driver ({LEASE_SETTING}={lease:g})"
        )
        host = control.progress()[rank].get("host", "unknown host")
        raise Failure(errors.NodeLostError, message, node.job_name, node.task_index, host).to_error()
