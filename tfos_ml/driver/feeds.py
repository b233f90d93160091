"""Which node gets the rows of a partition of ``TFCluster.train``, and which attempt of its feed task hands them over.

Nothing of it grows with the length of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfos_ml.driver.dealing import Dealer
from tfos_ml.driver.nodes import OUTCOME_SECONDS, Nodes
from tfos_ml.protocol import control_messages as messages
from tfos_ml.protocol.claims import PENDING, Claims
from tfos_ml.protocol.transport import Service


class Feeds:
    """Deals partitions to nodes and grants each to one attempt; for several threads, under the lock of the nodes."""

    def __init__(self, nodes: Nodes):
        self._nodes = nodes
        self._changed = nodes.changed
        self._claims = Claims()
        self._dealer = Dealer()
        self.stop_requested = False  # by a process with the run's token: the end of the stream that feeds the cluster

    def service(self) -> Service:
        """The calls of feed tasks and of the nodes that they feed."""
        return Service(
            {
                messages.DealPartition: self._deal,
                messages.ClaimPartition: self._claim,
                messages.CommitPartition: self._commit,
                messages.ReleasePartition: self._release,
                messages.GetCommitted: self._get_committed,
                messages.RequestStop: self._request_stop,
            }
        )

    def _deal(self, call: messages.DealPartition) -> messages.Dealt:
        return messages.Dealt(self._dealer.deal(call.number, call.partition, call.host, self._nodes.over()))

    def _claim(self, call: messages.ClaimPartition) -> messages.ClaimState:
        def state() -> str:
            return self._claims.claim(call.number, call.partition, call.claimant)

        self._changed.wait_for(lambda: state() != PENDING, OUTCOME_SECONDS)
        return messages.ClaimState(state())

    def _commit(self, call: messages.CommitPartition) -> messages.Done:
        self._claims.commit(call.number, call.partition, call.claimant, call.rows)
        self._dealer.commit(call.number, call.partition, call.rows)
        return messages.Done()

    def _release(self, call: messages.ReleasePartition) -> messages.Done:
        self._claims.release(call.number, call.partition, call.claimant)
        return messages.Done()

    def _get_committed(self, call: messages.GetCommitted) -> messages.Committed:
        def state() -> tuple[int | None, bool]:
            return self._claims.state_of(call.number, call.partition, call.claimant)

        self._changed.wait_for(lambda: self._nodes.is_stopping() or not state()[1], OUTCOME_SECONDS)
        return messages.Committed(*state(), self._nodes.is_stopping())

    def _request_stop(self, call: messages.RequestStop) -> messages.Done:
        self.stop_requested = True
        return messages.Done()

    def open(self, number: int, hosts: Mapping[int, str] | None = None) -> None:
        """From now on grant the partitions of this call of ``train``, and deal them to nodes on these hosts."""
        with self._changed:
            self._claims.open(number)
            self._dealer.open(number, hosts or {})

    def close(self, number: int) -> None:
        """Deal and grant no more of them, and forget them."""
        with self._changed:
            self._claims.close(number)
            self._dealer.close(number)
            self._changed.notify_all()

    def committed(self, number: int, timeout: float) -> dict[int, int] | None:
        """Rows by partition that nodes have taken over; None if that is not settled within `timeout` seconds."""
        with self._changed:
            settled = self._changed.wait_for(lambda: self._claims.is_settled(number), timeout)
            return self._claims.committed(number) if settled else None
