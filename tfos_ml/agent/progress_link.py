"""Sends a node's progress and its reports to the driver while it runs, from a separate thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tfos_ml.agent.node_events import DriverSeen
from tfos_ml.agent.outbox import Outbox
from tfos_ml.common.timeouts import CALL_RETRY_SECONDS, CALL_TIMEOUT, PING_SECONDS
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import NodeProgress, ProgressAnswer, ReportGone, ReportProgress

logger = logging.getLogger(__name__)


class ProgressLink:
    """Calls the driver from a thread, every `period` seconds, with the node's progress and what waits in its outbox."""

    def __init__(
        self,
        client: ControlClient,
        rank: int,
        outbox: Outbox,
        progress: Callable[[], NodeProgress],
        period: float = PING_SECONDS,
        on_answer: Callable[[ProgressAnswer], None] | None = None,
    ):
        self._client = client
        self._rank = rank
        self._outbox = outbox
        self._progress = progress
        self._period = period
        self._on_answer = on_answer
        self._calls = 0
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

    def _run(self) -> None:
        while not self._closed.wait(self._period if self._ping() else 2 * self._period):
            pass
        deadline = time.monotonic() + CALL_TIMEOUT
        while time.monotonic() < deadline:
            if self._ping():
                if next(self._outbox.batches(), None) is None:
                    return
            elif self._refusals.is_refused:
                return
            else:
                time.sleep(CALL_RETRY_SECONDS)

    def _ping(self) -> bool:
        called_at, reports = time.monotonic(), next(self._outbox.batches(), [])
        self._calls += 1
        try:
            answer = self._client.call(ReportProgress(self._rank, self._calls, self._progress(), reports))
            self._outbox.confirm(reports)
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
