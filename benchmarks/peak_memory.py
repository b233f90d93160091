"""The most memory that Spark's Python workers and what they start have together."""

from __future__ import annotations

import threading

import psutil

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


class Peak(threading.Thread):
    """The most memory seen while the block runs; a context manager."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self._over.wait(0.3):
            self.bytes = max(self.bytes, memory())

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
