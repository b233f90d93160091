"""Which nodes are alive, as far as the driver knows from their latest calls.

All times are durations measured on one host each, so hosts' clocks need not agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

PAUSE_SECONDS = 5.0  # between two looks; longer ones mean that the driver itself stood still


class Liveness:
    """Signs of life of the nodes of one run, by a clock that goes on only forwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._heard_at: dict[int, float] = {}
        self._beat_at: dict[int, float] = {}  # of the TensorFlow processes
        self._looked_at = clock()

    def heard(self, rank: int, child_silent: float | None) -> None:
        """Note a call of a node, and how long ago its TensorFlow process gave a sign of life; None if it has ended."""
        now = self._clock()
        self._heard_at[rank] = now
        self._beat_at[rank] = now - (child_silent or 0.0)

    def silent(self, ranks: Collection[int], seconds: float) -> dict[int, float]:
        """Of some nodes those that have been silent for longer than `seconds`, and for how long.

        The time in which nobody looked does not count: a driver that was stopped could not hear.
        """
        now = self._clock()
        pause, self._looked_at = now - self._looked_at, now
        if pause > PAUSE_SECONDS:
            for known in (self._heard_at, self._beat_at):
                known.update({rank: min(now, at + pause) for rank, at in known.items()})
        ages = {rank: now - self._heard_at[rank] for rank in ranks if rank in self._heard_at}
        return {rank: age for rank, age in ages.items() if age > seconds}

    def all_live(self, rank: int, ranks: Collection[int], seconds: float) -> bool:
        """Whether all nodes but one have shown within the last `seconds` that their processes live."""
        now = self._clock()
        return all(now - self._beat_at.get(peer, now) < seconds for peer in ranks if peer != rank)
