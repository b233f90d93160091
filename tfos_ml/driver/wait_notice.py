"""Says which nodes a run waits for after the chief has ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tfos_ml.common.limits import NOTICE_SECONDS
from tfos_ml.protocol.control_messages import NodeProgress

logger = logging.getLogger(__name__)


class WaitNotice:
    """Says once which nodes the run waits for after the chief has ended."""

    def __init__(self) -> None:
        self._said = False

    def update(self, progress: Mapping[int, NodeProgress]) -> None:
        """Take up the latest state of each node."""
        waiting = [known.works_on for known in progress.values() if known.works_on is not None]
        if waiting and not self._said and max(node.seconds for node in waiting) > NOTICE_SECONDS:
            self._said = True
            labels = ", ".join(node.label for node in waiting)
            logger.warning("The chief has ended. Waiting for %s to return, at most %g s", labels, waiting[0].limit)
