"""Each row once: which node gets a partition of a call of ``TFCluster.train``, and which copy of its rows counts.

*Assignment.* Within one call, each node gets the same number of partitions. Over many calls, such as those of a stream
with one partition each, the number of rows decides. Among nodes with about as many rows, one on the task's own host is
preferred.

*Grants.* Spark may run a feed task twice, and any answer may be lost, late or doubled. So the rows of a partition are
handed over in two steps. The driver *grants* the partition to one claimant (one attempt of a feed task); its node hands
the rows to the train function and reports them as *committed*. The same claimant may repeat each call. While a grant is
not committed, other claimants wait; it ends with the commit, with a release, or with the node, and then the whole
cluster has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from tfos_ml.common.timeouts import OUTCOME_SECONDS
from tfos_ml.driver.nodes import Nodes
from tfos_ml.errors import InputLostError
from tfos_ml.protocol import control_messages as messages
from tfos_ml.protocol.control_messages import GRANTED, PENDING, TAKEN
from tfos_ml.protocol.transport import Service

NAMED_PARTITIONS = 5  # in an error


@dataclass
class _Partition:
    rank: int | None = None  # the node
    claimant: str | None = None  # to which it is granted
    rows: int | None = None  # once committed


@dataclass
class _TrainCall:
    hosts: Mapping[int, str]  # of the nodes
    partitions: dict[int, _Partition] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)  # claimants that get no more grants
    assigned: Counter[int] = field(default_factory=Counter)  # how many partitions each node has
    under_way: Counter[int] = field(default_factory=Counter)  # those of them that are not committed

    def of(self, number: int, claimant: str) -> _Partition | None:
        """A partition, if it is granted to this claimant."""
        partition = self.partitions.get(number)
        return partition if partition is not None and partition.claimant == claimant else None


class Partitions:
    """Assigns and grants partitions; for one thread at a time. Of an ended call it keeps only the rows of each node."""

    def __init__(self) -> None:
        self._calls: dict[int, _TrainCall] = {}
        self._rows: Counter[int] = Counter()  # committed, of each node
        self._count = 0  # partitions in which they came

    def __len__(self) -> int:
        """Number of partitions that it remembers."""
        return sum(len(call.partitions) for call in self._calls.values())

    def open(self, number: int, hosts: Mapping[int, str]) -> None:
        """From now on assign and grant partitions of this call to these nodes; `hosts` is by rank."""
        self._calls[number] = _TrainCall(hosts)

    def close(self, number: int) -> None:
        """Assign and grant no more partitions of this call. Later claims come from tasks whose job has ended."""
        self._calls.pop(number, None)

    # Assignment

    def assign(self, number: int, partition: int, host: str, over: Container[int] = ()) -> int | None:
        """The node for a partition, the same for all attempts of its task. None if the call has ended or has no nodes.

        `host` is the host of the task. Nodes in `over` have stopped reading: they get nothing while others still read.
        """
        call = self._calls.get(number)
        if call is None or not call.hosts:
            return None
        known = call.partitions.setdefault(partition, _Partition())
        if known.rank is None:
            known.rank = self._choose(call, host, [rank for rank in call.hosts if rank not in over] or list(call.hosts))
            call.assigned[known.rank] += 1
            call.under_way[known.rank] += 1
        return known.rank

    def _choose(self, call: _TrainCall, host: str, ranks: list[int]) -> int:
        fewest = min(call.assigned[rank] for rank in ranks)
        usual = self._rows.total() / self._count if self._rows.total() else 1.0  # rows of a partition
        rows = {rank: self._expected(rank, usual) for rank in ranks if call.assigned[rank] == fewest}
        enough = min(rows.values()) + usual  # nodes that have had more wait, on whichever host
        return min(
            (rank for rank in rows if rows[rank] <= enough),
            key=lambda rank: (call.hosts[rank] != host, rows[rank], rank),
        )

    def _expected(self, rank: int, usual: float) -> float:
        """Rows of a node once all that is under way has come."""
        return self._rows[rank] + usual * sum(call.under_way[rank] for call in self._calls.values())

    # Grants

    def claim(self, number: int, partition: int, claimant: str) -> str:
        """``GRANTED``, ``TAKEN`` by another claimant, or ``PENDING`` until that is known."""
        call = self._calls.get(number)
        if call is None or claimant in call.released:
            return TAKEN
        known = call.partitions.setdefault(partition, _Partition())
        known.claimant = known.claimant or claimant
        if known.claimant == claimant:
            return GRANTED
        return PENDING if known.rows is None else TAKEN

    def commit(self, number: int, partition: int, claimant: str, rows: int) -> None:
        """Record that rows have gone to the train function; ``ValueError`` if they are not granted to the claimant."""
        call = self._calls.get(number)
        if call is None:
            return
        known = call.of(partition, claimant)
        if known is None:
            raise ValueError(f"partition {partition} of call {number} has not been granted to this claimant")
        if known.rows is None:
            known.rows = rows
            if known.rank is not None:
                call.under_way[known.rank] -= 1
                self._rows[known.rank] += rows
                self._count += 1

    def release(self, number: int, partition: int, claimant: str) -> None:
        """Record that a claimant will not commit; it gets no more grants. A commit that came before stays."""
        call = self._calls.get(number)
        known = None if call is None else call.of(partition, claimant)
        if call is None or (known is not None and known.rows is not None):
            return
        if known is not None:
            known.claimant = None
        call.released.add(claimant)

    def is_settled(self, number: int) -> bool:
        """Whether all granted partitions of a call are committed."""
        return all(partition.claimant is None or partition.rows is not None for partition in self._of(number).values())

    def committed(self, number: int) -> dict[int, int]:
        """Rows of each committed partition of a call."""
        return {partition: known.rows for partition, known in self._of(number).items() if known.rows is not None}

    def state_of(self, number: int, partition: int, claimant: str) -> tuple[int | None, bool]:
        """Rows of a partition if this claimant has committed it, and whether it may still commit it."""
        call = self._calls.get(number)
        known = None if call is None else call.of(partition, claimant)
        return (None, False) if known is None else (known.rows, known.rows is None)

    def _of(self, number: int) -> dict[int, _Partition]:
        call = self._calls.get(number)
        return {} if call is None else call.partitions


class Feeds:
    """The calls to :class:`Partitions` of feed tasks and nodes; for several threads, under the lock of the nodes."""

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

    def _assign(self, call: messages.AssignPartition) -> int | None:
        return self._partitions.assign(call.number, call.partition, call.host, self._nodes.stopped_reading())

    def _claim(self, call: messages.ClaimPartition) -> str:
        def state() -> str:
            return self._partitions.claim(call.number, call.partition, call.claimant)

        self._changed.wait_for(lambda: state() != PENDING, OUTCOME_SECONDS)
        return state()

    def _commit(self, call: messages.CommitPartition) -> None:
        self._partitions.commit(call.number, call.partition, call.claimant, call.rows)

    def _release(self, call: messages.ReleasePartition) -> None:
        self._partitions.release(call.number, call.partition, call.claimant)

    def _get_committed(self, call: messages.GetCommitted) -> messages.Committed:
        def state() -> tuple[int | None, bool]:
            return self._partitions.state_of(call.number, call.partition, call.claimant)

        self._changed.wait_for(lambda: self._nodes.is_stopping() or not state()[1], OUTCOME_SECONDS)
        return messages.Committed(*state(), self._nodes.is_stopping())

    def _request_stop(self, call: messages.RequestStop) -> None:
        self.stop_requested = True

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


def check_rows(read: Mapping[int, int], committed: Mapping[int, int]) -> None:
    """Raise ``InputLostError`` unless, for each partition, nodes have committed as many rows as its feed task read."""
    wrong = [partition for partition, rows in sorted(read.items()) if committed.get(partition, 0) != rows]
    if wrong:
        some = [f"{p}: {read[p]} read, {committed.get(p, 0)} received" for p in wrong[:NAMED_PARTITIONS]]
        raise InputLostError(
            f"For {len(wrong)} of {len(read)} partitions, the nodes received a different number of rows than Spark "
            f"read: {'; '.join(some)}. If Spark computed a partition twice, it got other rows the second time: make "
            "the input deterministic (sort before rand() or limit(), or cache it or write it to files first)."
        )
