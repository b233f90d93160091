"""Time: each check has its own limit, and all of them one together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
PREFIX = "tfos_ml-doctor"  # of the names of all threads of its own


class OutOfTimeError(Exception):
    """Something has not ended in time."""


def left_behind() -> bool:
    """Whether something that had no time left still goes on."""
    return any(thread.name.startswith(PREFIX) for thread in threading.enumerate())


class Deadline:
    """So many seconds from now on. If they are more than the `usual` number, each step may take longer, too."""

    def __init__(self, seconds: float, usual: float):
        self._end = time.monotonic() + seconds
        self._factor = max(1.0, seconds / usual)

    def left(self, at_most: float) -> float:
        """Seconds that a step of usually at most so many may take; raises ``OutOfTimeError`` if there are none."""
        left = min(at_most * self._factor, self._end - time.monotonic())
        if left <= 0:
            raise OutOfTimeError("no time was left")
        return left


def within(seconds: float, action: Callable[[], T]) -> T:
    """What `action` returns or raises; ``OutOfTimeError`` if that takes longer.

    It runs in a daemon thread, which then is left to itself: name resolution and the JVM cannot be interrupted.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((action(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name=PREFIX, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise OutOfTimeError(f"it has not ended within {seconds:.0f} s")
    value, error = outcome[0]
    if error is not None:
        raise error
    found: T = value
    return found
