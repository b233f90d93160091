"""Where the time of a fit goes."""

from __future__ import annotations

import time


class Timeline:
    """Seconds of successive phases by name. The first phase begins when the object is created."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.began = self._since = time.monotonic()

    def end(self, phase: str) -> None:
        """End the current phase and begin the next."""
        now = time.monotonic()
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + now - self._since, 3)
        self._since = now


def line(seconds: dict[str, float]) -> str:
    """A timeline as one line of text.

    Examples
    --------
    >>> line({"checks": 0.21, "training": 3.0, "export": 0.004})
    'checks 0.2 s, training 3.0 s'
    """
    return ", ".join(f"{phase} {spent:.1f} s" for phase, spent in seconds.items() if spent >= 0.05)
