"""Spark's two kinds of streams that may feed a cluster, and how they end."""

from __future__ import annotations

import time
from typing import Any

POLL_SECONDS = 0.1


def has_ended(stream: Any, timeout: float) -> bool:
    """Whether a ``StreamingContext`` or ``StreamingQuery`` has ended, within `timeout` seconds; raises its failure."""
    wait = getattr(stream, "awaitTerminationOrTimeout", None) or stream.awaitTermination
    return bool(wait(timeout))


def stop_stream(stream: Any, deadline: float) -> None:
    """End a stream once the micro-batches it has begun are done, or at `deadline` (``time.monotonic()``)."""
    if hasattr(stream, "awaitTerminationOrTimeout"):
        stream.stop(stopSparkContext=False, stopGraceFully=True)
        return
    while stream.status["isTriggerActive"] and time.monotonic() < deadline:  # or its batch would come again
        time.sleep(POLL_SECONDS)
    stream.stop()
