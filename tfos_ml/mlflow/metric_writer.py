"""Metrics on their way to the tracking server, in a thread: ``fit`` never waits for it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric

from tfos_ml.mlflow import server

logger = logging.getLogger("tfos_ml.mlflow")
BATCH = 1000  # MLflow takes no more at once
RETRY_SECONDS = 5.0
CLOSE_SECONDS = 30.0


class MetricWriter:
    """Logs metrics of one run; those that the server did not take are tried again.

    Parameters
    ----------
    client : MlflowClient
        Of the server.
    run_id : str
        The run.

    Attributes
    ----------
    is_down : bool
        Whether the server did not answer when it was last asked.
    """

    def __init__(self, client: MlflowClient, run_id: str):
        self._client = client
        self._run_id = run_id
        self._queue: queue.SimpleQueue[Metric | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._warned = False
        self.is_down = False
        self._thread = threading.Thread(target=self._run, name="mlflow metrics", daemon=True)
        self._thread.start()

    def write(self, metrics: Sequence[Metric]) -> None:
        """Have metrics logged soon."""
        for metric in metrics:
            self._queue.put(metric)

    def _run(self) -> None:
        pending: list[Metric] = []
        closing = False
        while not closing:
            closing = self._take(pending)
            while pending and self._log(pending[:BATCH]):
                del pending[:BATCH]
            if pending and not closing:
                self._closed.wait(RETRY_SECONDS)

    def _take(self, pending: list[Metric]) -> bool:
        """Add what waits; without anything to do, wait for it. Whether that was the last."""
        metric = None if pending and self._queue.empty() else self._queue.get()
        while metric is not None:
            pending.append(metric)
            if self._queue.empty():
                return False
            metric = self._queue.get()
        return self._closed.is_set() and self._queue.empty()

    def _log(self, metrics: list[Metric]) -> bool:
        error = None
        try:
            if server.answers(self._client.tracking_uri):
                self._client.log_batch(self._run_id, metrics=metrics)
                self.is_down = False
                return True
        except Exception as raised:
            error = raised
        self.is_down = True
        self.warn(error)
        return False

    def warn(self, error: Exception | None) -> None:
        """Say once that MLflow does not take what it should."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "MLflow at %s %s. Training goes on; what is missing in run %s is in the model's history.",
                self._client.tracking_uri,
                f"did not take metrics: {error}" if error else "does not answer",
                self._run_id,
            )

    def close(self) -> None:
        """Wait until all is logged, or the server has not taken it within 30 s."""
        self._closed.set()
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
