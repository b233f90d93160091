"""Ends a call to a node that is silent, once the driver knows that its cluster has failed.

A node that stands still with all its processes, as on a suspended host, keeps its connections open. The driver loses it
at the end of its lease; a call to it would wait much longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SILENCE = 5.0  # seconds
PERIOD = 2.0  # seconds


class SilentNode(threading.Thread):
    """Watches a call while it waits; a context manager.

    Parameters
    ----------
    has_failed : callable
        Whether the driver knows a failure of the cluster. It is asked again and again while the node is silent.
    cancel : callable
        Ends the call with an error.
    silence, period : float
        Seconds without an answer of the node before the driver is asked, and between two questions.
    """

    def __init__(
        self,
        has_failed: Callable[[], bool],
        cancel: Callable[[], None],
        silence: float = SILENCE,
        period: float = PERIOD,
    ):
        super().__init__(name="tfos_ml silent node", daemon=True)
        self._has_failed, self._cancel, self._silence, self._period = has_failed, cancel, silence, period
        self._heard = time.monotonic()
        self._over = threading.Event()

    def hear(self) -> None:
        """Note an answer of the node."""
        self._heard = time.monotonic()

    def run(self) -> None:
        """Ask the driver whenever the node has been silent."""
        while not self._over.wait(self._period):
            if time.monotonic() - self._heard >= self._silence and self._has_failed() and not self._over.is_set():
                self._cancel()
                return

    def __enter__(self) -> SilentNode:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
