"""The driver's side of ``TFCluster.train`` and ``.inference``: Spark jobs that feed rows to the nodes of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from tfos_ml import errors
from tfos_ml.agent.feed_task import FeedNode, FeedSpec
from tfos_ml.common.limits import CLEANUP_SECONDS, FEED_END_SECONDS, LEASE_SECONDS, POLL_SECONDS
from tfos_ml.common.session_settings import LEASE
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.feed_jobs import feeding, inferring
from tfos_ml.driver.partitions import check_rows
from tfos_ml.driver.run import Run
from tfos_ml.protocol.control_messages import FeedSegment


class Feeding:
    """Feeds those nodes of a run that take rows, once all have started; for several threads."""

    def __init__(self, run: Run, control: ControlServer, nodes: tuple[FeedNode, ...]):
        self._run = run
        self._control = control
        self._nodes = nodes
        self._numbers = count(1)
        self._lease = run.task.lease or LEASE_SECONDS

    def train(self, data: Any, epochs: int, feed_timeout: float, stream: str) -> None:
        """Feed an RDD or DataFrame, and return once it has been read; errors as of ``TFCluster.train``."""
        self._run.check()
        spec = self._spec(stream, feed_timeout, epochs)
        action = feeding(data, spec)
        feeds, nodes = self._control.feeds, self._control.nodes
        feeds.open(spec.number, {node.rank: node.host for node in self._nodes})
        try:
            job = self._run.start_job(action)
            try:
                fed = self._run.wait(job, FEED_END_SECONDS)
            except BaseException:
                job.cancel(CLEANUP_SECONDS)
                raise
            self._check_fed(fed, spec.number)
        finally:
            feeds.close(spec.number)
        announcement = nodes.announce(FeedSegment(stream, spec.number, epochs, float(feed_timeout)))
        ranks = tuple(node.rank for node in self._nodes)
        while not nodes.have_read(ranks, announcement, spec.number, POLL_SECONDS):
            self._run.check()

    def infer(self, data: Any, feed_timeout: float, stream: str, results: str) -> Any:
        """The RDD or DataFrame of results."""
        return inferring(data, self._spec(stream, feed_timeout), results)

    def _spec(self, stream: str, feed_timeout: float, epochs: int = 1) -> FeedSpec:
        number = next(self._numbers)
        return FeedSpec(number, stream, self._nodes, self._control.address, epochs, self._lease, feed_timeout)

    def _check_fed(self, fed: Mapping[int, int | None], number: int) -> None:
        """Raise unless nodes have taken over just the rows that feed tasks have read, but those that none wanted."""
        deadline = time.monotonic() + self._lease
        while (committed := self._control.feeds.committed(number, POLL_SECONDS)) is None:
            self._run.check()
            if time.monotonic() > deadline:
                raise errors.InputLostError(
                    f"Some nodes have not said within {LEASE}={self._lease:g} s whether they have taken over "
                    "rows that were granted to them. Shut the cluster down, and see their logs."
                )
        check_rows({partition: rows for partition, rows in fed.items() if rows is not None}, committed)
