"""A fit that begins once more with another task: after errors that only tfos_ml itself is to know."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tfos_ml import errors
from tfos_ml.driver.fit import RunResult
from tfos_ml.protocol.node_task import NodeTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)


def _waiting(task: NodeTask, error: errors.NodeError) -> NodeTask:
    return replace(task, settings=replace(task.settings, waits_because=error.message))


_CHANGES: dict[type[errors.NodeError], Callable[[NodeTask, errors.NodeError], NodeTask]] = {
    errors.EarlyStartError: _waiting,
}
"""What becomes of the task after an error; each is raised at most once, as the changed task does not lead to it."""


def run_again(
    run: Callable[[Callable[[], DataFrame], NodeTask], RunResult], rows: Callable[[], DataFrame], task: NodeTask
) -> RunResult:
    """Run a cluster by ``run(rows, task)``, and again with a changed task where its error has a change."""
    began, failed = time.monotonic(), 0.0
    while True:
        try:
            return replace(run(rows, task), failed_seconds=failed)
        except tuple(_CHANGES) as error:
            logger.info("The fit begins again: %s", error)
            task, failed = _CHANGES[type(error)](task, error), time.monotonic() - began
