"""Task slots that a fit waits for. Slots held by other fits of this program become free by themselves.

``CrossValidator`` with ``parallelism`` runs several fits; those that find no free slots queue.
"""

from __future__ import annotations

import time
from typing import Any

from tfos_ml import errors

_fits: list[Slots] = []  # that are running now


class Slots:
    """Tracks whether one fit's nodes have their slots; a context manager around the fit.

    The fit waits at most `timeout` seconds while no other fit of this program holds slots.
    """

    def __init__(self, size: int, timeout: float):
        self._size = size
        self._timeout = timeout
        self._held = False
        self._idle_since = time.monotonic()

    def __enter__(self) -> Slots:
        _fits.append(self)
        return self

    def __exit__(self, *about: Any) -> None:
        _fits.remove(self)

    def others_hold(self) -> bool:
        """Whether another fit of this program holds slots."""
        return any(fit._held for fit in list(_fits) if fit is not self)

    def update(self, held: bool, have_met: bool = False) -> None:
        """Record whether tasks of the fit run now; raises if none has for too long, whether or not nodes `have_met`."""
        self._held = held
        if held or self.others_hold():
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > self._timeout:
            if have_met:
                raise errors.NodeLostError(
                    "All nodes have ended, but Spark has lost what they returned, probably with their executors, and "
                    f"no task of the fit has run for reservationTimeout={self._timeout:g} s."
                )
            raise errors.ReservationTimeoutError(
                f"No task of the fit has run for reservationTimeout={self._timeout:g} s: its "
                f"{self._size} nodes wait for {self._size} free task slots, which other jobs hold or the cluster "
                "does not have. Wait for those jobs, cancel them, lower clusterSize, or raise reservationTimeout."
            )
