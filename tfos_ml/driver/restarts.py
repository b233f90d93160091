"""Whether a fit that failed is begun again: a policy that decides, and starts nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfos_ml import errors

PORT_RETRIES = 2
COME_AGAIN = (
    errors.CollectiveCallError,
    errors.EarlyStartError,
    errors.KeptRowsLostError,
    errors.NonFiniteLossError,
    errors.NonFiniteWeightsError,
    errors.SupersededError,
    errors.UncertainTextError,
    errors.VersionMismatchError,
)
"""Failures of nodes that the same program on the same rows would have again."""


@dataclass(frozen=True)
class Decision:
    """Whether to begin again, and what to say of it."""

    restart: bool
    notice: str = ""


@dataclass
class RestartPolicy:
    """Counts the restarts of one fit."""

    max_restarts: int  # that the user allows; for ports that others took there are ``PORT_RETRIES`` more
    restarts: int = 0
    _ports_taken: int = field(default=0, repr=False)

    def decide(self, error: BaseException) -> Decision:
        """What to do after an attempt has failed with `error`."""
        if isinstance(error, errors.PortTakenError) and self._ports_taken < PORT_RETRIES:
            self._ports_taken += 1
            return Decision(True, f"Starting anew, because a reserved port was taken: {error.message}")
        if not isinstance(error, errors.NodeError) or isinstance(error, COME_AGAIN):
            return Decision(False)
        if self.restarts == self.max_restarts:
            return Decision(False)
        self.restarts += 1
        return Decision(True, f"Restart {self.restarts} of {self.max_restarts}, because a node failed: {error}")
