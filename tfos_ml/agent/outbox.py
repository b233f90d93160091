"""What a node reports until the driver has it: metrics, samples of its host, and lines of output."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import structs

from tfos_ml.protocol.codec import encode
from tfos_ml.protocol.messages import LogLine, Report

KEPT_LINES = 10_000  # and samples of the host; metrics are all kept
BATCH_BYTES = 1 << 20  # of one call or result row, far below the limits of a server and of Spark Connect
Reports: TypeAlias = list[Report | LogLine]


class Outbox:
    """Reports in order, each with its number, by which the driver knows those that come twice; for several threads.

    A connected node sends them with its calls until one is answered. The node's results bring what is left: in a run
    that is apart, all of them.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Report | LogLine, int, bool]] = deque()  # the size of each, and if it is a line
        self._numbered = 0  # reports so far
        self._lines = 0  # that wait, with the samples
        self._lock = threading.Lock()

    def add(self, report: Report | LogLine) -> None:
        """Take a report, in parts if it is too large for one call; if too many lines wait, the oldest is dropped."""
        size = len(encode(report))
        if size > BATCH_BYTES and isinstance(report, Report) and len(report.metrics) > 1:
            names = list(report.metrics)
            for part in (names[::2], names[1::2]):
                self.add(structs.replace(report, metrics={name: report.metrics[name] for name in part}))
            return
        is_line = isinstance(report, LogLine) or report.system
        with self._lock:
            self._waiting.append((structs.replace(report, number=self._numbered), size, is_line))
            self._numbered += 1
            self._lines += is_line
            if self._lines > KEPT_LINES:
                del self._waiting[next(i for i, (*_, is_line) in enumerate(self._waiting) if is_line)]
                self._lines -= 1

    def batches(self) -> Iterator[Reports]:
        """All that waits, in parts that fit in one call each."""
        with self._lock:
            waiting = list(self._waiting)
        batch: Reports = []
        total = 0
        for report, size, _ in waiting:
            if batch and total + size > BATCH_BYTES:
                yield batch
                batch, total = [], 0
            batch.append(report)
            total += size
        if batch:
            yield batch

    def confirm(self, batch: Reports) -> None:
        """The driver has the reports up to the last of these."""
        with self._lock:
            while batch and self._waiting and self._waiting[0][0].number <= batch[-1].number:
                *_, is_line = self._waiting.popleft()
                self._lines -= is_line
