"""The end of a ``TFCluster``: what is waited for, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfos_ml import errors
from tfos_ml.common.timeouts import CLEANUP_SECONDS, POLL_SECONDS, STREAM_SECONDS
from tfos_ml.driver.progress import WaitNotice
from tfos_ml.driver.run import Run
from tfos_ml.protocol.control_messages import Ending
from tfos_ml.protocol.grace_periods import GracePeriod


@dataclass
class Shutdown:
    """Waits for a stream and for the nodes."""

    run: Run
    timeout: float  # seconds for all of it; math.inf for no limit
    deadline: float  # when they have passed, by time.monotonic()

    def has_stream_ended(self, stream: Any, is_stop_requested: Callable[[], bool]) -> bool:
        """Wait for the end of a stream; False if it is requested that it be ended."""
        while not self._has_ended(stream):
            self.run.check()
            self._check_time()
            if is_stop_requested():
                return False
        return True

    def stop_stream(self, stream: Any) -> None:
        """End a ``StreamingContext`` or ``StreamingQuery`` after the micro-batch that runs, or at the deadline."""
        if hasattr(stream, "awaitTerminationOrTimeout"):
            stream.stop(stopSparkContext=False, stopGraceFully=True)
            return
        while stream.status["isTriggerActive"] and time.monotonic() < self.deadline:  # else its batch is repeated
            time.sleep(POLL_SECONDS)
        stream.stop()

    def _has_ended(self, stream: Any) -> bool:
        """Whether a stream ends within a moment; raises its failure."""
        wait = getattr(stream, "awaitTerminationOrTimeout", None) or stream.awaitTermination
        try:
            return bool(wait(STREAM_SECONDS))
        except Exception:
            self.run.check()  # the failure of a node is the cause
            raise

    def await_nodes(self, grace_secs: float) -> None:
        """End the input and wait until all nodes have finished.

        Evaluators and parameter servers have `grace_secs` left after the others; 0 leaves it to the settings. Those
        that still run at the deadline are ended.
        """
        nodes, notice = self.run.control.nodes, WaitNotice()
        nodes.announce(None)
        nodes.ending = Ending(GracePeriod.of_setting("grace_secs", float(grace_secs)) if grace_secs > 0 else None)
        last_deadline = self.deadline + CLEANUP_SECONDS
        while not nodes.have_results(range(self.run.task.template.size), POLL_SECONDS):
            self.run.check()
            is_trained = all(node.job_name in ("ps", "evaluator") for node in nodes.unfinished())
            if time.monotonic() > self.deadline and is_trained:
                nodes.ending = Ending(GracePeriod(0.0, f"timeout={self.timeout:g}"))
                self.deadline = last_deadline
            self._check_time()
            notice.update(nodes.progress())

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise errors.ShutdownTimeoutError(
                f"{self._unfinished()} have not finished within timeout={self.timeout:g} s and were ended. Let them "
                "return when feed.should_stop() or ctx.should_stop() is true, or raise timeout (-1 for no limit)."
            )

    def _unfinished(self) -> list[str]:
        """Labels of the unfinished nodes: of those whose train function runs, or else of all."""
        nodes = self.run.control.nodes
        left, progress = nodes.unfinished(), nodes.progress()
        working = [node for node in left if node.rank not in progress or not progress[node.rank].returned]
        return [node.label for node in working or left]
