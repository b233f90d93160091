"""Decides which node gets a partition of ``TFCluster.train``, and which attempt of its feed task delivers the rows.

Its memory does not grow with the length of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfos_ml.common.limits import OUTCOME_SECONDS
from tfos_ml.driver.nodes import Nodes
from tfos_ml.driver.partitions import Partitions
from tfos_ml.protocol import control_messages as messages
from tfos_ml.protocol.partition_grants import PENDING
from tfos_ml.protocol.transport import Service


class Feeds:
    """Assigns partitions to nodes and grants each to one attempt; for several threads, under the lock of the nodes."""

    def __init__(self, nodes: Nodes):
        self._nodes = nodes
        self._changed = nodes.changed
        self._partitions = Partitions()
        self.stop_requested = False  # by a process with the run's token, which ends the stream that feeds the cluster

    def service(self) -> Service:
        """The calls of feed tasks and of the nodes that they feed."""
        return Service(
            {
                messages.AssignPartition: self._assign,
                messages.ClaimPartition: self._claim,
                messages.CommitPartition: self._commit,
                messages.ReleasePartition: self._release,
                messages.GetCommitted: self._get_committed,
                messages.RequestStop: self._request_stop,
            }
        )

    def _assign(self, call: messages.AssignPartition) -> messages.PartitionAssignment:
        return messages.PartitionAssignment(
            self._partitions.assign(call.number, call.partition, call.host, self._nodes.over())
        )

    def _claim(self, call: messages.ClaimPartition) -> messages.ClaimState:
        def state() -> str:
            return self._partitions.claim(call.number, call.partition, call.claimant)

        self._changed.wait_for(lambda: state() != PENDING, OUTCOME_SECONDS)
        return messages.ClaimState(state())

    def _commit(self, call: messages.CommitPartition) -> messages.Done:
        self._partitions.commit(call.number, call.partition, call.claimant, call.rows)
        return messages.Done()

    def _release(self, call: messages.ReleasePartition) -> messages.Done:
        self._partitions.release(call.number, call.partition, call.claimant)
        return messages.Done()

    def _get_committed(self, call: messages.GetCommitted) -> messages.Committed:
        def state() -> tuple[int | None, bool]:
            return self._partitions.state_of(call.number, call.partition, call.claimant)

        self._changed.wait_for(lambda: self._nodes.is_stopping() or not state()[1], OUTCOME_SECONDS)
        return messages.Committed(*state(), self._nodes.is_stopping())

    def _request_stop(self, call: messages.RequestStop) -> messages.Done:
        self.stop_requested = True
        return messages.Done()

    def open(self, number: int, hosts: Mapping[int, str] | None = None) -> None:
        """From now on grant the partitions of this call of ``train``, and assign them to nodes on these hosts."""
        with self._changed:
            self._partitions.open(number, hosts or {})

    def close(self, number: int) -> None:
        """Assign and grant no more partitions of this call, and forget it."""
        with self._changed:
            self._partitions.close(number)
            self._changed.notify_all()

    def committed(self, number: int, timeout: float) -> dict[int, int] | None:
        """Rows by partition that nodes have committed; None if some are still uncommitted after `timeout` seconds."""
        with self._changed:
            settled = self._changed.wait_for(lambda: self._partitions.is_settled(number), timeout)
            return self._partitions.committed(number) if settled else None
