"""The driver's part in the end of a failed run; see ``agent/graceful_end.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfos_ml.protocol.failure import find_failure

if TYPE_CHECKING:
    from tfos_ml.driver.control_server import ControlServer
    from tfos_ml.driver.spark_job import SparkJob

END_SECONDS = 10.0
"""The longest that the driver waits for the tasks of a failed run to end by themselves."""
FEED_END_SECONDS = 2.0
"""The same for tasks that feed nodes; one whose node stands still hears of nothing."""


def await_end(job: SparkJob, control: ControlServer, seconds: float = END_SECONDS) -> None:
    """Have all nodes stop, and wait for the end of the job's tasks, since a node has failed."""
    control.stop_nodes()
    job.wait(seconds)


def has_failed(control: ControlServer | None) -> bool:
    """Whether a node has reported a failure."""
    return control is not None and find_failure(control.failure() or "") is not None
