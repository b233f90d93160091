"""A node's access to the driver's grants (``driver/partitions.py``): which copy of a partition's rows counts."""

from __future__ import annotations

import time

import pyarrow.flight as flight

from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import ClaimPartition, CommitPartition, ReleasePartition

GRANTED, TAKEN, PENDING = "granted", "taken", "pending"


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
