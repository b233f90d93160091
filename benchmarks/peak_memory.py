"""The most memory that Spark's Python workers and what they start have together."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil
from typing_extensions import Self

PARTS = ("pyspark.daemon", "pyspark/daemon", "tfos_ml.worker.", "tfos_ml.agent.")


def memory() -> int:
    """Bytes of PSS, which counts once what several processes share."""
    held = 0
    for process in psutil.process_iter():
        try:
            if any(part in " ".join(process.cmdline()) for part in PARTS):
                held += process.memory_full_info().pss
        except psutil.Error:
            continue
    return held


class Watching(threading.Thread):
    """Looks again and again while the block runs; a context manager."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()

    def look(self) -> None:
        """What a subclass does each time."""
        raise NotImplementedError

    def run(self) -> None:
        """Of the thread."""
        while not self._over.wait(0.2):
            self.look()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


class Peak(Watching):
    """The most memory seen while the block runs: by default that of Spark's Python workers, in bytes."""

    def __init__(self, of: Callable[[], int] = memory) -> None:
        super().__init__()
        self.bytes, self._of = 0, of

    def look(self) -> None:
        """As of ``Watching``."""
        self.bytes = max(self.bytes, self._of())
