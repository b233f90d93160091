"""Which nodes are alive, judged by their latest calls to the driver, and which failure is therefore the cause.

All times are durations, each measured on one host, so the hosts' clocks need not agree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

from tfos_ml.common.timeouts import COLLATERAL_SECONDS, PAUSE_SECONDS
from tfos_ml.protocol.control_messages import Broken


class Liveness:
    """Signs of life of the nodes of one run, by a monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._called_at: dict[int, float] = {}
        self._beat_at: dict[int, float] = {}  # of the TensorFlow processes
        self._broke_at: dict[int, float] = {}
        self._looked_at = clock()

    def record(
        self, rank: int, child_silent: float | None, is_failing: bool = False, broken: Broken | None = None
    ) -> None:
        """Record a call of a node, and the silence of its TensorFlow process in seconds; None if that has ended."""
        now = self._clock()
        self._called_at[rank] = now
        self._beat_at[rank] = -math.inf if is_failing else now - (child_silent or 0.0)
        if broken is None:
            self._broke_at.pop(rank, None)
        else:
            self._broke_at[rank] = now - broken.seconds

    def silent(self, ranks: Collection[int], seconds: float) -> dict[int, float]:
        """The nodes among `ranks` that have been silent for longer than `seconds`, and for how long.

        Time in which nobody checked does not count: a suspended driver cannot hear.
        """
        now = self._clock()
        pause, self._looked_at = now - self._looked_at, now
        if pause > PAUSE_SECONDS:
            for known in (self._called_at, self._beat_at):
                known.update({rank: min(now, at + pause) for rank, at in known.items()})
        ages = {rank: now - self._called_at[rank] for rank in ranks if rank in self._called_at}
        return {rank: age for rank, age in ages.items() if age > seconds}

    def is_cause(self, rank: int, broken: Broken | None, ranks: Collection[int]) -> bool:
        """Whether the broken process of a node is the cause of the run's end, and not the consequence of another's.

        It is if all others among `ranks` have given a sign of life since it broke, ``COLLATERAL_SECONDS`` have passed,
        none has failed, and none has broken before; or if one that stands still would have been reported by now.
        """
        if broken is None:
            return False
        now = self._clock()
        others = [at for peer, at in self._broke_at.items() if peer in ranks]
        is_first = self._broke_at.get(rank, now) <= min(others, default=now)
        peers = [now - self._beat_at.get(peer, now) for peer in ranks if peer != rank]
        live = broken.seconds > COLLATERAL_SECONDS and all(silent < broken.seconds for silent in peers)
        return (live and is_first) or broken.seconds > broken.noticed_within
