"""Decides whether a failed fit is repeated. The policy only decides; it starts nothing itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tfos_ml import errors

PORT_RETRIES = 2
LOSSES_WITHOUT_PROGRESS = 3  # of an elastic fit, whatever maxRestarts; preemptions are among them
LOSSES = (errors.NodeLostError, errors.NodeExitError, errors.InputLostError)
NOT_RETRYABLE = (
    errors.CollectiveCallError,
    errors.NonFiniteTrainingError,
    errors.SupersededError,
    errors.VersionMismatchError,
)
"""Failures of nodes that would recur with the same program on the same rows."""


@dataclass(frozen=True)
class Decision:
    """Whether to repeat the fit, and what to log about it."""

    restart: bool
    notice: str = ""


@dataclass
class RestartPolicy:
    """Counts the restarts of one fit since its last progress, a new checkpoint.

    An elastic fit (`is_elastic`) also goes on after each loss of a node, ``LOSSES_WITHOUT_PROGRESS`` times without
    progress. So does any fit that may restart after each preemption; those without progress count as failures.

    In addition to the restarts that the user allows, there are ``PORT_RETRIES`` for ports that another process took,
    and any number within `start_seconds` while Spark hands out Python workers that have died with their daemon: each of
    these fails one attempt before a node has started.
    """

    max_restarts: int
    start_seconds: float = 0.0
    restarts: int = 0
    is_elastic: bool = False
    _ports_taken: int = field(default=0, repr=False)
    _unstarted_since: float | None = field(default=None, repr=False)

    @property
    def goes_on_after_preemption(self) -> bool:
        """Whether another attempt follows one that has ended because an executor leaves."""
        return self.is_elastic or self.max_restarts > 0

    @property
    def _losses_allowed(self) -> int:
        return max(self.max_restarts, LOSSES_WITHOUT_PROGRESS) if self.is_elastic else self.max_restarts

    def decide(self, error: BaseException, has_progressed: bool = False, may_shrink: bool = False) -> Decision:
        """What to do after an attempt has failed with `error`; `may_shrink` if it only had too many nodes."""
        if may_shrink:
            return Decision(True)
        if has_progressed:
            self.restarts = 0
        if isinstance(error, errors.PreemptedError):
            self.restarts += not has_progressed
            goes_on = self.goes_on_after_preemption and self.restarts <= self._losses_allowed
            return Decision(goes_on, f"Going on elsewhere: {error}")
        if isinstance(error, errors.PortTakenError) and self._ports_taken < PORT_RETRIES:
            self._ports_taken += 1
            return Decision(True, f"Starting again, because a reserved port was taken: {error.message}")
        if not isinstance(error, errors.PythonDaemonError):
            self._unstarted_since = None
        elif self._may_start_again():
            return Decision(True, "Starting again, because Spark's Python daemon on an executor had ended")
        if not isinstance(error, errors.NodeError) or isinstance(error, NOT_RETRYABLE):
            return Decision(False)
        if self.is_elastic and (isinstance(error, LOSSES) or error.is_collateral):
            self.restarts += not has_progressed
            return Decision(self.restarts <= self._losses_allowed)
        if self.restarts == self.max_restarts:
            return Decision(False)
        self.restarts += 1
        return Decision(True, f"Restart {self.restarts} of {self.max_restarts}, because a node failed: {error}")

    def _may_start_again(self) -> bool:
        self._unstarted_since = self._unstarted_since or time.monotonic()
        return time.monotonic() - self._unstarted_since < self.start_seconds
