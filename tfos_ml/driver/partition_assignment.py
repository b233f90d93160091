"""Assigns partitions to nodes. The driver decides when a feed task has its first rows.

Within one call of ``train``, each node gets the same number of partitions. Over many calls, such as those of a stream
with one partition each, the number of rows decides. Among nodes with about as many rows, one on the task's own host is
preferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field


@dataclass
class _Call:
    hosts: Mapping[int, str]  # of the nodes
    assigned: dict[int, int] = field(default_factory=dict)  # which node has which partition
    counts: Counter[int] = field(default_factory=Counter)  # partitions of each node
    under_way: Counter[int] = field(default_factory=Counter)  # those of them that are not committed
    committed: set[int] = field(default_factory=set)


class PartitionAssigner:
    """Assigns partitions to nodes; for one thread at a time. Of an ended call it keeps only the rows of each node."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._rows: Counter[int] = Counter()  # committed, of each node
        self._partitions = 0  # in which they came

    def __len__(self) -> int:
        """Number of partitions that it remembers."""
        return sum(len(call.assigned) for call in self._calls.values())

    def open(self, number: int, hosts: Mapping[int, str]) -> None:
        """From now on assign partitions of this call of ``train`` to these nodes; `hosts` is by rank."""
        self._calls[number] = _Call(hosts)

    def close(self, number: int) -> None:
        """Assign no more partitions of this call."""
        self._calls.pop(number, None)

    def assign(self, number: int, partition: int, host: str, over: Container[int] = ()) -> int | None:
        """The node for a partition, the same for all attempts of its task. None if the call has ended or has no nodes.

        `host` is the host of the task. Nodes in `over` have stopped reading: they get nothing while others still read.
        """
        call = self._calls.get(number)
        if call is None or not call.hosts:
            return None
        if partition not in call.assigned:
            rank = self._choose(call, host, [r for r in call.hosts if r not in over] or list(call.hosts))
            call.assigned[partition] = rank
            call.counts[rank] += 1
            call.under_way[rank] += 1
        return call.assigned[partition]

    def _choose(self, call: _Call, host: str, ranks: list[int]) -> int:
        fewest = min(call.counts[rank] for rank in ranks)
        usual = self._rows.total() / self._partitions if self._rows.total() else 1.0  # rows of a partition
        rows = {rank: self._expected(rank, usual) for rank in ranks if call.counts[rank] == fewest}
        enough = min(rows.values()) + usual  # nodes that have had more wait, on whichever host
        return min(
            (rank for rank in rows if rows[rank] <= enough),
            key=lambda rank: (call.hosts[rank] != host, rows[rank], rank),
        )

    def _expected(self, rank: int, usual: float) -> float:
        """Rows of a node once all that is under way has come."""
        return self._rows[rank] + usual * sum(call.under_way[rank] for call in self._calls.values())

    def commit(self, number: int, partition: int, rows: int) -> None:
        """Record that a node has received the rows of a partition; repeating the call changes nothing."""
        call = self._calls.get(number)
        if call is None or partition not in call.assigned or partition in call.committed:
            return
        rank = call.assigned[partition]
        call.committed.add(partition)
        call.under_way[rank] -= 1
        self._rows[rank] += rows
        self._partitions += 1
