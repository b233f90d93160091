"""Which copy of a partition's rows counts: the driver's list of grants, and a node's access to it.

Spark may run a feed task twice, and any answer may be lost, late or doubled. So the rows of a
partition are handed over in two steps. The driver *grants* the partition to one claimant (one
attempt of a feed task); its node hands the rows to the train function and reports them as
*committed*. The same claimant may repeat each call. While a grant is not committed, other claimants
wait; it ends with the commit, with a release, or with the node, and then the whole cluster has failed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow.flight as flight

from tfos_ml.errors import InputLostError
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import ClaimPartition, CommitPartition, ReleasePartition

GRANTED, TAKEN, PENDING = "granted", "taken", "pending"
NAMED_PARTITIONS = 5  # in an error


@dataclass
class _Grant:
    claimant: str
    rows: int | None = None  # once committed


@dataclass
class _Call:
    grants: dict[int, _Grant] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)


class PartitionGrants:
    """The driver's list, for one thread at a time. It forgets a call of ``train`` when the call ends."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}

    def __len__(self) -> int:
        """Number of partitions in the list."""
        return sum(len(call.grants) for call in self._calls.values())

    def open(self, number: int) -> None:
        """Let partitions of this call of ``train`` be claimed from now on."""
        self._calls[number] = _Call()

    def close(self, number: int) -> None:
        """Grant no more partitions of this call. Later claims come from tasks whose job has ended."""
        self._calls.pop(number, None)

    def claim(self, number: int, partition: int, claimant: str) -> str:
        """``GRANTED``, ``TAKEN`` by another claimant, or ``PENDING`` until that is known."""
        call = self._calls.get(number)
        if call is None or claimant in call.released:
            return TAKEN
        grant = call.grants.setdefault(partition, _Grant(claimant))
        if grant.claimant == claimant:
            return GRANTED
        return PENDING if grant.rows is None else TAKEN

    def commit(self, number: int, partition: int, claimant: str, rows: int) -> None:
        """Record that a partition's rows have gone to the train function.

        Raises ``ValueError`` if the partition is not granted to the claimant.
        """
        grant = self._grant_of(number, partition, claimant)
        if grant is not None:
            grant.rows = rows
        elif number in self._calls:
            raise ValueError(f"partition {partition} of call {number} has not been granted to this claimant")

    def release(self, number: int, partition: int, claimant: str) -> None:
        """Record that a claimant will not commit; it gets no more grants. A commit that came before stays."""
        call = self._calls.get(number)
        if call is None:
            return
        grant = self._grant_of(number, partition, claimant)
        if grant is not None and grant.rows is not None:
            return
        if grant is not None:
            del call.grants[partition]
        call.released.add(claimant)

    def is_settled(self, number: int) -> bool:
        """Whether all granted partitions of a call are committed."""
        call = self._calls.get(number, _Call())
        return all(grant.rows is not None for grant in call.grants.values())

    def committed(self, number: int) -> dict[int, int]:
        """Rows of each committed partition of a call."""
        call = self._calls.get(number, _Call())
        return {partition: grant.rows for partition, grant in call.grants.items() if grant.rows is not None}

    def state_of(self, number: int, partition: int, claimant: str) -> tuple[int | None, bool]:
        """Rows of a partition if this claimant has committed it, and whether it may still commit it."""
        grant = self._grant_of(number, partition, claimant)
        return (None, False) if grant is None else (grant.rows, grant.rows is None)

    def _grant_of(self, number: int, partition: int, claimant: str) -> _Grant | None:
        """The grant of a partition if it belongs to this claimant."""
        grant = self._calls.get(number, _Call()).grants.get(partition)
        return grant if grant is not None and grant.claimant == claimant else None


class GrantClient:
    """A node's access to the driver's grants; for several threads.

    Calls that get no answer are repeated for `patience` seconds.
    """

    def __init__(self, client: ControlClient, patience: float):
        self._client = client
        self._patience = patience

    def take(self, number: int, partition: int, claimant: str) -> bool:
        """Claim a partition; returns whether it is granted. Waits while another claimant has it and has not committed.

        Raises ``pyarrow.ArrowException`` if the driver's answer is not known. Then nothing may be committed.
        """
        deadline = time.monotonic() + self._patience
        while True:
            state = self._client.call_reliably(ClaimPartition(number, partition, claimant), self._patience).state
            if state != PENDING:
                return state == GRANTED
            if time.monotonic() > deadline:
                raise flight.FlightUnavailableError(
                    f"partition {partition} is granted to another attempt, which has not committed it for "
                    f"{self._patience:g} s"
                )

    def commit(self, number: int, partition: int, claimant: str, rows: int) -> None:
        """Report that the rows have been handed to the train function; raises as :meth:`take`."""
        self._client.call_reliably(CommitPartition(number, partition, claimant, rows), self._patience)

    def release(self, number: int, partition: int, claimant: str) -> None:
        """Report that the rows will not be handed to the train function; raises as :meth:`take`."""
        self._client.call_reliably(ReleasePartition(number, partition, claimant), self._patience)


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
