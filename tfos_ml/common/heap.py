"""The heap of this process."""

from __future__ import annotations

import contextlib
import ctypes


def return_memory() -> None:
    """Give memory that is free in this process back to the system: glibc keeps gigabytes after a peak."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
