"""Logs to the tracking server from a thread while a job runs, so that ``fit`` does not wait for the server.

MLflow's own queue (``log_batch(synchronous=False)``) cannot log models, and drops metrics if a request fails. If the
server is down, ``flush_async_logging`` waits for it, and so does the exit of the process: 247 s with MLflow 3.17.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable, Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric

from tfos_ml.common.redact import redact
from tfos_ml.common.timeouts import TRACKING_CLOSE_SECONDS, TRACKING_RETRY_SECONDS
from tfos_ml.mlflow import tracking_server

logger = logging.getLogger("tfos_ml.mlflow")
BATCH = 1000  # MLflow's limit for one request

Job = Callable[[], object]


class Writer:
    """Logs to one run, in order, from a thread, and repeats failed requests with metrics.

    ``is_down`` is true if the server did not answer the last request.
    """

    def __init__(self, client: MlflowClient, run_id: str):
        self._client = client
        self._run_id = run_id
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._pending: list[Metric] = []
        self._done = 0
        self._warned = False
        self.is_down = False
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
        self._thread.start()

    def write(self, metrics: Sequence[Metric]) -> None:
        """Queue metrics for logging."""
        self._pending.extend(metrics)
        self._queue.put(self._flush)

    def do(self, job: Job) -> None:
        """Queue a job; it runs after the earlier metrics are logged, and is skipped if the server is down."""
        self._queue.put(self._flush)
        self._queue.put(functools.partial(self.attempt, job))

    def _run(self) -> None:
        job: Job | None = self._flush
        while job is not None:
            job()
            try:
                job = self._queue.get(timeout=TRACKING_RETRY_SECONDS if self._pending else None)
            except queue.Empty:
                job = self._flush
        self._flush()

    def _flush(self) -> None:
        """Log all pending metrics; another thread may add more meanwhile."""
        while batch := self._pending[:BATCH]:
            if not self.attempt(functools.partial(self._client.log_batch, self._run_id, metrics=batch)):
                return
            del self._pending[: len(batch)]

    def attempt(self, job: Job) -> bool:
        """Run a job now, in the caller's thread; returns whether it worked. Only the first failure is a warning."""
        error = None
        try:
            if tracking_server.answers(self._client.tracking_uri):
                job()
                self._done += 1
                self.is_down = False
                return True
            self.is_down = True
        except Exception as raised:
            logger.debug("A request to MLflow failed", exc_info=True)
            self.is_down = not tracking_server.answers(self._client.tracking_uri)  # it may have ended meanwhile
            error = None if self.is_down else raised
        if not self._warned:
            self._warned = True
            logger.warning(
                "MLflow at %s %s. Training continues; metrics missing from run %s are in the model's history.",
                redact(self._client.tracking_uri, mark=""),
                f"refused a request: {redact(error)}" if error else "does not answer",
                self._run_id,
            )
        return False

    def close(self) -> None:
        """Wait until everything is logged, or until nothing has been logged for 30 s."""
        self._queue.put(None)
        done = -1
        while self._thread.is_alive() and done != self._done:
            done = self._done
            self._thread.join(TRACKING_CLOSE_SECONDS)
