"""How long nodes may continue when nothing is left to do for them, and the warnings about nodes that were ended.

The chief, and without parameter servers all workers, end when their train function returns; they have no such period.
Workers beside a chief and parameter servers may serve the chief or work independently. A parameter server serves while
any node works. An evaluator may evaluate the trained model once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tfos_ml.common.session_settings import EVALUATOR_GRACE, WORKER_GRACE
from tfos_ml.common.user_warnings import warn
from tfos_ml.errors import NodeEndedWarning
from tfos_ml.protocol.failure import Failure


@dataclass(frozen=True)
class GracePeriods:
    """Seconds that nodes of a role may continue."""

    worker: float = WORKER_GRACE.default  # beside a chief and parameter servers, after the chief
    server: float = 5.0  # after the chief and all workers, as is the next
    evaluator: float = EVALUATOR_GRACE.default


@dataclass(frozen=True)
class GracePeriod:
    """Seconds that a node may continue, and where they were set."""

    seconds: float
    source: str

    @classmethod
    def of_setting(cls, name: str, seconds: float) -> GracePeriod:
        """The timeout of a setting or an argument."""
        return cls(seconds, f"{name}={seconds:g}")


def grace_period_of(job_name: str, grace_periods: GracePeriods) -> GracePeriod:
    """That of a passive node."""
    if job_name == "worker":
        return GracePeriod.of_setting(WORKER_GRACE.name, grace_periods.worker)
    if job_name == "evaluator":
        return GracePeriod.of_setting(EVALUATOR_GRACE.name, grace_periods.evaluator)
    return GracePeriod(grace_periods.server, "")


def ended_at_work(job_name: str, label: str, limit: GracePeriod) -> str | None:
    """The warning about a node that was ended; None for a parameter server, which has nothing to lose."""
    if job_name == "worker":
        return (
            f"{label} still worked {limit.seconds:g} s after the chief had ended, and was ended ({limit.source}): what "
            "it had not written or reported by then is lost. Raise that setting, or let it return once "
            "ctx.should_stop() is true. A worker that only serves the chief calls ctx.wait(), or join() of its "
            "tf.distribute.Server."
        )
    if job_name == "evaluator":
        return (
            f"{label} had not returned in time after the end of training, and was ended ({limit.source}): it may have "
            "missed the last checkpoint. Let it return once ctx.should_stop() is true, for instance with "
            "tf.train.checkpoints_iterator(directory, timeout=5, timeout_fn=ctx.should_stop), or raise that setting."
        )
    return None


def ended_late(label: str, seconds: float) -> str:
    """The warning about a process that did not end after its train function had returned."""
    return (
        f"The process of {label} had not ended {seconds:g} s after its train function had returned, and was killed. "
        "The result is complete. Such a process waits for something that does not end: a function registered with "
        "atexit, or a process that the train function started with multiprocessing."
    )


def lost_peers(label: str, failure: Failure | None) -> str:
    """The warning about a worker that failed after the chief had ended, probably because of that."""
    return f"{label} failed after the chief had ended, and may have depended on it: {failure and failure.message}"


def warn_of_ended(reports: Iterable[Mapping[str, Any]]) -> None:
    """Warn of nodes that were ended while they still worked, as their reports say."""
    for report in reports:
        if report.get("ended_at_work"):
            warn(report["ended_at_work"], NodeEndedWarning)
