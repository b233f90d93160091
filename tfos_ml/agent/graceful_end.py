"""How the tasks of a failed run end without an error of Spark's.

Spark prints the error of a task several times, with Java's traces, and a line for each task that it has to
kill. So a node whose failure the driver has acknowledged lets its task end as if all were well, without
result rows, and so do the others when the driver asks them to stop. The driver raises what was reported,
whatever becomes of the job, and cancels what is left of it after ``END_SECONDS``.

Tasks of a barrier stage must not leave another one waiting in an exchange of Spark's: nobody would ever
answer it. So they first tell each other, over the driver's control server, how many exchanges each has begun, and
those that have begun one less than others take part in it.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import GatherRound
from tfos_ml.protocol.failure import Failure

if TYPE_CHECKING:
    from tfos_ml.agent.rendezvous import Rendezvous

logger = logging.getLogger(__name__)
LEAVE_SECONDS = 20.0  # by then the driver has cancelled the job, unless it is out of reach
POLL_SECONDS = 0.1
_LEAVING = -1  # round of the control server's exchanges, beside all others


def leave_together(rendezvous: Rendezvous, control: dict[str, str], rank: int, size: int) -> bool:
    """End the exchanges of a barrier task; whether no task is left waiting in one."""
    if size == 1:
        return True
    deadline = time.monotonic() + LEAVE_SECONDS
    mine = GatherRound(rank, _LEAVING, size, str(rendezvous.begun))
    try:
        with closing(ControlClient(**control)) as client:
            while (begun := client.call_reliably(mine, LEAVE_SECONDS).messages) is None:
                if time.monotonic() > deadline:
                    return False
                time.sleep(POLL_SECONDS)
    except pa.ArrowException as error:
        logger.debug("The driver cannot be reached: %s", error)
        return False
    return rendezvous.complete(max(map(int, begun)), deadline - time.monotonic())


def log_failure(failure: Failure) -> None:
    """Write all that is known of a failure into the executor's log."""
    error = failure.to_error()
    text = error.details if isinstance(error, errors.NodeError) else str(error)
    sys.stderr.write(f"{type(error).__name__}: {text}\n")
