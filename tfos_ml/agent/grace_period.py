"""When a node that does not train is ended: once nothing is left to do for it, and its grace is over."""

from __future__ import annotations

import time

from tfos_ml.agent.consensus import Consensus
from tfos_ml.agent.identity import NodeIdentity
from tfos_ml.protocol.control_messages import ProgressAnswer
from tfos_ml.protocol.graces import limit_of


class GracePeriod:
    """The grace of one node.

    With `waits_for_program` servers and evaluators stay until the program on the driver shuts the cluster down.
    """

    def __init__(self, member: NodeIdentity, waits_for_program: bool):
        self._member = member
        self._waits = waits_for_program
        self.limit = limit_of(member.role.job_name, member.task.graces)  # how long it may go on after since()
        self._program_ended_at: float | None = None

    def take_answer(self, answer: ProgressAnswer) -> None:
        """Take up an answer of the driver, which may say that the program shuts down, and with which grace."""
        if answer.ending is None:
            return
        self._program_ended_at = self._program_ended_at or time.monotonic()
        if answer.ending.limit is not None and not self._member.is_helper:
            self.limit = answer.ending.limit

    def since(self, consensus: Consensus) -> float | None:
        """``time.monotonic()`` of when nothing was left to do for the node; None while something is."""
        if self._member.is_helper:
            return consensus.trained_since
        done, program = consensus.done_since, self._program_ended_at
        if not self._waits:
            return done
        return None if done is None or program is None else max(done, program)
