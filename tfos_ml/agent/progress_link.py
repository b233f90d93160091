"""Sends a node's progress and metrics to the driver while it runs, from a separate thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate, islice, takewhile
from typing import TypeVar

from msgspec import structs

from tfos_ml.agent.node_events import DriverSeen
from tfos_ml.common.timeouts import CALL_RETRY_SECONDS, CALL_TIMEOUT, PING_SECONDS
from tfos_ml.protocol.codec import encode
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import NodeProgress, ProgressAnswer, ReportGone, ReportProgress
from tfos_ml.protocol.messages import LogLine, Report

logger = logging.getLogger(__name__)
KEPT_REPORTS = 10_000  # reports that the driver has not read, or a node has not sent
REPORT_BYTES = 1 << 20  # bytes of one call, far below the limit of a server
R = TypeVar("R", Report, LogLine)


class ProgressLink:
    """Reports a node's progress from a thread, every `period` seconds. Reports are repeated until they are answered."""

    def __init__(
        self,
        client: ControlClient,
        rank: int,
        progress: Callable[[], NodeProgress],
        period: float = PING_SECONDS,
        on_answer: Callable[[ProgressAnswer], None] | None = None,
    ):
        self._client = client
        self._rank = rank
        self._progress = progress
        self._period = period
        self._on_answer = on_answer
        self._calls = 0
        self._reports: deque[tuple[Report | LogLine, int]] = deque()  # with the size of each
        self._numbered = 0  # reports so far
        self._lock = threading.Lock()
        self._refusals = client.refusals()
        self._has_warned = False
        self.answered_at = time.monotonic()  # start of the latest call that the driver has answered
        self.answer: ProgressAnswer | None = None  # to that call
        self.is_driver_gone = False  # it has answered before, and its host has refused connections for REFUSED_SECONDS
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def driver(self) -> DriverSeen:
        return DriverSeen(self.answer, time.monotonic() - self.answered_at, self.is_driver_gone)

    def report(self, report: R) -> R:
        """Send a report with the next call; returns it with a number, by which the driver recognizes it.

        If the driver is silent for long, the oldest reports are dropped. One that is too large is not sent.
        """
        size = len(encode(report))
        if size > REPORT_BYTES:
            logger.warning("A report of %d bytes is not sent, expected at most %d", size, REPORT_BYTES)
            return report
        with self._lock:
            numbered = structs.replace(report, number=self._numbered)
            self._numbered += 1
            self._reports.append((numbered, size))
            if len(self._reports) > KEPT_REPORTS:
                self._reports.popleft()
        return numbered

    def _run(self) -> None:
        while not self._closed.wait(self._period if self._ping() else 2 * self._period):
            pass
        deadline = time.monotonic() + CALL_TIMEOUT
        while time.monotonic() < deadline:
            if self._ping():
                if not self._reports:
                    return
            elif self._refusals.is_refused:
                return
            else:
                time.sleep(CALL_RETRY_SECONDS)

    def _ping(self) -> bool:
        called_at = time.monotonic()
        try:
            answer = self._call()
            self.answered_at, self.answer = called_at, answer
            self._refusals.forget()
            if self._on_answer is not None:
                self._on_answer(answer)
        except Exception as error:  # training must not depend on reports
            self.is_driver_gone = self._refusals.are_final() and self.answer is not None
            if not self._has_warned:
                self._has_warned = True
                logger.warning("Driver not reachable, so it gets no live progress: %s", error)
            return False
        return True

    def _call(self) -> ProgressAnswer:
        self._calls += 1
        with self._lock:
            first = self._numbered - len(self._reports)
            sizes = accumulate(size for _, size in self._reports)
            fitting = sum(1 for _ in takewhile(lambda size: size <= REPORT_BYTES, sizes))
            reports = [report for report, _ in islice(self._reports, fitting)]
        answer = self._client.call(ReportProgress(self._rank, self._calls, self._progress(), reports))
        self._forget(first + len(reports))
        return answer

    def _forget(self, end: int) -> None:
        """Keep no reports of lower numbers, which the driver has."""
        with self._lock:
            while self._reports and self._numbered - len(self._reports) < end:
                self._reports.popleft()

    def close(self) -> None:
        """Send the remaining reports and end the thread, if it has started."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(3 * CALL_TIMEOUT)

    def report_gone(self, *, succeeded: bool) -> None:
        """Tell the driver that the node has released everything."""
        try:
            self._client.call_reliably(ReportGone(self._rank, succeeded), CALL_TIMEOUT)
        except Exception as error:
            logger.debug("Driver not reachable at the end: %s", error)

    def disconnect(self) -> None:
        self._client.close()


def period_for(cluster_size: int) -> float:
    """Seconds between reports, so that the driver gets at most a few hundred a second."""
    return max(PING_SECONDS, cluster_size / 200)
